"""Which images are near each other."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.special import expit

#: Neighbours that tell how dense it is around an image.
NEIGHBORS = 20
#: Images nearer to each other than this share of the usual distance are near duplicates. A photograph and its copy in another
#: format or JPEG quality are 0.2 to 0.4 apart (their weak views differ), two photographs at least 0.44, mostly 1.
NEAR = 0.4
#: Deviations above the median at which the log distance to the neighbours makes an image as likely an outlier as not. In
#: features of ordinary photographs none reach it.
_FAR, _SOFTNESS = 5.0, 0.25
#: Least deviation of the log distances: smaller differences say nothing.
_LEAST_DEVIATION = 0.02


@dataclass(frozen=True)
class Neighborhood:
    """Rows of a table and the nearest other rows of each.

    Attributes:
        components: (M, C) principal components of the rows.
        table: (M, C) what is compared, by Euclidean distance: their directions.
        distance: (M, k) to the nearest other rows, ascending.
        neighbors: (M, k) their numbers.
    """

    components: Float64[np.ndarray, "M C"]
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

    @cached_property
    def usual_distance(self) -> float:
        """Root mean square distance to the mean; within clusters that are denser, the median to the farthest neighbour."""
        spread = float(np.sqrt(((self.table - self.table.mean(0)) ** 2).sum(1).mean()))
        return min(spread, float(np.median(self.distance[:, -1]))) if self.distance.shape[1] else spread

    def is_near(self, rows: Int64[np.ndarray, " m"]) -> Bool[np.ndarray, " M"]:
        """Which rows are one of `rows`, or near duplicates of one."""
        is_near = np.zeros(len(self.table), bool)
        limit = (NEAR * self.usual_distance) ** 2
        for row in rows:
            is_near |= ((self.table - self.table[row]) ** 2).sum(1) <= limit
        is_near[rows] = True
        return is_near
