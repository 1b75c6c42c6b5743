"""Argument checks.

Shapes and dtypes are always checked. Values are checked only if reading them needs no host sync (`is_readable`).
"""

import torch
from torch import Tensor


def is_readable(tensor: Tensor) -> bool:
    """True if the values of `tensor` can be read for free.

    False on accelerators (host sync), on ``meta`` (no values), while compiling or exporting (a data-dependent branch breaks
    the graph) and inside ``torch.func`` transforms.
    """
    return tensor.device.type == "cpu" and not is_traced()


def is_traced() -> bool:
    """True while compiling or exporting, and inside ``torch.func`` transforms."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def check_positive_int(name: str, value: int) -> int:
    """Return `value` if it is an integer of at least 1.

    Raises:
        ValueError: if it is not.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1")
    return int(value)


def check_fraction(name: str, value: float) -> float:
    """Return `value` if it is in [0, 1].

    Raises:
        ValueError: if it is not.
    """
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: got {value!r}, expected a number from 0 to 1")
    return float(value)


def check_embeddings(z: Tensor, embedding_dim: int, *, name: str = "z", batch_dims: int | None = None) -> None:
    """Check that `z` is a floating tensor of embeddings (..., D).

    Args:
        z: the embeddings.
        embedding_dim: the expected last dimension D.
        name: the argument's name in the error.
        batch_dims: expected number of leading dimensions; None for any. With 1, an empty batch is rejected.

    Raises:
        ValueError: naming the argument.
    """
    expected = {None: f"(..., {embedding_dim})", 1: f"(n, {embedding_dim})"}[batch_dims]
    if z.ndim == 0 or z.shape[-1] != embedding_dim or (batch_dims is not None and z.ndim != batch_dims + 1):
        raise ValueError(f"{name}: got shape {tuple(z.shape)}, expected {expected}")
    if not z.is_floating_point():
        raise ValueError(f"{name}: got dtype {z.dtype}, expected floating point; convert it with .float()")
    if batch_dims == 1 and z.shape[0] == 0:
        raise ValueError(f"{name}: got an empty batch {tuple(z.shape)}, expected at least one sample")


def check_labels(labels: Tensor, size: int, num_classes: int, *, name: str) -> None:
    """Check that `labels` are `size` class numbers from 0 to `num_classes` - 1 (the range only if it is readable).

    Raises:
        ValueError: naming the argument.
    """
    if labels.shape != (size,) or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name}: got shape {tuple(labels.shape)} and dtype {labels.dtype}, "
            f"expected ({size},) class numbers of integer dtype"
        )
    if size and is_readable(labels):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"{name}: got class numbers from {low} to {high}, expected 0 to {num_classes - 1}; "
                "leave unlabelled samples (-1) out, or assign them by prediction"
            )
