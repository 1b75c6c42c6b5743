"""What the guide says of the nearest rows of the pool: how new samples take part in the graph (docs/method.md, "Evidence").

    p(y | x) = sum_j w_j p_j(y) / sum_j w_j,   w_j = exp(-d_j^2 / s^2)

p_j is what the network was taught of row j, d_j its distance, and s half the distance to the last of the nearest rows.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int64

#: New samples per matrix product. Every product has this many, because rounding depends on its shape.
_CHUNK = 256
#: Beyond this, single precision has no more room for products.
_FARTHEST = 1e15


@dataclass(frozen=True)
class Neighborhood:
    """Rows of the pool and what is known of them; can be pickled.

    Attributes:
        table: scaled features.
        taught: class probabilities of each row.
        count: how many of the nearest rows have a say.
    """

    table: Float64[np.ndarray, "m F"]
    taught: Float64[np.ndarray, "m K"]
    count: int

    def __call__(
        self, x: Float64[np.ndarray, "n F"], own: Int64[np.ndarray, " n"] | None = None
    ) -> Float64[np.ndarray, "n K"]:
        """Posterior of samples.

        Args:
            x: scaled features.
            own: for samples that are rows themselves, the number of the row, which then has no say.
        """
        # Candidates in single precision, which takes half the time; around the mean, so that little of it is lost.
        center = self.table.mean(0)
        rows = (self.table - center).astype(np.float32)
        square = np.einsum("mf,mf->m", rows, rows)
        parts = []
        for begin in range(0, len(x), _CHUNK):
            chunk = x[begin : begin + _CHUNK]
            padded = np.zeros((_CHUNK, x.shape[1]), dtype=np.float32)
            padded[: len(chunk)] = np.clip(chunk - center, -_FARTHEST, _FARTHEST)
            # Less the norm of the sample, which all its distances have in common.
            distance = (square - 2.0 * (padded @ rows.T))[: len(chunk)]
            if own is not None:
                distance[np.arange(len(chunk)), own[begin : begin + _CHUNK]] = np.inf
            parts.append(self._mean(chunk, self._nearest(distance)))
        return np.concatenate(parts) if parts else np.empty((0, self.taught.shape[1]))

    def _nearest(self, distance: Float32[np.ndarray, "n m"]) -> Int64[np.ndarray, "n k"]:
        """Numbers of the nearest rows, which have a finite distance; overwrites the distances."""
        samples = np.arange(len(distance))
        k = min(self.count, int(np.isfinite(distance[:1]).sum()))
        found = np.empty((len(distance), k), dtype=np.int64)
        # For a few neighbours several times as fast as to partition the distances.
        for column in found.T:
            column[:] = distance.argmin(1)
            distance[samples, column] = np.inf
        return found

    def _mean(self, x: Float64[np.ndarray, "n F"], rows: Int64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n K"]:
        if rows.shape[1] == 0:
            return np.full((len(x), self.taught.shape[1]), 1.0 / self.taught.shape[1])
        distance = np.linalg.norm(x[:, None] - self.table[rows], axis=2)
        scale = np.maximum(0.5 * distance.max(1, keepdims=True), np.finfo(np.float64).tiny ** 0.25)
        weight = np.exp(-((distance / scale) ** 2))
        weight /= weight.sum(1, keepdims=True)
        mean: np.ndarray = np.einsum("nk,nkc->nc", weight, self.taught[rows])
        return mean
