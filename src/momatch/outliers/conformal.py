"""Ranks among sorted values: `torch.searchsorted`, and an equivalent that can be exported to ONNX."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.numerics.checks import is_traced


def count_below(ordered: Float[Tensor, " m"], values: Float[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Number of elements of `ordered` that are smaller than each of `values`.

    Args:
        ordered: ascending, without NaN, not empty.
        values: without NaN.
    """
    # ONNX has no searchsorted.
    return _bisect(ordered, values) if is_traced() else torch.searchsorted(ordered, values)


def _bisect(ordered: Tensor, values: Tensor) -> Tensor:
    """Binary search in log2(m) rounds and O(n) memory."""
    rounds = len(ordered).bit_length()
    # Padding with infinity to 2^rounds - 1 elements is never counted, and keeps reads in bounds.
    filled = F.pad(ordered, (0, 2**rounds - 1 - len(ordered)), value=torch.inf)
    below = torch.zeros_like(values, dtype=torch.int64)
    for step in (2**bit for bit in reversed(range(rounds))):
        below = below + step * (filled.index_select(0, below + (step - 1)) < values).long()
    return below
