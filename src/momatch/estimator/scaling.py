"""Features brought to the units that the network, the neighbours and the views work in, from the data's own spread."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float64

from momatch.estimator.samples import WeightedSet

Scale = Literal["auto", "global", "feature"]
SCALES: tuple[str, ...] = get_args(Scale)

_LARGEST = np.finfo(np.float64).max
#: A feature whose values differ by no more than rounding is constant.
_ROUNDING = 8 * np.finfo(np.float64).eps
#: Features share a unit if the typical one varies at least by this share of the one that varies most.
_ALIKE = 0.1
#: Values are cut off beyond so many times the distance from the median that so large a share of the others stays within: a
#: number in the wrong unit, or 1e9 for "missing", would otherwise be all that the deviation tells.
_ABSURD, _USUAL = 20.0, 0.95


@dataclass(frozen=True)
class Scaling:
    """Cuts off absurd values, subtracts the mean of each feature and divides by a standard deviation.

    Attributes:
        low: (F,) smallest value that is not cut off.
        high: (F,) largest one.
        mean: (F,) weighted mean of each feature.
        factor: (F,) what the distance from the mean is multiplied by; 0 for a constant feature, which then says nothing.
        deviation: (F,) standard deviation of the scaled features.
        scale: "global" or "feature".
    """

    low: Float64[np.ndarray, " F"]
    high: Float64[np.ndarray, " F"]
    mean: Float64[np.ndarray, " F"]
    factor: Float64[np.ndarray, " F"]
    deviation: Float64[np.ndarray, " F"]
    scale: str

    #: Beyond so many standard deviations values are cut off, so that no input can overflow.
    LIMIT = 1e6

    @classmethod
    def of(cls, samples: WeightedSet, scale: Scale) -> "Scaling":
        """The scaling of a weighted set.

        Args:
            samples: the data.
            scale: "feature": by each feature's own deviation. "global": all by one number, the root of their mean variance,
                which keeps features that hardly vary from being blown up. "auto": "global" if the features appear to share a
                unit, that is if the median deviation of those that vary is at least a tenth of the largest.
        """
        low, high = _bounds(samples)
        x = np.clip(samples.x, low, high)
        largest = np.abs(x).max(axis=0)
        unit = np.where(largest > 0, largest, 1.0)  # values near the limits of float64 have squares too
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
        with np.errstate(over="ignore"):  # 1 over a subnormal number
            factor = np.minimum(np.divide(1.0, by, out=np.zeros_like(by), where=varies), _LARGEST)
        return cls(low, high, mean, factor, deviation * factor, scale)

    def __call__(self, x: Float64[np.ndarray, "n F"]) -> Float64[np.ndarray, "n F"]:
        """Scaled features."""
        with np.errstate(over="ignore"):  # an infinite distance is cut off as any other
            distance = np.clip(np.clip(x, self.low, self.high) - self.mean, -_LARGEST, _LARGEST)
            scaled: np.ndarray[Any, Any] = np.clip(distance * self.factor, -self.LIMIT, self.LIMIT)
        return scaled


def _bounds(samples: WeightedSet) -> tuple[Float64[np.ndarray, " F"], Float64[np.ndarray, " F"]]:
    """Between which values each feature is believed.

    Values at the median do not tell how far others may be: of a feature that is mostly 0, those that are not count.
    """
    weight = np.broadcast_to(samples.weight[:, None], samples.x.shape)
    median = _quantile(samples.x, weight, 0.5)
    with np.errstate(over="ignore"):  # an infinite bound cuts nothing off
        distance = np.abs(samples.x - median)
        usual = _quantile(distance, weight * (distance > _ROUNDING * np.abs(median)), _USUAL)
        # Features that do not vary by more than rounding are not to be cut to one value of it.
        reach = _ABSURD * np.where(usual > 0, usual, np.inf)
        return median - reach, median + reach


def _quantile(
    values: Float64[np.ndarray, "n F"], weight: Float64[np.ndarray, "n F"], share: float
) -> Float64[np.ndarray, " F"]:
    """Of each column the smallest value that, with all below it, has this share of the weight."""
    order = np.argsort(values, axis=0, kind="stable")
    below = np.cumsum(np.take_along_axis(weight, order, axis=0), axis=0)
    place = np.argmax(below >= share * below[-1], axis=0)
    found: np.ndarray[Any, Any] = np.take_along_axis(values, order, axis=0)[place, np.arange(values.shape[1])]
    return found
