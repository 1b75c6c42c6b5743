"""False-discovery control: which outliers of a batch to name so that few of them are inliers (docs/method.md, "Outliers")."""

from typing import Any, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from momatch.numerics.checks import check_fraction


@overload
def benjamini_hochberg(p_values: Float[Tensor, " n"], fdr: float) -> Bool[Tensor, " n"]: ...
@overload
def benjamini_hochberg(p_values: Any, fdr: float) -> Any: ...
def benjamini_hochberg(p_values: Any, fdr: float) -> Any:
    """Which hypotheses to reject so that the expected share of false rejections is at most `fdr`.

    Rejects the k smallest p-values, k the largest rank with p_(k) <= k fdr / n.

    Args:
        p_values: (n,), a tensor; or an array of numpy or a list of numbers, as `MoMatchClassifier` gives them.
        fdr: false-discovery rate to allow, 0 to 1.

    Returns:
        True where to reject, (n,): a tensor for a tensor, else an array of numpy.

    Raises:
        ValueError: if `fdr` is not within 0 to 1, or there are no p-values.
    """
    if isinstance(p_values, Tensor):
        return _smallest(p_values, fdr)
    # Numbers of Python are float64; an array says what its numbers are.
    return _smallest(torch.tensor(p_values, dtype=None if hasattr(p_values, "dtype") else torch.float64), fdr).numpy()


def _smallest(p_values: Tensor, fdr: float) -> Tensor:
    check_fraction("fdr", fdr)
    n = p_values.numel()
    if p_values.ndim != 1 or n == 0:
        raise ValueError(f"p_values: got shape {tuple(p_values.shape)}, expected (n,) with n of at least 1")
    ordered = p_values.sort().values
    # Taken in float64 and rounded once: conformal p-values often meet their bound exactly, and must not miss it by a digit.
    bounds = (torch.arange(1, n + 1, dtype=torch.float64) * fdr / n).to(p_values)
    passes = ordered <= bounds
    # The largest p-value that passes; -1, below all of them, if none does.
    cut = torch.where(passes, ordered, -torch.ones_like(ordered)).amax()
    return p_values <= cut
