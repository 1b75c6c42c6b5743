"""Which rows of a large table to train on.

A fit draws fewer than 100,000 rows from the pool, so more of them only cost time and memory. They are chosen by a hash of their
contents: the choice does not depend on the order of the rows, and takes all copies of a row or none. The table is read in
blocks, so one that is mapped from a file is never in memory as a whole.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Float64, Int64, UInt64

from momatch.augment.draws import mix_key

#: Most distinct unlabelled rows, and most distinct labelled ones, to train on.
MOST_ROWS = 100_000
#: Of each class so many labelled rows are kept, if there are as many.
_LEAST_OF_CLASS = 1_000
_BLOCK = 1 << 16


def blocks(rows: int) -> Iterator[slice]:
    """Slices that cover all rows; one empty slice if there are none."""
    for start in range(0, max(rows, 1), _BLOCK):
        yield slice(start, min(start + _BLOCK, rows))


def rows_to_train_on(
    table: Float[np.ndarray, "n F"], codes: Int64[np.ndarray, " n"], weight: Float64[np.ndarray, " n"]
) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Ascending numbers of the rows to train on, and how many times as much each counts.

    All that have a weight if the table is not large. Otherwise those of a class stand for all of it, and so do unlabelled ones.

    Args:
        table: finite or NaN.
        codes: class numbers, -1 for unlabelled.
        weight: of each row.
    """
    if len(table) <= MOST_ROWS:
        rows = np.flatnonzero(weight > 0)
        return rows, np.ones(len(rows))
    key = _row_keys(table)
    labeled, unlabeled = np.flatnonzero((codes >= 0) & (weight > 0)), np.flatnonzero((codes < 0) & (weight > 0))
    kept = [unlabeled[key[unlabeled] <= _limit(key[unlabeled], MOST_ROWS)]]
    share = MOST_ROWS / max(len(np.unique(key[labeled])), MOST_ROWS)
    for k in range(int(codes.max()) + 1):
        rows = labeled[codes[labeled] == k]
        most = max(_LEAST_OF_CLASS, round(share * len(np.unique(key[rows]))))
        kept.append(rows[key[rows] <= _limit(key[rows], most)])
    rows = np.sort(np.concatenate(kept))
    given, left = (np.bincount(codes[some] + 1, weight[some]) for some in (np.flatnonzero(weight > 0), rows))
    return rows, (given / np.maximum(left, np.finfo(float).tiny))[codes[rows] + 1]


def _limit(key: UInt64[np.ndarray, " n"], most: int) -> np.uint64:
    """The key up to which there are at most so many distinct ones."""
    distinct = np.unique(key)
    return np.uint64(0) if len(distinct) == 0 else distinct[min(most, len(distinct)) - 1]


def _row_keys(table: Float[np.ndarray, "n F"]) -> UInt64[np.ndarray, " n"]:
    """A hash of each row's values."""
    keys = np.zeros(len(table), dtype=np.uint64)
    for block in blocks(len(table)):
        values = np.array(table[block], dtype=np.float64, order="F") + 0.0  # -0.0 + 0.0 is 0.0
        values[np.isnan(values)] = np.nan  # of one sign and payload
        keys[block] = mix_key(*(column.view(np.uint64) for column in values.T))
    return keys
