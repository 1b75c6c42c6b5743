"""Which images are near each other."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.special import expit

#: Neighbours that tell how dense it is around an image.
NEIGHBORS = 20
#: Images nearer to each other than this share of the root mean square distance to the mean are near duplicates: a photograph
#: and its copy at another JPEG quality are about 0.2 apart, a photograph and the most similar one of 2,000 about 0.8.
NEAR = 0.25
#: Deviations above the median at which the log distance to the neighbours makes an image as likely an outlier as not. In
#: features of ordinary photographs none reach it.
_FAR, _SOFTNESS = 5.0, 0.25
#: Least deviation of the log distances: smaller differences say nothing.
_LEAST_DEVIATION = 0.02


@dataclass(frozen=True)
class Neighborhood:
    """Rows of a table and the nearest other rows of each.

    Attributes:
        table: (M, C) what is compared, by Euclidean distance.
        distance: (M, k) to the nearest other rows, ascending.
        neighbors: (M, k) their numbers.
    """

    table: Float64[np.ndarray, "M C"]
    distance: Float64[np.ndarray, "M k"]
    neighbors: Int64[np.ndarray, "M k"]

    def typicality(self) -> Float64[np.ndarray, " M"]:
        """Higher where it is denser: minus the mean distance to the neighbours."""
        return -self.distance.mean(1) if self.distance.shape[1] else np.zeros(len(self.table))

    def p_inlier(self) -> Float64[np.ndarray, " M"]:
        """1 for nearly all; below one half for rows that are far from all others, by the distance to their neighbours."""
        typicality = self.typicality()
        logarithm = np.log(np.maximum(-typicality, np.finfo(float).tiny))
        median = np.median(logarithm)
        deviation = max(_LEAST_DEVIATION, float(1.4826 * np.median(np.abs(logarithm - median))))
        inlier: np.ndarray = expit((_FAR - (logarithm - median) / deviation) / _SOFTNESS)
        return inlier

    def is_near(self, rows: Int64[np.ndarray, " m"]) -> Bool[np.ndarray, " M"]:
        """Which rows are one of `rows`, or near duplicates of one."""
        is_near = np.zeros(len(self.table), bool)
        centered = self.table - self.table.mean(0)
        limit = NEAR**2 * float((centered**2).sum(1).mean())
        for row in rows:
            is_near |= ((self.table - self.table[row]) ** 2).sum(1) <= limit
        is_near[rows] = True
        return is_near
