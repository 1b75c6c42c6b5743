"""The most typical rows of clusters that have no label yet (Hacohen et al., "Active Learning on a Budget", 2022).

Labelled rows are centers of clusters and stay where they are, at the mean of their neighbourhoods. For each row that is asked
for there is one more center, moved as in k-means: to the mean of the rows that are nearer to it than to any other center,
weighted by their need of a label. The clusters of most need come first. The most typical row of a cluster is that with the
nearest neighbours within it.
"""

import math

import numpy as np
from jaxtyping import Float64, Int64
from scipy import sparse
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.metrics.pairwise import euclidean_distances

from momatch.data.graph import nearest_neighbors
from momatch.suggestions.neighborhood import NEIGHBORS, Neighborhood

#: A labelled row stands for so large a share of an average cluster: for as many of its nearest neighbours.
_STANDS_FOR = 0.25
#: More clusters than this are too small to have a typical row, and slow to find.
_MOST_CLUSTERS = 500
#: The clustering ends after so many rounds, or when a round lowers the sum of squared distances by less than a share of it;
#: few clusters are sought from several starts.
_ROUNDS, _SETTLED = 50, 1e-4
_MOST_STARTS, _CLUSTERS_OF_ONE_START = 5, 100


def most_typical(
    neighborhood: Neighborhood,
    candidates: Int64[np.ndarray, " c"],
    labeled: Int64[np.ndarray, " m"],
    need: Float64[np.ndarray, " M"],
    *,
    n: int,
    clusters: int | None = None,
    seed: int,
) -> Int64[np.ndarray, " n"]:
    """At most n of the candidates, that of the cluster that needs a label most first.

    Args:
        neighborhood: of all rows.
        candidates: rows to choose from.
        labeled: rows that have a label.
        need: of a label near each row.
        n: number of rows to choose.
        clusters: how many without a label are looked for, None for one a row; after the first row of each come their next ones.
        seed: of the clustering.
    """
    if not len(candidates):
        return candidates
    table = neighborhood.table
    new = min(n if clusters is None else clusters, _MOST_CLUSTERS)
    fixed = _labeled_centers(neighborhood, labeled, clusters=new + len(labeled))
    cluster = _clusters(table[candidates], need[candidates], fixed, new, seed)
    needs = np.bincount(cluster, weights=need[candidates], minlength=new + len(labeled))
    labels = np.repeat([0, 1], [new, len(labeled)])
    waiting: dict[int, list[int]] = {}
    left = set(np.unique(cluster).tolist())
    is_taken = np.zeros(len(table), bool)
    chosen: list[int] = []
    while len(chosen) < n and left:
        neediest = min(left, key=lambda k: (labels[k], -needs[k]))
        if neediest not in waiting:
            waiting[neediest] = _typical_first(neighborhood, candidates[cluster == neediest])
        row = waiting[neediest].pop(0)
        if not waiting[neediest]:
            left.remove(neediest)
        if not is_taken[row]:
            chosen.append(row)
            labels[neediest] += 1
            is_taken |= neighborhood.is_near(np.array([row]))
    return np.array(chosen, dtype=np.int64)


def _labeled_centers(
    neighborhood: Neighborhood, labeled: Int64[np.ndarray, " m"], *, clusters: int
) -> Float64[np.ndarray, "m C"]:
    """Where the centers of labelled rows stay: each at the mean of its row and the nearest neighbours.

    A single row lies twice as far (squared) from its neighbours as their mean does. New centers are means, so at a single row
    they would take the rows that its label covers, and ask for one of them again.
    """
    table = neighborhood.table
    count = round(_STANDS_FOR * len(table) / clusters)
    around = neighborhood.neighbors[labeled, :count]
    center: np.ndarray = (table[labeled] + table[around].sum(1)) / (1 + around.shape[1])
    return center


def _typical_first(neighborhood: Neighborhood, members: Int64[np.ndarray, " m"]) -> list[int]:
    distance, _ = nearest_neighbors(neighborhood.table[members], NEIGHBORS)
    mean = distance.mean(1) if distance.shape[1] else np.zeros(len(members))
    ordered: list[int] = members[np.argsort(mean, kind="stable")].tolist()
    return ordered


def _clusters(
    table: Float64[np.ndarray, "c C"],
    weight: Float64[np.ndarray, " c"],
    fixed: Float64[np.ndarray, "m C"],
    count: int,
    seed: int,
) -> Int64[np.ndarray, " c"]:
    """The cluster of each row: 0 to count - 1 for those that are found, `count` + j for that of the j-th fixed center."""
    if len(fixed):
        of_fixed, distance = pairwise_distances_argmin_min(table, fixed)
        bound = distance**2
    else:
        # Farther than any two rows are from each other.
        of_fixed, bound = np.zeros(len(table), np.int64), np.full(len(table), 1.0 + 4.0 * (table**2).sum(1).max())
    if not (weight @ bound):
        return np.asarray(count + of_fixed, np.int64)
    rng = np.random.default_rng(seed)
    starts = max(1, min(_MOST_STARTS, _CLUSTERS_OF_ONE_START // count))
    found = [_moved(table, weight, bound, _start(table, weight, bound, count, rng)) for _ in range(starts)]
    own, squared = min(found, key=lambda one: float(weight @ np.minimum(one[1], bound)))
    cluster: np.ndarray = np.where(squared < bound, own, count + of_fixed)
    return cluster.astype(np.int64)


def _start(
    table: Float64[np.ndarray, "c C"],
    weight: Float64[np.ndarray, " c"],
    bound: Float64[np.ndarray, " c"],
    count: int,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "k C"]:
    """Greedy k-means++: of a few rows that are drawn by their squared distance, that which lowers the sum most; in turn.

    Args:
        table: the rows.
        weight: of each in the sum.
        bound: squared distance of each to the nearest fixed center.
        count: number of centers; there are fewer if all rows are centers.
        rng: draws.
    """
    centers: list[int] = []
    while len(centers) < count and (total := weight @ bound) > 0:
        drawn = rng.choice(len(table), 2 + int(math.log(count)), p=weight * bound / total)
        lowered = np.minimum(bound, euclidean_distances(table[drawn], table, squared=True))
        best = int((lowered @ weight).argmin())
        bound = lowered[best]
        bound[drawn[best]] = 0.0
        centers.append(int(drawn[best]))
    return table[centers]


def _moved(
    table: Float64[np.ndarray, "c C"],
    weight: Float64[np.ndarray, " c"],
    bound: Float64[np.ndarray, " c"],
    centers: Float64[np.ndarray, "k C"],
) -> tuple[Int64[np.ndarray, " c"], Float64[np.ndarray, " c"]]:
    """k-means from a start: the nearest of the centers to each row, and its squared distance."""
    before = np.inf
    for _ in range(_ROUNDS):
        squared = euclidean_distances(table, centers, squared=True)
        own, nearest = squared.argmin(1), squared.min(1)
        total = float(weight @ np.minimum(nearest, bound))
        if before - total <= _SETTLED * total:
            break
        before = total
        members = np.flatnonzero(nearest < bound)
        share = sparse.csr_array((weight[members], (own[members], members)), shape=(len(centers), len(table)))
        amount = share.sum(1)[:, None]
        centers = np.divide(share @ table, amount, out=centers.copy(), where=amount > 0)
    return own, nearest
