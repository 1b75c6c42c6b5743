"""How much of a pool is outliers, and which: two Gaussians in one score, as far as there is evidence for them (docs/method.md).

Both components are found by EM over the pool; labelled samples, which are known inliers, belong to the lower one. Scores of
inliers alone are never quite Gaussian, so two components always fit better than one, and the upper one may be nothing but the
less ordinary inliers. The labelled samples tell: outliers are only as much of the upper component as it has more of the pool
than of them.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Integer
from torch import Tensor

#: Fewer labelled or pool samples than this say nothing.
_FEWEST = 5
#: Gain in mean log-likelihood over one Gaussian: no evidence, full evidence. Clean pools reached 0.027, if not for `_UPPER`.
_GAIN = (0.02, 0.035)
#: Distance of the means: no evidence, full evidence.
_APART = (0.5, 0.9)
#: Least evidence of outliers that is acted on; and posterior of the component that a sample belongs to.
_LIKELY = 0.5
#: Kinds of outliers, by their distance, that are looked for one after the other.
_MOST_KINDS = 3
#: Share of inliers in the upper component: no evidence, full evidence. It is known to about 0.1 from 24 labelled samples.
_UPPER = (0.85, 0.65)
#: To be sure, where labels may not have been drawn at random: the share of labelled samples that are in the lower component;
#: and the gain, or, because few outliers gain little, the distance of the means. No evidence, full evidence. Clean pools of
#: digits with the labels of a few writers had 0.84 to 0.90, 0.05 to 0.09 and up to 3.1; pools with junk 0.93, 0.09 or more.
_KEPT, _SURE_GAIN, _FAR_APART = (0.88, 0.94), (0.06, 0.10), (3.2, 3.8)
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
        low_log, high_log = (
            _log_gaussian((inside - m).square(), v) for m, v in zip(self.means, self.variances, strict=True)
        )
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

    @property
    def apart(self) -> float:
        """Distance of the means in units of the components' common deviation (Ashman's D)."""
        return (self.means[1] - self.means[0]) / math.sqrt(0.5 * sum(self.variances))

    def evidence(self, labeled: Float[Tensor, " m"]) -> float:
        """From 0 to 1: how sure it is that the upper component is outliers.

        Args:
            labeled: as for `outlier_share`.
        """
        labeled = labeled[labeled.isfinite()]
        if len(labeled) < _FEWEST:
            return 0.0
        inliers_of_upper = 1.0 - self.outlier_share(labeled) / self.upper_share
        return _ramp(self.gain, _GAIN) * _ramp(self.apart, _APART) * _ramp(inliers_of_upper, _UPPER)

    def strict_evidence(self, labeled: Float[Tensor, " m"], classes: Integer[Tensor, " m"]) -> float:
        """As `evidence`, where taking inliers for outliers does more harm than the other way round.

        All classes have the same say in how many of the labelled samples are in the lower component: one with few labels may
        look like outliers as a whole.

        Args:
            labeled: as for `outlier_share`.
            classes: of these.
        """
        evidence, is_finite = self.evidence(labeled), labeled.isfinite()
        if evidence == 0.0:
            return 0.0
        classes, in_lower = classes[is_finite], self.lower(labeled[is_finite])
        kept = float(torch.stack([in_lower[classes == k].mean() for k in classes.unique()]).mean())
        is_clear = max(_ramp(self.gain, _SURE_GAIN), _ramp(self.apart, _FAR_APART))
        return evidence * _ramp(kept, _KEPT) * is_clear


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


@torch.no_grad()
def inlier_component(
    pool: Float[Tensor, " n"], labeled: Float[Tensor, " m"], classes: Integer[Tensor, " m"]
) -> TwoGaussians | None:
    """The inliers of a pool against all of its outliers, which may be of several kinds; None without evidence of any.

    The components of the whole pool may tell the farthest outliers from all the rest. So what is more likely an outlier than
    not is taken away, and the rest is looked at again.

    Args:
        pool: scores, as for `two_gaussians`.
        labeled: those of labelled samples, as if the judge had not seen them.
        classes: of these.
    """
    found, rest = None, pool.detach().double().cpu()
    for _ in range(_MOST_KINDS):
        fit = two_gaussians(rest, labeled)
        if fit is None or fit.strict_evidence(labeled, classes) < _LIKELY:
            break
        found, rest = fit, rest[fit.lower(rest) >= _LIKELY]
    return found


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
    n = len(scores)
    # Known samples are of the lower component, and each weighs as much as several of the pool.
    each = _LABELED_WEIGHT * n / max(len(known), 1)
    # Not ">": far outliers are all clipped to the highest score, and may be more than half.
    upper = (scores >= scores.quantile(begin)).double()
    before, after, objective = -math.inf, -math.inf, -math.inf
    low = high = share = low_variance = high_variance = 0.0
    for _ in range(_STEPS):
        lower, in_upper = 1.0 - upper, float(upper.sum())
        share = (in_upper + _TOLERANCE) / (n + 2 * _TOLERANCE)
        mass, high_mass = n - in_upper + each * len(known) + _TOLERANCE, in_upper + _TOLERANCE
        low, high = float(lower @ scores + each * known.sum()) / mass, float(upper @ scores) / high_mass
        squared, of_known, high_squared = (scores - low).square(), (known - low).square(), (scores - high).square()
        low_variance = float(lower @ squared + each * of_known.sum()) / mass
        low_variance = max(low_variance, _LEAST_VARIANCE * variance)
        high_variance = max(float(upper @ high_squared) / high_mass, _LEAST_VARIANCE * variance)
        high_variance = min(high_variance, _WIDEST**2 * low_variance)
        log_low = _log_gaussian(squared, low_variance) + math.log1p(-share)
        log_high = _log_gaussian(high_squared, high_variance) + math.log(share)
        log_total = torch.logaddexp(log_low, log_high)
        upper = (log_high - log_total).exp()
        after = float(log_total.mean())
        objective = after + each * float(_log_gaussian(of_known, low_variance).sum()) / n
        if objective - before < _TOLERANCE:
            break
        before = objective
    if low >= high:
        return None
    one = float(_log_gaussian((scores - scores.mean()).square(), variance).mean())
    return TwoGaussians(
        means=(low, high),
        variances=(low_variance, high_variance),
        upper_share=share,
        log_likelihood=objective,
        gain=after - one - _EXTRA_PARAMETERS / n,
    )


def _log_gaussian(squared: Float[Tensor, " n"], variance: float) -> Float[Tensor, " n"]:
    """Log density, from the squared distance to the mean."""
    return squared * (-0.5 / variance) - 0.5 * math.log(2.0 * math.pi * variance)


def _ramp(value: float, between: tuple[float, float]) -> float:
    """0 on the one side of the interval, 1 on the other."""
    none, full = between
    return min(max((value - none) / (full - none), 0.0), 1.0)
