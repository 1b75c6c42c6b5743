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


@dataclass(frozen=True)
class Scaling:
    """Subtracts the mean of each feature and divides by a standard deviation.

    Attributes:
        mean: (F,) weighted mean of each feature.
        factor: (F,) what the distance from the mean is multiplied by; 0 for a constant feature, which then says nothing.
        deviation: (F,) standard deviation of the scaled features.
        scale: "global" or "feature".
    """

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
        largest = np.abs(samples.x).max(axis=0)
        unit = np.where(largest > 0, largest, 1.0)  # values near the limits of float64 have squares too
        share = samples.weight / samples.weight.sum()
        relative = samples.x / unit
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
        factor = np.divide(1.0, by, out=np.zeros_like(by), where=varies)
        return cls(mean, factor, deviation * factor, scale)

    def __call__(self, x: Float64[np.ndarray, "n F"]) -> Float64[np.ndarray, "n F"]:
        """Scaled features."""
        with np.errstate(over="ignore"):  # an infinite distance is cut off as any other
            distance = np.clip(x - self.mean, -_LARGEST, _LARGEST)
            scaled: np.ndarray[Any, Any] = np.clip(distance * self.factor, -self.LIMIT, self.LIMIT)
        return scaled
