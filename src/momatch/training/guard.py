"""Undo a bad step without a host sync.

Whether a loss or gradient is finite is known only on the device, and reading it back would stall the host in every step. So
the state before the step is saved, and the device selects which one to keep.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from momatch.numerics.checks import is_readable


class Guard:
    """Saves tensors before a step and restores them if the step was bad.

    Args:
        tensors: everything that a step changes. Tensors on another device than the first (step counters on the host)
            cannot be restored without a host sync and are ignored.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        self._tensors = [tensor for tensor in tensors if tensor.device == device]
        self._saved = [torch.empty_like(tensor) for tensor in self._tensors]

    @torch.no_grad()
    def save(self) -> None:
        """Save the current values."""
        torch._foreach_copy_(self._saved, self._tensors)

    @torch.no_grad()
    def restore_unless(self, good: Bool[Tensor, ""]) -> None:
        """Restore the saved values if `good` is false."""
        if is_readable(good):
            # On the CPU, reading is free.
            if not bool(good):
                torch._foreach_copy_(self._tensors, self._saved)
            return
        for tensor, saved in zip(self._tensors, self._saved, strict=True):
            torch.where(good, tensor, saved, out=tensor)
