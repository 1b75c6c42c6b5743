"""What the neighbours of cached features say about the pool before anything is trained (docs/features.md)."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from momatch.data.graph import nearest_neighbors, spread_labels
from momatch.data.rows import Rows
from momatch.data.splits import SemiSupervised

#: Neighbours are looked for among so many principal components: all 1,280 features find hardly better ones, 8 times slower.
COMPONENTS = 128


def neighbor_guide(data: SemiSupervised, *, weak_views: int, neighbors: int) -> Float[Tensor, "N_u K"]:
    """Class probabilities of every image of the pool: its labels, spread over a graph of nearest neighbours.

    Images are compared by the direction of their features' mean over the plain and the weak views, which says more than
    one view alone.

    Args:
        data: labelled set and pool, features.
        weak_views: how many views after the plain one are weak.
        neighbors: of each image in the graph.
    """
    # A labelled image that is in the pool as well is its own nearest neighbour there.
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
    """The principal components of most variance; the table itself where it is not wider."""
    if table.shape[1] <= COMPONENTS:
        return table
    centered = table - table.mean(0)
    axes: Tensor = torch.linalg.eigh(centered.T @ centered).eigenvectors
    return centered @ axes[:, -COMPONENTS:]
