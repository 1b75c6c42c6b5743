"""What the guide says of the nearest rows of the pool: how new samples take part in the graph (docs/method.md, "Evidence").

    p(y | x) = sum_j w_j p_j(y) / sum_j w_j,   w_j = exp(-d_j^2 / s^2)

p_j is what the network was taught of row j, d_j its distance, and s half the distance d_k to the k-th nearest row. Rows as near
as that one all have a say, so that nothing depends on how ties are broken.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int64

#: New samples per matrix product. Every product has this many, because rounding depends on its shape.
_CHUNK = 256
#: Coordinates farther from the middle than this, in units of the table's radius, are moved there: products would lose what
#: tells the rows apart.
_FARTHEST = 1e3
#: Candidates are found in single precision, which takes half the time, unless it leaves more of them, for each neighbour.
_MOST_CANDIDATES = 32
#: Groups of rows for each neighbour: more leave fewer candidates, and take longer.
_GROUPS = 32


@dataclass(frozen=True)
class Neighborhood:
    """Rows of the pool and what is known of them; can be pickled.

    Attributes:
        table: scaled features.
        taught: class probabilities of each row.
        count: k, at least 1.
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
        center = self.table.mean(0)
        rows = self.table - center
        square = np.einsum("mf,mf->m", rows, rows)
        # In units of the radius, so that single precision can hold the squares.
        radius = float(np.sqrt(square.max())) or 1.0
        double = np.column_stack([rows * (-2.0 / radius), square / radius**2])
        single = double.astype(np.float32)
        found = np.empty((len(x), self.taught.shape[1]))
        for begin in range(0, len(x), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            near = np.clip(x[part] - center, -_FARTHEST * radius, _FARTHEST * radius)
            of_part = None if own is None else own[part]
            samples, candidates = self._candidates(near / radius, single, of_part)
            if len(samples) > _MOST_CANDIDATES * self.count * len(near):
                samples, candidates = self._candidates(near / radius, double, of_part)
            found[part] = self._mean(near, rows, samples, candidates)
        return found

    def _candidates(
        self,
        x: Float64[np.ndarray, "n F"],
        rows: Float[np.ndarray, "m F+1"],
        own: Int64[np.ndarray, " n"] | None,
    ) -> tuple[Int64[np.ndarray, " p"], Int64[np.ndarray, " p"]]:
        """Pairs of a sample and a row: all rows as near as the k-th nearest, and some more.

        Args:
            x: at most `_CHUNK` samples, around the middle and in units of the radius.
            rows: -2 r and |r|^2 of each row r, likewise, in the precision to look in.
            own: the row of each sample.
        """
        n, F = x.shape
        padded = np.zeros((_CHUNK, F + 1), dtype=rows.dtype)
        padded[:n, :F], padded[:n, F] = x, 1.0
        # Less the norm of the sample, which all its distances have in common.
        distance = (padded @ rows.T)[:n]
        if own is not None:
            distance[np.arange(n), own] = np.inf
        # Twice what rounding may do to a sum of F + 1 products.
        slack = (F + 8) * np.finfo(rows.dtype).eps * (np.einsum("nf,nf->n", x, x) + 2.0)
        limit = (self._bound(distance) + slack).astype(rows.dtype)
        samples, candidates = np.nonzero(distance <= limit[:, None])
        return samples, candidates

    def _bound(self, distance: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " n"]:
        """What the k-th nearest row is not beyond; the last one there is, if there are fewer."""
        others = int(np.isfinite(distance[0]).sum())
        if others == 0:
            return np.full(len(distance), -np.inf)
        n, m = distance.shape
        # The nearest of k groups of rows are k rows: there is less to partition.
        size = max(1, m // (_GROUPS * self.count))
        nearest = distance[:, : m // size * size].reshape(n, size, m // size).min(1)
        kth = min(self.count, others) - 1
        bound: np.ndarray = np.partition(nearest, kth, axis=1)[:, kth]
        return bound

    def _mean(
        self,
        x: Float64[np.ndarray, "n F"],
        rows: Float64[np.ndarray, "m F"],
        samples: Int64[np.ndarray, " p"],
        candidates: Int64[np.ndarray, " p"],
    ) -> Float64[np.ndarray, "n K"]:
        """Of each sample's candidates, those as near as the k-th nearest."""
        difference = x[samples] - rows[candidates]
        distance = np.sqrt(np.einsum("pf,pf->p", difference, difference))
        counts = np.bincount(samples, minlength=len(x))
        last = np.cumsum(counts) - counts + np.minimum(counts, self.count) - 1
        ascending = distance[np.lexsort((distance, samples))]
        kth = np.where(counts > 0, ascending[last] if len(ascending) else 0.0, 0.0)
        # Where k or more rows are copies of the sample, they alone have a say.
        scale = np.maximum(0.5 * kth, np.finfo(np.float64).tiny ** 0.25)[samples]
        weight = np.where(distance <= kth[samples], np.exp(-((distance / scale) ** 2)), 0.0)
        # bincount adds one after the other, so that a sample's sum does not depend on the others.
        amounts = [np.bincount(samples, weight * of_class, len(x)) for of_class in self.taught[candidates].T]
        total = np.bincount(samples, weight, len(x))
        equal = np.full((len(x), len(amounts)), 1.0 / len(amounts))  # without any other row
        mean: np.ndarray = np.divide(np.stack(amounts, 1), total[:, None], out=equal, where=total[:, None] > 0)
        return mean
