"""How much of a pool is outliers, and which: two components in one score, anchored by labelled inliers (docs/method.md).

The score of inliers is taken to be Gaussian, that of outliers a Gaussian that lies higher and is at least as wide. EM finds
both and the share of outliers. Labelled samples are known inliers: they keep the first component where it belongs, also if
most of the pool is outliers.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

#: Weight of all labelled samples together, as a fraction of the pool, so that few of them anchor a large pool.
_ANCHOR = 0.2
#: Fewest deviations between the components: outliers that are no farther cannot be told apart.
_LEAST_SHIFT = 1.5
_STEPS = 200
_TINY = 1e-12


@torch.no_grad()
def inlier_probability(pool: Float[Tensor, " n"], labeled: Float[Tensor, " m"]) -> tuple[Float[Tensor, " n"], float]:
    """P(inlier | score) of each pool sample, and the estimated share of outliers in the pool.

    Args:
        pool: outlier scores, higher for outliers; +inf counts as an outlier.
        labeled: scores of labelled samples, from the same judge.

    Raises:
        ValueError: if there are no labelled samples, or one has a score that is not finite.
    """
    if len(labeled) == 0 or not bool(labeled.isfinite().all()):
        raise ValueError(f"labeled: got {len(labeled)} scores, expected at least one, all finite")
    pool, labeled = pool.double().cpu(), labeled.double().cpu()
    finite = pool[pool.isfinite()]
    if len(finite) < 2:
        return torch.where(pool.isfinite(), 1.0, 0.0), float((~pool.isfinite()).double().mean())
    anchor = max(1.0, _ANCHOR * len(finite) / len(labeled))
    scale = _spread(labeled, finite)
    center, width = float(labeled.median()), scale
    high = max(float(finite.quantile(0.9)), center + 2 * _LEAST_SHIFT * width)
    wide, share = max(float(finite.std()), width), 0.1
    for _ in range(_STEPS):
        inlier = torch.sigmoid(_log_odds(finite, center, width, high, wide, share))
        before = share
        share = float((1 - inlier).mean())
        mass = float(inlier.sum()) + anchor * len(labeled)
        center = float((inlier @ finite + anchor * labeled.sum()) / mass)
        squares = inlier @ (finite - center).square() + anchor * (labeled - center).square().sum()
        width = max(float(squares / mass) ** 0.5, 0.1 * scale)
        rest = float((1 - inlier).sum()) + _TINY
        high = max(float((1 - inlier) @ finite / rest), center + _LEAST_SHIFT * width)
        wide = max(float((1 - inlier) @ (finite - high).square() / rest) ** 0.5, width)
        share = min(max(share, _TINY), 1 - _TINY)
        if abs(share - before) < 1e-6:
            break
    probability = torch.sigmoid(
        _log_odds(pool.nan_to_num(posinf=1e300, neginf=-1e300), center, width, high, wide, share)
    )
    # A wide second component also reaches below the first: nothing is as ordinary as an ordinary sample.
    probability = torch.where(pool <= center, 1.0, probability)
    probability = torch.where(pool.isfinite(), probability, 0.0)
    return probability, float((1 - probability).mean())


def _log_odds(
    scores: Tensor, center: float, width: float, high: float, wide: float, share: float
) -> Float[Tensor, " n"]:
    """log P(inlier | score) - log P(outlier | score)."""
    inlier = -0.5 * ((scores - center) / width).square() - math.log(width) + math.log(1 - share)
    return inlier + 0.5 * ((scores - high) / wide).square() + math.log(wide) - math.log(share)


def _spread(labeled: Tensor, pool: Tensor) -> float:
    """A first guess at the deviation of inliers; for one labelled sample, or equal ones, from the pool."""
    deviation = float(labeled.std()) if len(labeled) > 1 else 0.0
    return deviation or float((pool - labeled.median()).abs().median()) or 1.0
