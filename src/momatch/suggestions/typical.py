"""The most typical row of each of n clusters: what to label first, when there are no labels yet.

The most typical is that with the nearest neighbours within its cluster (Hacohen et al., "Active Learning on a Budget", 2022).
"""

import numpy as np
from jaxtyping import Int64
from sklearn.cluster import KMeans

from momatch.data.graph import nearest_neighbors
from momatch.suggestions.neighborhood import NEIGHBORS, Neighborhood

#: The clustering ends after so many rounds; few clusters are sought from several starts.
_ROUNDS, _MOST_STARTS, _CLUSTERS_OF_ONE_START = 50, 5, 100


def most_typical(
    neighborhood: Neighborhood, candidates: Int64[np.ndarray, " c"], n: int, seed: int
) -> Int64[np.ndarray, " n"]:
    """At most n of the candidates, one of each cluster, of the largest cluster first.

    Args:
        neighborhood: of all rows.
        candidates: rows to choose from.
        n: number of clusters.
        seed: of the clustering.
    """
    chosen: list[int] = []
    is_taken = np.zeros(len(neighborhood.table), bool)
    for members in _clusters(neighborhood, candidates, n, seed):
        distance, _ = nearest_neighbors(neighborhood.table[members], NEIGHBORS)
        mean = distance.mean(1) if distance.shape[1] else np.zeros(len(members))
        mean[is_taken[members]] = np.inf
        if np.isfinite(mean.min()):
            chosen.append(int(members[mean.argmin()]))
            is_taken |= neighborhood.is_near(members[mean.argmin()][None])
    return np.array(chosen, dtype=np.int64)


def _clusters(
    neighborhood: Neighborhood, candidates: Int64[np.ndarray, " c"], n: int, seed: int
) -> list[Int64[np.ndarray, " m"]]:
    """The candidates in at most n clusters, the largest first."""
    table = neighborhood.table[candidates]
    # Copies of a row cannot be told apart, and k-means warns about clusters that stay empty.
    count = min(n, len(np.unique(table, axis=0)))
    if count < 2:
        return [candidates] if len(candidates) else []
    starts = max(1, min(_MOST_STARTS, _CLUSTERS_OF_ONE_START // count))
    cluster = KMeans(count, random_state=seed, n_init=starts, max_iter=_ROUNDS).fit_predict(table)
    sizes = np.bincount(cluster, minlength=count)
    return [candidates[cluster == k] for k in np.argsort(-sizes, kind="stable") if sizes[k]]
