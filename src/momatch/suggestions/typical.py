"""The most typical rows of clusters that have no label yet (Hacohen et al., "Active Learning on a Budget", 2022).

There are as many clusters as rows that are labelled or asked for, so that at least n clusters are without a label. The clusters
with the fewest labels come first, and of those the ones where labels are needed most. The most typical row of a cluster is that
with the nearest neighbours within it.
"""

import numpy as np
from jaxtyping import Float64, Int64
from sklearn.cluster import KMeans

from momatch.data.graph import nearest_neighbors
from momatch.suggestions.neighborhood import NEIGHBORS, Neighborhood

#: More clusters than this are too small to have a typical row, and slow to find.
_MOST_CLUSTERS = 500
#: The clustering ends after so many rounds; few clusters are sought from several starts.
_ROUNDS, _MOST_STARTS, _CLUSTERS_OF_ONE_START = 50, 5, 100


def most_typical(
    neighborhood: Neighborhood,
    candidates: Int64[np.ndarray, " c"],
    labeled: Int64[np.ndarray, " m"],
    need: Float64[np.ndarray, " M"],
    *,
    n: int,
    seed: int,
) -> Int64[np.ndarray, " n"]:
    """At most n of the candidates, that of the cluster that needs a label most first.

    Args:
        neighborhood: of all rows.
        candidates: rows to choose from.
        labeled: rows that have a label.
        need: of a label near each row.
        n: number of rows to choose.
        seed: of the clustering.
    """
    rows = np.concatenate([candidates, labeled])
    cluster = _clusters(neighborhood.table[rows], min(n + len(labeled), _MOST_CLUSTERS), seed)
    of_candidates, of_labeled = np.split(cluster, [len(candidates)])
    count = int(cluster.max(initial=-1)) + 1
    labels = np.bincount(of_labeled, minlength=count)
    needs = np.bincount(of_candidates, weights=need[candidates], minlength=count)
    waiting = {k: _typical_first(neighborhood, candidates[of_candidates == k]) for k in np.unique(of_candidates)}
    is_taken = np.zeros(len(neighborhood.table), bool)
    chosen: list[int] = []
    while len(chosen) < n and (left := [k for k, rows in waiting.items() if rows]):
        neediest = min(left, key=lambda k: (labels[k], -needs[k]))
        row = waiting[neediest].pop(0)
        if not is_taken[row]:
            chosen.append(row)
            labels[neediest] += 1
            is_taken |= neighborhood.is_near(np.array([row]))
    return np.array(chosen, dtype=np.int64)


def _typical_first(neighborhood: Neighborhood, members: Int64[np.ndarray, " m"]) -> list[int]:
    distance, _ = nearest_neighbors(neighborhood.table[members], NEIGHBORS)
    mean = distance.mean(1) if distance.shape[1] else np.zeros(len(members))
    ordered: list[int] = members[np.argsort(mean, kind="stable")].tolist()
    return ordered


def _clusters(table: Float64[np.ndarray, "r C"], count: int, seed: int) -> Int64[np.ndarray, " r"]:
    """The cluster of each row; fewer than `count` if there are not as many different rows."""
    # Copies of a row cannot be told apart, and k-means warns about clusters that stay empty.
    count = min(count, len(np.unique(table, axis=0)))
    if count < 2:
        return np.zeros(len(table), np.int64)
    starts = max(1, min(_MOST_STARTS, _CLUSTERS_OF_ONE_START // count))
    found: np.ndarray = KMeans(count, random_state=seed, n_init=starts, max_iter=_ROUNDS).fit_predict(table)
    return found.astype(np.int64)
