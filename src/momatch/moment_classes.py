"""How the D^p cells of a moment tensor fall into classes, by how their indices coincide (docs/method.md, "The constraint").

A class is an integer partition of p: in order 4, (2, 1, 1) holds the cells with one index twice and two others once. All cells
of a class weigh alike, and so do all non-empty classes of an order.
"""

from collections.abc import Sequence
from math import factorial, perm, prod

Partition = tuple[int, ...]

#: The partitions of each order.
PARTITIONS: dict[int, tuple[Partition, ...]] = {
    1: ((1,),),
    2: ((2,), (1, 1)),
    3: ((3,), (2, 1), (1, 1, 1)),
    4: ((4,), (3, 1), (2, 2), (2, 1, 1), (1, 1, 1, 1)),
}
MAX_ORDER = max(PARTITIONS)


def arrangements(partition: Partition) -> int:
    """In how many orders the indices of one monomial can stand: p! / prod(q!)."""
    return factorial(sum(partition)) // prod(factorial(q) for q in partition)


def cell_count(partition: Partition, D: int) -> int:
    """How many of the D^p cells are in the class; 0 if D has too few dimensions for it."""
    alike = prod(factorial(partition.count(q)) for q in set(partition))
    return arrangements(partition) * perm(D, len(partition)) // alike


def normal_moment(partition: Partition) -> float:
    """The cell's value for N(0, I): product of (q - 1)!! over the multiplicities, 0 if any of them is odd."""
    return float(prod(0 if q % 2 else prod(range(1, q, 2)) for q in partition))


def cell_weights(D: int, order: int, order_weights: Sequence[float]) -> dict[Partition, float]:
    """What one cell of each class weighs in the loss: w_p / (non-empty classes of order p) / (cells of the class)."""
    weights = {}
    for p in range(1, order + 1):
        filled = [partition for partition in PARTITIONS[p] if cell_count(partition, D)]
        for partition in filled:
            weights[partition] = order_weights[p - 1] / len(filled) / cell_count(partition, D)
    return weights
