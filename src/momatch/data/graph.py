"""Label propagation over a graph of nearest neighbours, which needs no trained network.

w_ij = exp(-d_ij^2 / (s_i s_j)), s_i half the distance to the k-th neighbour; W made symmetric; S = D^-1/2 W D^-1/2
F <- alpha S F + (1 - alpha) Y, Y the labels; the larger alpha, the farther they reach
posterior ~ F^power, balanced to the classes' frequencies; the farther labels reach, the less sharp is what arrives
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from usearch.index import Index

#: Weight of the neighbours in each round: labels stay near, or reach far.
ALPHAS = (0.9, 0.99)
#: What arrives is taken to the powers 1, 2, 4, 8.
SQUARINGS = 3
_ROUNDS, _LOOK_EVERY = 200, 10
_BALANCING = 5
#: Neighbours are exact in tables of at most so many rows.
_EXACT = 20_000
_SEARCHED_AT_ONCE = 50_000
#: Larger tables are divided among so many indexes, which are built at the same time.
_INDEXES = 4
#: Candidates that an index looks at to add and to find a row. More find more of the neighbours, and take longer.
_TO_ADD, _TO_FIND = 40, 24
#: The rounds end when no amount changes by more than this share of the largest.
_SETTLED = 1e-6
#: The largest amount at the beginning. Amounts are single precision, which takes a third of the time, and sums of what is not
#: negative, which lose nothing but rounding: so far up, what is 10^-67 of it is not yet nothing.
_LARGEST = 2.0**96


def nearest_neighbors(
    table: Float64[np.ndarray, "N F"], count: int
) -> tuple[Float64[np.ndarray, "N k"], Int64[np.ndarray, "N k"]]:
    """Euclidean distances and row numbers of the `count` nearest other rows of each row (fewer if the table is small)."""
    count = min(count, len(table) - 1)
    if count == 0:
        return np.empty((len(table), 0)), np.empty((len(table), 0), dtype=np.int64)
    if len(table) > _EXACT:
        return _indexed_neighbors(table, count)
    # Without an argument, kneighbors does not count a row as its own neighbour.
    distance, rows = NearestNeighbors(n_neighbors=count).fit(table).kneighbors()
    return distance.astype(np.float64), rows.astype(np.int64)


def _indexed_neighbors(
    table: Float64[np.ndarray, "N F"], count: int
) -> tuple[Float64[np.ndarray, "N k"], Int64[np.ndarray, "N k"]]:
    """By navigable small-world graphs, which find most of them in a time that grows little faster than the table."""
    vectors = table.astype(np.float32)
    numbers = np.arange(len(table))
    with ThreadPoolExecutor(_INDEXES) as pool:
        indexes = list(pool.map(partial(_index, vectors), [numbers[part::_INDEXES] for part in range(_INDEXES)]))
    neighbors = np.empty((len(table), count), dtype=np.int64)
    for start in range(0, len(table), _SEARCHED_AT_ONCE):
        some = slice(start, start + _SEARCHED_AT_ONCE)
        rows = numbers[some]
        matches = [index.search(vectors[some], count + 1) for index in indexes]
        found = np.concatenate([match.keys.astype(np.int64) for match in matches], 1)
        distance = np.concatenate([match.distances for match in matches], 1)
        # Itself last, or not at all: among many copies of a row it may not be found.
        distance[found == rows[:, None]] = np.inf
        neighbors[rows] = np.take_along_axis(found, np.argsort(distance, axis=1, kind="stable")[:, :count], 1)
    exact = np.stack([np.linalg.norm(table - table[column], axis=1) for column in neighbors.T], 1)
    order = np.argsort(exact, axis=1, kind="stable")
    return np.take_along_axis(exact, order, 1), np.take_along_axis(neighbors, order, 1)


def _index(vectors: Float32[np.ndarray, "N F"], rows: Int64[np.ndarray, " n"]) -> Index:
    index = Index(ndim=vectors.shape[1], metric="l2sq", dtype="f32", expansion_add=_TO_ADD, expansion_search=_TO_FIND)
    # One thread: with several, the index would not be the same each time.
    index.add(rows, vectors[rows], threads=1)
    return index


def reach(distance: Float64[np.ndarray, "N k"], table: Float64[np.ndarray, "N F"]) -> float:
    """Median distance to the last neighbour, divided by the root mean square norm of the rows.

    At most 1; 0 if there are no neighbours.
    """
    spread = float(np.sqrt(np.mean(np.sum(table**2, axis=1))))
    if spread == 0 or not distance.shape[1]:
        return 0.0
    return min(1.0, float(np.median(distance[:, -1])) / spread)


class LabelGraph:
    """Spreads labels over a graph of nearest neighbours.

    Args:
        distance: to the nearest neighbours of each row, ascending.
        neighbors: row numbers of the neighbours.
        weight: weight of each row.
    """

    def __init__(
        self,
        distance: Float64[np.ndarray, "N k"],
        neighbors: Int64[np.ndarray, "N k"],
        weight: Float64[np.ndarray, " N"],
    ) -> None:
        self._affinity = _affinity(distance, neighbors) if neighbors.shape[1] else None
        self._weight = weight

    def spread(
        self, codes: Int64[np.ndarray, " N"], prior: Float64[np.ndarray, " K"]
    ) -> Iterator[Float64[np.ndarray, "N K"]]:
        """Propagate labels to class probabilities of every row.

        Every class starts with the same total amount, however many labels it has. The result is taken to a power, which
        sharpens it, then balanced so that the classes have the given shares of the rows' weight.

        Args:
            codes: class numbers, -1 for unlabelled; every class has a label.
            prior: shares of the classes.

        Yields:
            Probabilities for each of `ALPHAS`, and for each by rising powers: one-hot for labelled rows, uniform for rows that
            no label reaches.
        """
        labeled = np.flatnonzero(codes >= 0)
        one_hot = np.eye(codes.max() + 1)[codes[labeled]]  # (m, K)
        amount = one_hot * self._weight[labeled, None]
        labels = np.zeros((len(codes), one_hot.shape[1]))
        labels[labeled] = amount / amount.sum(0)
        for arrived in self._propagated(labels):
            shares = arrived / arrived.sum(0)
            # At most 1, so that a high power leaves something of the largest.
            shares /= np.maximum(shares.max(1, keepdims=True), np.finfo(np.float64).tiny)
            for squarings in range(SQUARINGS + 1):
                shares = np.square(shares) if squarings else shares
                posterior = _balance(shares, self._weight, prior)
                posterior[labeled] = one_hot
                yield posterior

    def _propagated(self, labels: Float64[np.ndarray, "N K"]) -> Float64[np.ndarray, "A N K"]:
        """F of round n for each alpha: (1 - alpha) sum_{i < n} (alpha S)^i Y + (alpha S)^n Y, whose S^i Y all alphas share."""
        if self._affinity is None:
            return np.repeat(labels[None], len(ALPHAS), axis=0)
        alphas, beyond = np.array(ALPHAS), np.ones(len(ALPHAS))
        power = (labels * (_LARGEST / labels.max())).astype(np.float32)
        total = np.zeros((len(alphas), *labels.shape), dtype=np.float32)
        for number in range(_ROUNDS):
            _add(power, beyond - beyond * alphas, total)
            beyond, before, power = beyond * alphas, power, self._affinity @ power
            # Looking at every change takes as long as the round itself.
            is_looked_at = number % _LOOK_EVERY == 0
            if is_looked_at and beyond.max() * np.abs(power - before).max() <= _SETTLED * total.max():
                break
        _add(power, beyond, total)
        return total.astype(np.float64)


def _add(
    amounts: Float32[np.ndarray, "N K"], factors: Float64[np.ndarray, " A"], to: Float32[np.ndarray, "A N K"]
) -> None:
    for place, factor in enumerate(factors.tolist()):
        to[place] += factor * amounts


def _balance(
    amounts: Float64[np.ndarray, "N K"], weight: Float64[np.ndarray, " N"], prior: Float64[np.ndarray, " K"]
) -> Float64[np.ndarray, "N K"]:
    """A few Sinkhorn iterations, rows last: rows sum to 1, and the weighted mean of the columns is about `prior`."""
    share = weight / weight.sum()
    for _ in range(_BALANCING):
        rows = _normalize(amounts)
        amounts = rows * (prior / (share @ rows))
    return _normalize(amounts)


def _normalize(amounts: Float64[np.ndarray, "N K"]) -> Float64[np.ndarray, "N K"]:
    total = amounts.sum(1, keepdims=True)
    equal = np.full_like(amounts, 1.0 / amounts.shape[1])  # where no label reaches
    shares: np.ndarray[Any, Any] = np.divide(amounts, total, out=equal, where=total > 0)
    return shares


def _affinity(distance: Float64[np.ndarray, "N k"], neighbors: Int64[np.ndarray, "N k"]) -> sparse.csr_array:
    n, k = distance.shape
    # With k or more duplicate rows the distance is 0; a tiny scale connects them to each other and to nothing else.
    scale = np.maximum(0.5 * distance[:, -1], np.finfo(np.float64).tiny ** 0.25)
    weight = np.exp(-((distance / scale[:, None]) * (distance / scale[neighbors])))
    directed = sparse.csr_array((weight.ravel(), neighbors.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n))
    mutual = 0.5 * (directed + directed.T)
    degree = np.maximum(np.asarray(mutual.sum(axis=1)).ravel(), np.finfo(np.float64).tiny)
    root = sparse.diags_array(1.0 / np.sqrt(degree))
    return sparse.csr_array(root @ mutual @ root, dtype=np.float32)
