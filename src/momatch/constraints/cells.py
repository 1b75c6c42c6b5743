"""Classes of the D^p cells of a moment tensor, by which of their indices coincide (docs/method.md, "The constraint").

A class is an integer partition of p: for order 4, (2, 1, 1) contains the cells with one index twice and two others once. All
cells of a class have the same weight, and so do all non-empty classes of an order.
"""

from collections.abc import Sequence

Partition = tuple[int, ...]

MAX_ORDER = 4

#: Number of distinct orderings of the indices of a monomial in the class.
ARRANGEMENTS: dict[Partition, int] = {
    (1,): 1,
    (2,): 1, (1, 1): 2,
    (3,): 1, (2, 1): 3, (1, 1, 1): 6,
    (4,): 1, (3, 1): 4, (2, 2): 6, (2, 1, 1): 12, (1, 1, 1, 1): 24,
}  # fmt: skip

#: The classes with non-zero moments under N(0, I), and the moments: the product of (q - 1)!! over the multiplicities q.
NORMAL_MOMENTS: dict[Partition, float] = {(2,): 1.0, (4,): 3.0, (2, 2): 1.0}


def cell_counts(D: int) -> dict[Partition, int]:
    """Number of the D^p cells in each class; 0 if D is too small for the class."""
    pairs, triples = D * (D - 1), D * (D - 1) * (D - 2)
    return {
        (1,): D,
        (2,): D, (1, 1): pairs,
        (3,): D, (2, 1): 3 * pairs, (1, 1, 1): triples,
        (4,): D, (3, 1): 4 * pairs, (2, 2): 3 * pairs, (2, 1, 1): 6 * triples, (1, 1, 1, 1): triples * (D - 3),
    }  # fmt: skip


def cell_weights(D: int, order: int, order_weights: Sequence[float]) -> dict[Partition, float]:
    """Weight of one cell of each class in the loss: w_p / (non-empty classes of order p) / (cells of the class)."""
    weights = {}
    for p in range(1, order + 1):
        filled = {partition: cells for partition, cells in cell_counts(D).items() if sum(partition) == p and cells > 0}
        for partition, cells in filled.items():
            weights[partition] = order_weights[p - 1] / len(filled) / cells
    return weights
