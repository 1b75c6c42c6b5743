"""The most typical row of each of n clusters: what to label first, when there are no labels yet."""

import numpy as np
from jaxtyping import Int64
from sklearn.cluster import MiniBatchKMeans

from momatch.suggestions.neighborhood import Neighborhood

#: Rows of a batch of the clustering, and how often it starts anew.
_BATCH, _STARTS = 4096, 5


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
    if len(candidates) == 0:
        return candidates
    count = min(n, len(candidates))
    clusters = MiniBatchKMeans(count, random_state=seed, n_init=_STARTS, batch_size=_BATCH).fit_predict(
        neighborhood.table[candidates]
    )
    # Candidates of each cluster, the most typical first.
    order = np.lexsort((-neighborhood.typicality()[candidates], clusters))
    sizes = np.bincount(clusters, minlength=count)
    members = np.split(candidates[order], np.cumsum(sizes)[:-1])
    chosen: list[int] = []
    is_taken = np.zeros(len(neighborhood.table), bool)
    for cluster in np.argsort(-sizes, kind="stable"):
        free = members[cluster][~is_taken[members[cluster]]]
        if len(free):
            chosen.append(int(free[0]))
            is_taken |= neighborhood.is_near(free[:1])
    return np.array(chosen, dtype=np.int64)
