"""What the labels say of the pool before training, from cached features (docs/features.md)."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from momatch.data.graph import LabelGraph, nearest_neighbors
from momatch.data.rows import Rows
from momatch.data.splits import SemiSupervised
from momatch.evidence import Evidence, RowEvidence, gather_evidence

#: Neighbours are searched in this many principal components: all 1,280 features take 8 times longer for little gain.
COMPONENTS = 128


@dataclass(frozen=True)
class PoolGuide:
    """Guides the pseudo-labels.

    Attributes:
        posterior: (N_u, K) class probabilities of the pool.
        floor: their weight at the end of the training, which begins at 1.
        confidence: mean confidence that all evidence has in the classes of the pool's unlabelled images; without
            any, in labels that were hidden from it, and None if none could be.
        evidence: share of each view in what is believed, and how far the graph alone leads.
    """

    posterior: Float[Tensor, "N_u K"]
    floor: float
    confidence: float | None
    evidence: dict[str, float]


def pool_guide(data: SemiSupervised, *, weak_views: int, neighbors: int, seed: int) -> PoolGuide:
    """Gather the evidence about the pool.

    Images are compared by the direction of their features, averaged over the plain and the weak views.

    Args:
        data: features of the labelled set and the pool.
        weak_views: number of weak views; they follow the plain one.
        neighbors: neighbours of each image in the graph; 0 to do without.
        seed: of the folds and forests.
    """
    # A labelled image that is also in the pool is its own nearest neighbour there.
    components = leading_components(
        torch.cat([directions(rows, weak_views) for rows in (data.labeled, data.unlabeled)])
    )
    table, labeled = components.double().numpy(), len(data.labels)
    codes = np.concatenate([data.labels.numpy(), np.full(len(table) - labeled, -1)])
    found = nearest_neighbors(table, neighbors) if neighbors else None
    evidence, of_rows = row_evidence(table, codes, found, num_classes=len(data.class_names), seed=seed)
    unlabeled = labeled + np.flatnonzero(~data.is_shown.numpy())
    guide = torch.from_numpy(of_rows.guide[labeled:].astype(np.float32))
    shares = {**evidence.shares(), "lead of neighbours": 1.0 - of_rows.floor}
    return PoolGuide(guide, of_rows.floor, of_rows.confidence(unlabeled), shares)


def row_evidence(
    table: Float64[np.ndarray, "n C"],
    codes: Int64[np.ndarray, " n"],
    neighbors: tuple[Float64[np.ndarray, "n k"], Int64[np.ndarray, "n k"]] | None,
    *,
    num_classes: int,
    seed: int,
) -> tuple[Evidence, RowEvidence]:
    """What the labels say, and what of every row of a table.

    Args:
        table: components, `leading_components` of `directions`.
        codes: class numbers, -1 for unlabelled; every class has a label.
        neighbors: distances to the nearest other rows of each row, and their numbers; None to do without the graph.
        num_classes: K.
        seed: of the folds and forests.
    """
    weight = np.ones(len(codes))
    deviation = max(float(table.std(0).max()), np.finfo(float).tiny)
    spread = None if neighbors is None else LabelGraph(*neighbors, weight).spread
    return gather_evidence(
        table / deviation, codes, weight, num_classes=num_classes, spread=spread, is_blended=False, seed=seed
    )


def directions(rows: Rows, weak_views: int) -> Float[Tensor, "n F"]:
    """Directions of features, averaged over the plain and the weak views."""
    means = [chunk[:, : 1 + weak_views].float().mean(1) for chunk in rows.chunks()]
    return torch.nn.functional.normalize(torch.cat(means), dim=1) if means else torch.empty(0, rows.shape[1])


def leading_components(table: Float[Tensor, "n F"]) -> Float[Tensor, "n C"]:
    """The leading `COMPONENTS` principal components; the table itself if it is no wider."""
    if table.shape[1] <= COMPONENTS:
        return table
    centered = table - table.mean(0)
    axes: Tensor = torch.linalg.eigh(centered.T @ centered).eigenvectors
    return centered @ axes[:, -COMPONENTS:]
