"""Where values stand among sorted ones: `torch.searchsorted`, and the same as plain arithmetic for graphs that are exported."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.numerics.checks import is_traced


def count_below(ordered: Float[Tensor, " m"], values: Float[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """How many of `ordered` are smaller than each of `values`.

    Args:
        ordered: in ascending order, without NaN; m of at least 1.
        values: without NaN.
    """
    # ONNX knows no sorted search.
    return _bisect(ordered, values) if is_traced() else torch.searchsorted(ordered, values)


def _bisect(ordered: Tensor, values: Tensor) -> Tensor:
    """Binary search in log2(m) rounds, in memory for n numbers: comparing all pairs would take n * m."""
    rounds = len(ordered).bit_length()
    # Nothing is larger than infinity: what fills up to 2^rounds - 1 is never counted, and no round reads past the end.
    filled = F.pad(ordered, (0, 2**rounds - 1 - len(ordered)), value=torch.inf)
    below = torch.zeros_like(values, dtype=torch.int64)
    for step in (2**bit for bit in reversed(range(rounds))):
        below = below + step * (filled.index_select(0, below + (step - 1)) < values).long()
    return below
