"""The rows whose labels cover what is not known yet.

A label covers the rows around it, less with distance; a row is covered as well as by the label that covers it best. Rows are
chosen one by one, each the one that adds most to

    sum_i w_i max_{j labelled or chosen} exp(-d_ij^2 / s^2)

with weights w_i by how much a label is needed there (Bae et al., "Uncertainty Herding", 2025). An outlier covers nobody, and
what lies near a chosen row adds little.
"""

import numpy as np
from jaxtyping import Float32, Float64, Int64

from momatch.suggestions.neighborhood import Neighborhood

#: s^2 is this many times the median squared distance to the last neighbour.
_WIDTH = 2.0
#: Rows that are to be covered, at most; the others are like them.
_MOST_COVERED = 3_000
_BLOCK = 1_000


def most_covering(
    neighborhood: Neighborhood,
    candidates: Int64[np.ndarray, " c"],
    labeled: Int64[np.ndarray, " m"],
    weight: Float64[np.ndarray, " M"],
    *,
    n: int,
    seed: int,
) -> Int64[np.ndarray, " n"]:
    """At most n of the candidates, that which adds most first.

    Args:
        neighborhood: of all rows.
        candidates: rows to choose from.
        labeled: rows that have a label.
        weight: of each row.
        n: number of rows to choose.
        seed: of the rows that are to be covered, if there are many.
    """
    covered = np.arange(len(weight))
    if len(covered) > _MOST_COVERED:
        covered = np.sort(np.random.default_rng(seed).choice(covered, _MOST_COVERED, replace=False))
    similarity = _Similarity(neighborhood, covered)
    weights = weight[covered].astype(np.float32)
    best = np.zeros(len(covered), np.float32)
    for block in _blocks(labeled):
        best = np.maximum(best, similarity(block).max(1))
    gains = [weights @ np.maximum(similarity(block) - best[:, None], 0.0) for block in _blocks(candidates)]
    gain = np.concatenate([*gains, np.empty(0)])
    chosen: list[int] = []
    while len(chosen) < n and (gain > -np.inf).any():
        # Gains only shrink as more is covered: the best of the old ones that stays the best is the best of all.
        position = int(gain.argmax())
        column = similarity(candidates[position : position + 1])[:, 0]
        gain[position] = weights @ np.maximum(column - best, 0.0)
        if gain[position] < gain.max():
            continue
        chosen.append(int(candidates[position]))
        best = np.maximum(best, column)
        gain[neighborhood.is_near(candidates[position : position + 1])[candidates]] = -np.inf
    return np.array(chosen, dtype=np.int64)


class _Similarity:
    """exp(-d^2 / s^2) of the rows to be covered to others."""

    def __init__(self, neighborhood: Neighborhood, covered: Int64[np.ndarray, " r"]) -> None:
        self._table = neighborhood.table.astype(np.float32)
        self._norm = (self._table**2).sum(1)
        self._covered = covered
        last = neighborhood.distance[:, -1:]
        square = float(np.median(last**2)) if last.size else 0.0
        self._square = _WIDTH * max(square, float(np.finfo(np.float32).tiny))

    def __call__(self, rows: Int64[np.ndarray, " b"]) -> Float32[np.ndarray, "r b"]:
        inner = self._table[self._covered] @ self._table[rows].T
        square = np.maximum(self._norm[self._covered, None] + self._norm[rows] - 2.0 * inner, 0.0)
        similarity: np.ndarray = np.exp(-square / np.float32(self._square))
        return similarity


def _blocks(rows: Int64[np.ndarray, " m"]) -> list[Int64[np.ndarray, " b"]]:
    return [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]
