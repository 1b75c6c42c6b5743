"""How much of a pool is outliers, and which: two Gaussians in one score, as far as there is evidence for them (docs/method.md).

Both components are found by EM over the pool; labelled samples, which are known inliers, belong to the lower one. Scores of
inliers alone are never quite Gaussian, so two components always fit better than one, and the upper one may be nothing but the
less ordinary inliers. The labelled samples tell: outliers are only as much of the upper component as it has more of the pool
than of them.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

#: Fewer labelled or pool samples than this say nothing.
_FEWEST = 5
#: Gain in mean log-likelihood over one Gaussian: no evidence, full evidence. Clean pools reached 0.027, if not for `_UPPER`.
_GAIN = (0.02, 0.035)
#: Distance of the means in units of the components' common deviation (Ashman's D): no evidence, full evidence.
_APART = (0.5, 0.9)
#: Share of inliers in the upper component: no evidence, full evidence. It is known to about 0.1 from 24 labelled samples.
_UPPER = (0.85, 0.65)
#: Extra parameters of two components, which gain as much log-likelihood over all samples by chance.
_EXTRA_PARAMETERS = 3
#: Quantiles of the pool that give a width of the inliers, and how many deviations they are apart: 1.01 if all of the pool is
#: inliers, 1.33 if two fifths are. Then the deviations from the upper quantile to the mean: 1.04 and 0.67.
_LOW, _HIGH, _BETWEEN, _TO_MEAN = 0.02, 0.15, 1.15, 0.85
#: Scores are clipped so many such deviations below and above that mean: a Gaussian has no room for a long tail.
_BELOW, _ABOVE = 3.0, 6.0
#: All labelled samples together weigh as much as this share of the pool in the lower component.
_LABELED_WEIGHT = 0.25
#: Quantiles at which the pool is divided to begin EM; the best result counts.
_BEGINNINGS = (0.5, 0.7, 0.85)
#: The upper component is at most so many times as wide as the lower one: if it were as wide as all of the pool, it would take
#: its part of the most ordinary samples.
_WIDEST = 1.25
#: Least variance of a component, as a share of the pool's.
_LEAST_VARIANCE = 0.01
#: EM runs over at most so many samples.
_MOST_SAMPLES = 5000
_STEPS = 300
_TOLERANCE = 1e-7


@dataclass(frozen=True)
class TwoGaussians:
    """Two components of a pool's scores; the lower one first.

    Attributes:
        means: of the components.
        variances: of the components.
        upper_share: of the pool.
        log_likelihood: per pool sample, with that of the labelled samples.
        gain: of the pool's mean log-likelihood over one Gaussian, less what is gained by chance.
    """

    means: tuple[float, float]
    variances: tuple[float, float]
    upper_share: float
    log_likelihood: float
    gain: float

    def lower(self, scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Posterior of the lower component, not increasing with the score: 1 below its mean, and 0 for +inf and NaN."""
        scores, share = scores.detach().double().cpu(), self.upper_share
        low, high = self.means
        # Between the means it decreases. Outside, the wider component would win, however far a score is from its mean.
        inside = scores.nan_to_num(nan=math.inf).clamp(low, high)
        low_log, high_log = (_log_gaussian(inside - m, v) for m, v in zip(self.means, self.variances, strict=True))
        posterior = torch.sigmoid(low_log - high_log + math.log(1.0 - share) - math.log(share))
        posterior = torch.where(scores <= low, 1.0, posterior)
        return torch.where(scores.isnan() | (scores == math.inf), 0.0, posterior)

    def outlier_share(self, labeled: Float[Tensor, " m"]) -> float:
        """Share of the pool that is outliers.

        Inliers are in the lower component as often as labelled samples are, and they are all that is in it.

        Args:
            labeled: scores of labelled samples by judges that have not seen them.
        """
        in_lower = max(float(self.lower(labeled).mean()), _TOLERANCE)
        return max(1.0 - (1.0 - self.upper_share) / in_lower, 0.0)

    def evidence(self, labeled: Float[Tensor, " m"]) -> float:
        """From 0 to 1: how sure it is that the upper component is outliers; `labeled` as for `outlier_share`."""
        labeled = labeled[labeled.isfinite()]
        if len(labeled) < _FEWEST:
            return 0.0
        (low, high), deviation = self.means, math.sqrt(0.5 * sum(self.variances))
        inliers_of_upper = 1.0 - self.outlier_share(labeled) / self.upper_share
        return _ramp(self.gain, _GAIN) * _ramp((high - low) / deviation, _APART) * _ramp(inliers_of_upper, _UPPER)


@torch.no_grad()
def two_gaussians(pool: Float[Tensor, " n"], labeled: Float[Tensor, " m"] | None = None) -> TwoGaussians | None:
    """The components of a pool's scores; None if it has fewer than five finite ones, they are all equal, or are one component.

    Args:
        pool: scores, higher for outliers and roughly Gaussian for inliers, such as log distances.
        labeled: those of labelled samples, by judges that have not seen them; None to do without.
    """
    scores, known = (x.detach().double().cpu() for x in (pool, pool[:0] if labeled is None else labeled))
    scores, known = scores[scores.isfinite()], known[known.isfinite()]
    if len(scores) < _FEWEST:
        return None
    # Sorted, so that the share of the samples that is used does not depend on their order.
    scores = _clipped(scores.sort().values[:: max(1, -(-len(scores) // _MOST_SAMPLES))])
    if float(scores.var()) == 0:
        return None
    known = known.clamp(float(scores.min()), float(scores.max()))
    fits = (_expectation_maximization(scores, known, begin) for begin in _BEGINNINGS)
    return max((fit for fit in fits if fit is not None), key=lambda fit: fit.log_likelihood, default=None)


def _clipped(scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Scores without the tails: duplicates of labelled samples below, and what is far out above."""
    low, high = scores.quantile(torch.tensor([_LOW, _HIGH], dtype=scores.dtype)).tolist()
    width = (high - low) / _BETWEEN
    mean = high + _TO_MEAN * width
    return scores.clamp(mean - _BELOW * width, mean + _ABOVE * width) if width > 0 else scores


def _expectation_maximization(
    scores: Float[Tensor, " n"], known: Float[Tensor, " m"], begin: float
) -> TwoGaussians | None:
    """From the lower and the upper part of the pool; None if the component of the known samples became the upper one."""
    variance = float(scores.var())
    # Known samples are of the lower component, and each weighs as much as several of the pool.
    each = _LABELED_WEIGHT * len(scores) / max(len(known), 1)
    values = torch.cat([scores, known])
    fixed = torch.stack([torch.full_like(known, each), torch.zeros_like(known)])  # (2, m)
    # Not ">": far outliers are all clipped to the highest score, and may be more than half.
    upper = (scores >= scores.quantile(begin)).double()
    before, after, objective = -math.inf, -math.inf, -math.inf
    means = variances = share = torch.zeros(2).double()
    for _ in range(_STEPS):
        of_pool = torch.stack([1.0 - upper, upper])  # (2, n)
        share = (of_pool.sum(1) + _TOLERANCE) / (len(scores) + 2 * _TOLERANCE)
        weight = torch.cat([of_pool, fixed], 1)
        mass = weight.sum(1) + _TOLERANCE
        means = weight @ values / mass
        deviation = values - means.unsqueeze(1)
        variances = ((weight * deviation.square()).sum(1) / mass).clamp_min(_LEAST_VARIANCE * variance)
        variances[1].clamp_(max=_WIDEST**2 * float(variances[0]))
        log_density = _log_gaussian(deviation, variances.unsqueeze(1))  # (2, n + m)
        log_joint = log_density[:, : len(scores)] + share.log().unsqueeze(1)
        log_total = torch.logaddexp(log_joint[0], log_joint[1])
        upper = (log_joint[1] - log_total).exp()
        after = float(log_total.mean())
        objective = after + float((fixed[0] * log_density[0, len(scores) :]).sum()) / len(scores)
        if objective - before < _TOLERANCE:
            break
        before = objective
    if means[0] >= means[1]:
        return None
    one = float(_log_gaussian(scores - scores.mean(), variance).mean())
    return TwoGaussians(
        means=(float(means[0]), float(means[1])),
        variances=(float(variances[0]), float(variances[1])),
        upper_share=float(share[1]),
        log_likelihood=objective,
        gain=after - one - _EXTRA_PARAMETERS / len(scores),
    )


def _log_gaussian(deviation: Tensor, variance: Tensor | float) -> Tensor:
    variance = torch.as_tensor(variance, dtype=deviation.dtype)
    return -0.5 * (deviation.square() / variance + variance.log() + math.log(2.0 * math.pi))


def _ramp(value: float, between: tuple[float, float]) -> float:
    """0 on the one side of the interval, 1 on the other."""
    none, full = between
    return min(max((value - none) / (full - none), 0.0), 1.0)
