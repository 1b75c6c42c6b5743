"""The moment loss from Gram matrices: O(n^2 D) time and O(n^2) memory for any order, instead of D^p cells.

The sum over a class's cells of the product of two samples' monomials is a polynomial in the Gram matrices P_r = (u^r)(u^r)^T
(docs/method.md, "The Gram identity"), so sum_cells M^2 is its mean over the pairs of a cluster. The target is 0 in all classes
but (2), (4) and (2, 2). The first two have D cells and are computed directly. For (2, 2) the target is subtracted per sample:
with v = u^2 - 1, V = v v^T and x = sum_d v,

    sum over d != e of (u_d^2 u_e^2 - 1)(u'_d^2 u'_e^2 - 1) = V (2 P_2 - V) + 2 x x' - (u^4 - 1)(u'^4 - 1)^T,

which avoids cancellation of large terms when the moments are close to the target.
"""

from collections import defaultdict

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.constraints.cells import Partition
from momatch.constraints.clusters import Groups, pair_sum


def gram_moment_loss(groups: Groups, order: int, weights: dict[Partition, float]) -> Float[Tensor, ""]:
    """sum_k n_k/n * sum over cells of weight * (M - T)^2, from Gram matrices.

    Args:
        groups: residuals by cluster.
        order: p, 1 to 4.
        weights: weight of one cell of each class.
    """

    def of_pairs(rows: Tensor, columns: Tensor) -> Tensor:
        return _pair_polynomial(rows, columns, order, weights)

    loss = pair_sum(groups, of_pairs)
    u = groups.residuals
    for partition, power, target in (((2,), 2, 1.0), ((4,), 4, 3.0)):
        if power <= order:
            errors = groups.mean(u**power - target).square().sum(-1)  # (B, C)
            loss = loss + weights[partition] * (groups.shares * errors).sum()
    return loss


def _pair_polynomial(
    rows: Float[Tensor, "b r D"], columns: Float[Tensor, "b c D"], order: int, weights: dict[Partition, float]
) -> Float[Tensor, "b r c"]:
    """sum over cells of weight * (product of both samples' monomials, minus targets), for every pair.

    The classes' polynomials (docs/method.md has their table) are collected by powers of P_1.
    """
    w: dict[Partition, float] = defaultdict(float, weights)  # classes without cells have weight 0
    P1 = _gram(rows, columns)
    if order == 1:
        return w[1,] * P1
    v, v_columns = rows.square() - 1, columns.square() - 1
    V = _gram(v, v_columns)
    x, x_columns = v.sum(-1).unsqueeze(-1), v_columns.sum(-1).unsqueeze(-2)
    P2 = V + (x + (x_columns + rows.shape[-1]))
    if order == 2:
        return w[1,] * P1 + w[1, 1] * (P1 * P1 - P2)
    P3 = _gram(rows**3, columns**3)
    by_P1 = w[1,] + P1 * (w[1, 1] + w[1, 1, 1] * P1) + 3 * (w[2, 1] - w[1, 1, 1]) * P2
    rest = (w[3,] - 3 * w[2, 1] + 2 * w[1, 1, 1]) * P3 - w[1, 1] * P2
    if order == 3:
        return P1 * by_P1 + rest
    fourth, fourth_columns = rows**4 - 1, columns**4 - 1
    Q = _gram(fourth, fourth_columns)
    P4 = Q + (fourth.sum(-1).unsqueeze(-1) + (fourth_columns.sum(-1).unsqueeze(-2) + rows.shape[-1]))
    by_P1 = by_P1 + P1 * (w[1, 1, 1, 1] * P1 * P1 + 6 * (w[2, 1, 1] - w[1, 1, 1, 1]) * P2)
    by_P1 = by_P1 + (4 * w[3, 1] - 12 * w[2, 1, 1] + 8 * w[1, 1, 1, 1]) * P3
    rest = rest + (3 * w[1, 1, 1, 1] - 6 * w[2, 1, 1]) * P2 * P2
    rest = rest + (12 * w[2, 1, 1] - 4 * w[3, 1] - 6 * w[1, 1, 1, 1]) * P4
    with_target = V * (2 * P2 - V) + 2 * (x * x_columns) - Q
    return P1 * by_P1 + rest + 3 * w[2, 2] * with_target


def _gram(rows: Tensor, columns: Tensor) -> Tensor:
    return torch.matmul(rows, columns.transpose(1, 2))
