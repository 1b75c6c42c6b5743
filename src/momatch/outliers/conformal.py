"""Conformal p-values: ranks among the sorted scores of held-out inliers, also in a graph that can be exported to ONNX."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.numerics.checks import is_traced


def nan_outlies(scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Outlier scores with +inf for NaN, which is most outlying of all; infinite ones stay."""
    return scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)


def conformal_p_value(calibration_scores: Float[Tensor, " m"], scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """(1 + #{calibration >= score}) / (m + 1) for each of the scores.

    Args:
        calibration_scores: ascending, without NaN, not empty.
        scores: without NaN.
    """
    m = calibration_scores.numel()
    dtype = calibration_scores.dtype
    # In the dtype of the calibration, so that 1/20 in float64 compares equal to 0.05.
    return (1 + m - count_below(calibration_scores, scores.to(dtype))).to(dtype) / (m + 1)


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
