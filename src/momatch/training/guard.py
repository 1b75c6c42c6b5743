"""Undo a step that went wrong, without the host learning about it.

Whether a loss or gradient is finite is known on the device only. Reading it back would make the host wait in every step, so
the state before the step is kept, and the device itself selects between the two.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from momatch.numerics.checks import is_readable


class Guard:
    """Keeps a copy of tensors, and puts it back where a step turns out bad.

    Args:
        tensors: what a step changes. Those on another device than the verdict (step counters on the host) cannot be chosen
            without reading it and are left alone.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        self._tensors = [tensor for tensor in tensors if tensor.device == device]
        self._saved = [torch.empty_like(tensor) for tensor in self._tensors]

    @torch.no_grad()
    def save(self) -> None:
        """Keep the present values."""
        torch._foreach_copy_(self._saved, self._tensors)

    @torch.no_grad()
    def restore_unless(self, good: Bool[Tensor, ""]) -> None:
        """Put the kept values back where `good` is false."""
        if is_readable(good):
            # On the CPU there is nothing to wait for.
            if not bool(good):
                torch._foreach_copy_(self._tensors, self._saved)
            return
        for tensor, saved in zip(self._tensors, self._saved, strict=True):
            torch.where(good, tensor, saved, out=tensor)
