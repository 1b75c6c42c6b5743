"""The moment loss from the moments themselves, for embeddings of few dimensions.

The D^p cells of a moment tensor hold only C(D + p - 1, p) unique monomials (330 of 4096 at D = 8, p = 4). Each is computed once
and weighted by the number of its index orderings.
"""

from functools import lru_cache
from math import comb
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from momatch.constraints.cells import ARRANGEMENTS, NORMAL_MOMENTS, Partition, cell_weights
from momatch.constraints.clusters import Groups

#: Maximum number of monomial values kept for the backward pass; beyond, they are recomputed in it.
MONOMIALS_AT_ONCE = 1 << 19


class Monomials(NamedTuple):
    """All monomials of degree 1 to p in D variables, by degree.

    Attributes:
        parents: for each degree from 2, index of the monomial of the previous degree that each one extends, (F_p,).
        last: for each degree from 2, the variable it is multiplied by, (F_p,).
        weights: weight of each in the loss, including orderings, (F,).
        targets: mean of each under N(0, I), (F,).
    """

    parents: tuple[Integer[Tensor, " F_p"], ...]
    last: tuple[Integer[Tensor, " F_p"], ...]
    weights: Float[Tensor, " F"]
    targets: Float[Tensor, " F"]


def monomial_count(D: int, order: int) -> int:
    """Number of monomials of degree 1 to `order` in D variables."""
    return comb(D + order, order) - 1


def explicit_moment_loss(groups: Groups, order: int, order_weights: tuple[float, ...]) -> Float[Tensor, ""]:
    """sum_k n_k/n * sum over cells of weight * (M - T)^2, from the unique monomials.

    Args:
        groups: residuals by cluster.
        order: p, 1 to 4.
        order_weights: weight of each order.
    """
    u = groups.residuals
    # torch.compile does not support lru_cache; it embeds the table as a constant.
    monomials = _build_monomials if torch.compiler.is_compiling() else _cached_monomials
    table = monomials(u.shape[-1], order, order_weights, u.device, u.dtype)
    errors = (_mean_monomials(groups, table) - table.targets).square() @ table.weights  # (B, C)
    return (groups.shares * errors).sum()


def _mean_monomials(groups: Groups, table: Monomials) -> Float[Tensor, "B C F"]:
    B, m, _ = groups.residuals.shape
    at_once = max(1, MONOMIALS_AT_ONCE // (B * len(table.targets)))
    if m <= at_once:
        return groups.mean(_evaluate(groups.residuals, table))

    def weighted_sum(u: Tensor, weights: Tensor) -> Tensor:
        return weights.transpose(1, 2) @ _evaluate(u, table)

    total = groups.residuals.new_zeros(())
    for u, weights in zip(groups.residuals.split(at_once, 1), groups.weights.split(at_once, 1), strict=True):
        total = total + checkpoint(weighted_sum, u, weights, use_reentrant=False, preserve_rng_state=False)
    return groups.divide_by_totals(total)


def _evaluate(u: Float[Tensor, "B m D"], table: Monomials) -> Float[Tensor, "B m F"]:
    degrees = [u]
    for parents, last in zip(table.parents, table.last, strict=True):
        degrees.append(degrees[-1].index_select(-1, parents) * u.index_select(-1, last))
    return torch.cat(degrees, dim=-1)


def _build_monomials(
    D: int, order: int, order_weights: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> Monomials:
    """Build the table on the device."""
    of_class = cell_weights(D, order, order_weights)
    monomials: list[tuple[int, ...]] = [(d,) for d in range(D)]
    partitions = [_partition(indices) for indices in monomials]
    parents, last = [], []
    for _ in range(2, order + 1):
        extended = [(place, d) for place, indices in enumerate(monomials) for d in range(indices[-1], D)]
        monomials = [(*monomials[place], d) for place, d in extended]
        partitions += [_partition(indices) for indices in monomials]
        parents.append(torch.tensor([place for place, _ in extended], device=device))
        last.append(torch.tensor([d for _, d in extended], device=device))
    weights = [of_class[partition] * ARRANGEMENTS[partition] for partition in partitions]
    targets = [NORMAL_MOMENTS.get(partition, 0.0) for partition in partitions]
    return Monomials(
        tuple(parents),
        tuple(last),
        torch.tensor(weights, device=device, dtype=dtype),
        torch.tensor(targets, device=device, dtype=dtype),
    )


def _partition(indices: tuple[int, ...]) -> Partition:
    """The multiplicities of a monomial's indices, in descending order."""
    counts = [indices.count(i) for place, i in enumerate(indices) if i not in indices[:place]]
    return tuple(sorted(counts, reverse=True))


@lru_cache(maxsize=64)
def _cached_monomials(
    D: int, order: int, order_weights: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> Monomials:
    """Cached table: building it is slow, and copying it to an accelerator needs a host sync."""
    # A table built in inference_mode could not be used for training later.
    with torch.inference_mode(False):
        return _build_monomials(D, order, order_weights, device, dtype)
