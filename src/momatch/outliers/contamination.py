"""How much of a pool is outliers, and which: two components in one score, anchored by labelled inliers (docs/method.md).

The first component is a Gaussian and stays as it is. Its width comes from the lowest scores of the pool, among which there are
no outliers. Its mean is that of labelled samples, which are known inliers, but not far below what the lowest scores say. The
second, a Gaussian that lies higher and is at least as wide, and its share are found by EM over the pool.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

#: Fewest deviations between the components: outliers that are nearer cannot be told apart.
_APART = 2.5
#: Fewer labelled samples than this say nothing about a mean.
_FEWEST = 5
#: Quantiles of the pool that give the inliers' width, and how many deviations they are apart: 1.01 if all of the pool is
#: inliers, 1.33 if two fifths are.
_LOW, _HIGH, _DEVIATIONS = 0.02, 0.15, 1.15
#: Deviations from the upper of them to the inliers' mean: 1.04 if all of the pool is inliers, 0.67 if three fifths are.
_TO_MEAN = 0.85
#: Fewer pool samples than this have no such quantiles; the labelled samples must do.
_FEWEST_FOR_QUANTILES = 100
_STEPS = 200
_TOLERANCE = 1e-6


@torch.no_grad()
def inlier_probability(pool: Float[Tensor, " n"], labeled: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
    """P(inlier | score) of each pool sample; 1 - its mean is the estimated share of outliers.

    Args:
        pool: scores, higher for outliers and roughly Gaussian for inliers, such as log distances; +inf or NaN is an outlier.
        labeled: scores of labelled samples under the same judge, each left out of its fit. With fewer than five finite ones
            there is nothing to compare with, and every finite score gets 1.

    Returns:
        In float64 on the CPU, not increasing with the score.
    """
    pool, labeled = pool.detach().double().cpu(), labeled.detach().double().cpu()
    labeled = labeled[labeled.isfinite()]
    known = pool.isfinite() | (pool == -torch.inf)
    probability = known.double()
    finite = pool[pool.isfinite()]
    if len(labeled) >= _FEWEST and len(finite) >= _FEWEST and float(labeled.std()) > 0:
        mean, width = _inliers(finite, labeled)
        probability[pool.isfinite()] = _fit((finite - mean) / width)
    return probability


def _inliers(pool: Float[Tensor, " n"], labeled: Float[Tensor, " m"]) -> tuple[float, float]:
    """Mean and deviation of the pool's inliers; the deviation within a factor of 2 of the labelled samples', which are few."""
    mean, deviation = float(labeled.mean()), float(labeled.std())
    if len(pool) < _FEWEST_FOR_QUANTILES:
        return mean, deviation
    low, high = pool.quantile(torch.tensor([_LOW, _HIGH], dtype=pool.dtype)).tolist()
    width: float = (high - low) / _DEVIATIONS
    width = min(max(width, 0.5 * deviation), 2.0 * deviation)
    return max(mean, high + _TO_MEAN * width), width


def _fit(scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """P(inlier) for scores in units of the inliers' component, which is N(0, 1)."""
    mean = max(float(scores.quantile(0.9)), _APART)
    width = max(1.4826 * float((scores - mean).abs().median()), 1.0)
    share = 0.2
    inlier = torch.ones_like(scores)
    for _ in range(_STEPS):
        inlier = _posterior(scores, mean, width, share)
        outlier, before = 1.0 - inlier, share
        share = min(max(float(outlier.mean()), _TOLERANCE), 1.0 - _TOLERANCE)
        mass = float(outlier.sum()) + _TOLERANCE
        mean = max(float(outlier @ scores) / mass, _APART)
        width = max(math.sqrt(float(outlier @ (scores - mean).square()) / mass), 1.0)
        if abs(share - before) < _TOLERANCE:
            break
    order = scores.argsort()
    inlier[order] = inlier[order].cummin(0).values
    return inlier


def _posterior(scores: Float[Tensor, " n"], mean: float, width: float, share: float) -> Float[Tensor, " n"]:
    log_odds = (
        0.5 * ((scores - mean) / width).square() - 0.5 * scores.square() + math.log(width * (1.0 - share) / share)
    )
    inlier = torch.sigmoid(log_odds)
    # A wide second component reaches below the first, but nothing is more ordinary than an ordinary sample.
    return torch.where(scores <= 0.0, 1.0, torch.where(scores >= mean, inlier.clamp_max(0.5), inlier))
