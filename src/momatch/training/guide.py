"""Class probabilities of the pool from a nearest-neighbour graph of cached features, before training (docs/features.md)."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from momatch.data.graph import nearest_neighbors, spread_labels
from momatch.data.rows import Rows
from momatch.data.splits import SemiSupervised

#: Neighbours are searched in this many principal components: all 1,280 features take 8 times longer for little gain.
COMPONENTS = 128


def neighbor_guide(data: SemiSupervised, *, weak_views: int, neighbors: int) -> Float[Tensor, "N_u K"]:
    """Spread the labels over a graph of nearest neighbours; returns class probabilities of the pool.

    Images are compared by the direction of their features, averaged over the plain and the weak views.

    Args:
        data: features of the labelled set and the pool.
        weak_views: number of weak views; they follow the plain one.
        neighbors: neighbours of each image in the graph.
    """
    # A labelled image that is also in the pool is its own nearest neighbour there.
    table = _components(torch.cat([_directions(rows, weak_views) for rows in (data.labeled, data.unlabeled)]))
    labeled = len(data.labels)
    codes = np.concatenate([data.labels.numpy(), np.full(len(table) - labeled, -1)])
    distance, rows = nearest_neighbors(table.double().numpy(), neighbors)
    spread = spread_labels(distance, rows, codes, np.ones(len(codes)))
    return torch.from_numpy(spread[labeled:].astype(np.float32))


def _directions(rows: Rows, weak_views: int) -> Float[Tensor, "n F"]:
    means = [chunk[:, : 1 + weak_views].float().mean(1) for chunk in rows.chunks()]
    return torch.nn.functional.normalize(torch.cat(means), dim=1) if means else torch.empty(0, rows.shape[1])


def _components(table: Float[Tensor, "n F"]) -> Float[Tensor, "n C"]:
    """The leading `COMPONENTS` principal components; the table itself if it is no wider."""
    if table.shape[1] <= COMPONENTS:
        return table
    centered = table - table.mean(0)
    axes: Tensor = torch.linalg.eigh(centered.T @ centered).eigenvectors
    return centered @ axes[:, -COMPONENTS:]
