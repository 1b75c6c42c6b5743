"""Scaling of features by their spread in the training data, robust to absurd values."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float64

from momatch.estimator.samples import WeightedSet

Scale = Literal["auto", "global", "feature"]
SCALES: tuple[str, ...] = get_args(Scale)

_LARGEST = np.finfo(np.float64).max
#: A feature is constant if its values differ by no more than this, relative to the largest.
_ROUNDING = 8 * np.finfo(np.float64).eps
#: Features share a unit if the median standard deviation is at least this fraction of the largest.
_ALIKE = 0.3
#: Values farther from the median than _ABSURD times the _USUAL quantile of the distances are clipped. Otherwise a number in
#: the wrong unit, or 1e9 for "missing", would dominate the standard deviation.
_ABSURD, _USUAL = 20.0, 0.95


@dataclass(frozen=True)
class Scaling:
    """Clips absurd values, subtracts the mean of each feature and divides by a standard deviation.

    Attributes:
        low: (F,) values below are clipped.
        high: (F,) values above are clipped.
        mean: (F,) weighted mean of each feature.
        factor: (F,) multiplier after subtracting the mean; 0 for constant features.
        deviation: (F,) standard deviation of the scaled features.
        scale: "global" or "feature".
    """

    low: Float64[np.ndarray, " F"]
    high: Float64[np.ndarray, " F"]
    mean: Float64[np.ndarray, " F"]
    factor: Float64[np.ndarray, " F"]
    deviation: Float64[np.ndarray, " F"]
    scale: str

    #: Scaled values are clipped to +-LIMIT, so that no input can overflow.
    LIMIT = 1e6

    @classmethod
    def of(cls, samples: WeightedSet, scale: Scale) -> "Scaling":
        """The scaling of a weighted set.

        Args:
            samples: the data.
            scale: "feature": divide each feature by its standard deviation. "global": divide all by the root of the mean
                variance, which does not blow up features that hardly vary. "auto": "global" if the features seem to share a
                unit, that is, if the median standard deviation (of features that vary) is at least 0.3 of the largest.
        """
        low, high = _bounds(samples)
        x = np.clip(samples.x, low, high)
        largest = np.abs(x).max(axis=0)
        unit = np.where(largest > 0, largest, 1.0)  # squares of values near the float64 limit would overflow
        share = samples.weight / samples.weight.sum()
        relative = x / unit
        mean = share @ relative
        deviation = np.sqrt(share @ (relative - mean) ** 2)
        varies = np.ptp(relative, axis=0) > _ROUNDING
        mean, deviation = mean * unit, deviation * unit * varies
        if scale == "auto":
            alike = np.median(deviation[varies]) >= _ALIKE * deviation.max() if varies.any() else False
            scale = "global" if alike else "feature"
        if scale == "global":
            top = deviation.max() or 1.0
            by = np.full_like(deviation, top * np.sqrt(np.mean((deviation / top) ** 2)))
        else:
            by = deviation
        with np.errstate(over="ignore"):  # 1 / subnormal
            factor = np.minimum(np.divide(1.0, by, out=np.zeros_like(by), where=varies), _LARGEST)
        return cls(low, high, mean, factor, deviation * factor, scale)

    def __call__(self, x: Float64[np.ndarray, "n F"]) -> Float64[np.ndarray, "n F"]:
        """Scaled features."""
        with np.errstate(over="ignore"):  # infinite distances are clipped
            distance = np.clip(np.clip(x, self.low, self.high) - self.mean, -_LARGEST, _LARGEST)
            scaled: np.ndarray[Any, Any] = np.clip(distance * self.factor, -self.LIMIT, self.LIMIT)
        return scaled


def _bounds(samples: WeightedSet) -> tuple[Float64[np.ndarray, " F"], Float64[np.ndarray, " F"]]:
    """Plausible range of each feature.

    Values equal to the median are ignored in judging the spread, so that a feature that is mostly 0 is judged by the others.
    """
    weight = np.broadcast_to(samples.weight[:, None], samples.x.shape)
    median = weighted_quantile(samples.x, weight, 0.5)
    with np.errstate(over="ignore"):  # an infinite bound clips nothing
        distance = np.abs(samples.x - median)
        usual = weighted_quantile(distance, weight * (distance > _ROUNDING * np.abs(median)), _USUAL)
        # Do not clip features that vary only by rounding.
        reach = _ABSURD * np.where(usual > 0, usual, np.inf)
        return median - reach, median + reach


def weighted_quantile(
    values: Float64[np.ndarray, "n F"], weight: Float64[np.ndarray, "n F"], share: float
) -> Float64[np.ndarray, " F"]:
    """Weighted quantile of each column."""
    found = np.empty(values.shape[1])
    # Column by column: together they do not fit in the cache, which takes three times as long.
    for place, (column, of_column) in enumerate(zip(values.T, weight.T, strict=True)):
        order = np.argsort(column, kind="stable")
        below = np.cumsum(of_column[order])
        found[place] = column[order[np.searchsorted(below, share * below[-1])]]
    return found
