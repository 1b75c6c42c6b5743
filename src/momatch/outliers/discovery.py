"""False-discovery-rate control: select outliers so that few of them are inliers (docs/method.md, "Outliers")."""

from collections.abc import Sequence
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from momatch.numerics.checks import check_fraction


@overload
def benjamini_hochberg(p_values: Float[Tensor, " n"], fdr: float) -> Bool[Tensor, " n"]: ...
@overload
def benjamini_hochberg(p_values: Any, fdr: float) -> Any: ...
def benjamini_hochberg(p_values: Any, fdr: float) -> Any:
    """Reject hypotheses so that the expected fraction of false rejections is at most `fdr`.

    Rejects the k smallest p-values, where k is the largest rank with p_(k) <= k fdr / n.

    Args:
        p_values: (n,), a tensor, numpy array or list.
        fdr: allowed false-discovery rate, 0 to 1.

    Returns:
        True where rejected, (n,): a tensor for a tensor, otherwise a numpy array.

    Raises:
        ValueError: if `fdr` is not in [0, 1], or there are no p-values.
    """
    if isinstance(p_values, Tensor):
        return _smallest(p_values, fdr)
    # Python floats are float64; arrays keep their dtype.
    return _smallest(torch.tensor(p_values, dtype=None if hasattr(p_values, "dtype") else torch.float64), fdr).numpy()


def _smallest(p_values: Tensor, fdr: float) -> Tensor:
    check_fraction("fdr", fdr)
    n = p_values.numel()
    if p_values.ndim != 1 or n == 0:
        raise ValueError(f"p_values: got shape {tuple(p_values.shape)}, expected (n,) with n of at least 1")
    ordered = p_values.sort().values
    passes = _passes(ordered, torch.arange(1, n + 1), fdr)
    # The largest p-value that passes, or -1 if none does.
    cut = torch.where(passes, ordered, -torch.ones_like(ordered)).amax()
    return p_values <= cut


def _passes(ordered: Float[Tensor, " k"], ranks: Shaped[Tensor, " k"], fdr: float) -> Bool[Tensor, " k"]:
    """Where p <= rank fdr / n.

    Args:
        ordered: p-values, ascending.
        ranks: number of p-values at most as large as each; the last is n.
        fdr: allowed false-discovery rate.
    """
    # Computed in float64 and rounded once: conformal p-values often equal their bound exactly.
    return ordered <= (ranks.double() * fdr / ranks[-1]).to(ordered)


class ConformalCounts:
    """Benjamini-Hochberg over a stream of conformal p-values, in constant memory.

    The p-values are k / (m + 1) for k = 1 to m + 1, so it only counts each k.

    Args:
        calibration_size: m.
    """

    def __init__(self, calibration_size: int) -> None:
        self._steps = calibration_size + 1
        self._counts = torch.zeros(self._steps + 1, dtype=torch.int64)

    def add(self, p_values: Sequence[float]) -> None:
        """Count some p-values."""
        ranks = (torch.tensor(p_values, dtype=torch.float64) * self._steps).round().long()
        self._counts += torch.bincount(ranks, minlength=self._steps + 1)

    def cut(self, fdr: float) -> float:
        """The largest p-value that Benjamini-Hochberg rejects; -1 if it rejects none.

        Raises:
            ValueError: if `fdr` is not in [0, 1].
        """
        check_fraction("fdr", fdr)
        p_values = torch.arange(self._steps + 1, dtype=torch.float64) / self._steps
        # In float32, like the p-values of a detector in `benjamini_hochberg`.
        passes = _passes(p_values.float(), self._counts.cumsum(0), fdr) & (self._counts > 0)
        return float(torch.where(passes, p_values, -1.0).amax())
