"""Groups samples by cluster, as input for the constraints.

A constraint uses the weighted residuals u = z - mu_k of cluster k. `Groups` holds B batches of m residuals with C
columns of weights, B * C = K clusters, in one of three layouts:

- hard labels, flat: B = 1, C = K. One residual per sample, to its own center; the weights are one-hot.
- hard labels, padded: B = K, C = 1. Samples sorted by cluster, so that no pairs across clusters are computed. It needs the
  cluster sizes on the host, so it is used only if reading them is free.
- soft weights: B = K, C = 1. Every sample has a residual to every center.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from momatch.numerics.checks import check_embeddings, check_labels, is_readable
from momatch.numerics.precision import full_precision

#: Maximum number of pairs processed at once: enough to keep all cores busy, while a dozen such tensors stay in cache.
PAIRS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Groups:
    """Weighted residuals by cluster.

    Attributes:
        residuals: u = z - mu, divided by sigma if whitened, (B, m, D).
        weights: membership of each sample in the cluster, (B, m, C).
        totals: n_k, total weight of the cluster, (B, C).
        n: number of samples in the batch; a cluster has weight n_k / n in the loss.
    """

    residuals: Float[Tensor, "B m D"]
    weights: Float[Tensor, "B m C"]
    totals: Float[Tensor, "B C"]
    n: int

    @property
    def shares(self) -> Float[Tensor, "B C"]:
        """n_k / n, the weight of each cluster in the loss."""
        return self.totals / self.n

    def mean(self, features: Float[Tensor, "B m F"]) -> Float[Tensor, "B C F"]:
        """Mean of per-sample features over each cluster; 0 for an empty cluster."""
        return self.divide_by_totals(self.weights.transpose(1, 2) @ features)

    def divide_by_totals(self, sums: Float[Tensor, "B C F"]) -> Float[Tensor, "B C F"]:
        """Turn each cluster's weighted sum into its mean; 0 for an empty cluster."""
        return sums / _or_one(self.totals).unsqueeze(-1)

    def pair_factors(self) -> Float[Tensor, "B m C"]:
        """Factors A such that sum_k n_k/n * mean over pairs of k of S equals sum over all pairs of (A A^T) * S."""
        return self.weights / (_or_one(self.totals) * self.n).sqrt().unsqueeze(1)


def check_clusters(
    z: Float[Tensor, "n D"],
    centers: Float[Tensor, "K D"],
    assignment: Integer[Tensor, " n"] | Float[Tensor, "n K"],
    variances: Float[Tensor, "K D"] | None,
    *,
    whiten: bool = False,
) -> None:
    """Check the arguments of a constraint.

    Raises:
        ValueError: naming the argument.
    """
    if centers.ndim != 2 or 0 in centers.shape:
        raise ValueError(f"centers: got shape {tuple(centers.shape)}, expected (K, D) with K and D at least 1")
    check_embeddings(z, centers.shape[1], batch_dims=1)
    if whiten and variances is None:
        raise ValueError(
            "variances: got None, expected the head's variances (K, D), because whiten=True divides by them"
        )
    if variances is not None and variances.shape != centers.shape:
        raise ValueError(
            f"variances: got shape {tuple(variances.shape)}, expected {tuple(centers.shape)} like the centers"
        )
    if variances is not None and is_readable(variances) and not bool((variances > 0).all()):
        raise ValueError("variances: got values that are not positive (or NaN), expected positive ones")
    if not assignment.is_floating_point():
        check_labels(assignment, len(z), len(centers), name="assignment")
        return
    if assignment.shape != (len(z), len(centers)):
        raise ValueError(
            f"assignment: got shape {tuple(assignment.shape)}, expected ({len(z)},) class numbers "
            f"or ({len(z)}, {len(centers)}) weights; class numbers are integers, got {assignment.dtype}"
        )
    if is_readable(assignment) and not bool((assignment >= 0).all()):
        raise ValueError("assignment: got weights that are negative or NaN, expected weights of at least 0")


def group(
    z: Float[Tensor, "n D"],
    centers: Float[Tensor, "K D"],
    assignment: Integer[Tensor, " n"] | Float[Tensor, "n K"],
    variances: Float[Tensor, "K D"] | None = None,
    *,
    padded: bool = False,
) -> Groups:
    """Group samples by cluster.

    Args:
        z: embeddings, (n, D).
        centers: (K, D).
        assignment: class numbers (n,) or weights (n, K).
        variances: divide residuals by their square roots; None for no scaling.
        padded: use the padded layout for hard labels if it has fewer pairs than the flat one and the sizes can be read.
    """
    K = len(centers)
    scales = None if variances is None else variances.rsqrt()
    if assignment.is_floating_point():
        residuals = z.unsqueeze(0) - centers.unsqueeze(1)  # (K, n, D)
        residuals = residuals if scales is None else residuals * scales.unsqueeze(1)
        weights = assignment.to(residuals.dtype).t().unsqueeze(-1)  # (K, n, 1)
        return Groups(residuals, weights, weights.sum(1), len(z))
    # Labels out of range are not detected on accelerators: their weights are 0, and the clamp keeps indexing valid.
    own = assignment.long().clamp(0, K - 1)
    residuals = z - centers[own]
    residuals = residuals if scales is None else residuals * scales[own]
    weights = (assignment.unsqueeze(1) == torch.arange(K, device=z.device)).to(residuals.dtype)  # (n, K)
    if padded and is_readable(assignment):
        sizes = torch.bincount(own, minlength=K)
        longest = int(sizes.max())
        if K * longest * longest < len(z) * len(z):
            return _pad(residuals, own, sizes, longest)
    return Groups(residuals.unsqueeze(0), weights.unsqueeze(0), weights.sum(0, keepdim=True), len(z))


def checked_groups(
    z: Tensor, centers: Tensor, assignment: Tensor, variances: Tensor | None, *, whiten: bool
) -> tuple[Groups, torch.dtype]:
    """Check the arguments and group samples by cluster; returns the groups and their dtype."""
    check_clusters(z, centers, assignment, variances, whiten=whiten)
    dtype, without_autocast = full_precision(z, centers)
    with without_autocast:
        scale = variances.to(dtype) if whiten and variances is not None else None
        return group(z.to(dtype), centers.to(dtype), assignment, scale, padded=True), dtype


def pair_sum(
    groups: Groups, of_pairs: Callable[[Float[Tensor, "b r D"], Float[Tensor, "b c D"]], Float[Tensor, "b r c"]]
) -> Float[Tensor, ""]:
    """sum_k n_k/n * mean over all pairs (i, j) of cluster k of a symmetric function S(u_i, u_j).

    Beyond `PAIRS_AT_ONCE` pairs, they are processed in tiles that are recomputed in the backward pass, so that memory is linear
    in the number of samples.
    """
    u, factors = groups.residuals, groups.pair_factors()
    B, m, _ = u.shape

    def tile(rows: Tensor, row_factors: Tensor, columns: Tensor, column_factors: Tensor) -> Tensor:
        weights = row_factors @ column_factors.transpose(1, 2)
        return (weights * of_pairs(rows, columns)).sum()

    if B * m * m <= PAIRS_AT_ONCE:
        return tile(u, factors, u, factors)
    side = max(1, int(PAIRS_AT_ONCE**0.5))
    batches = max(1, PAIRS_AT_ONCE // min(m, side) ** 2)
    total = u.new_zeros(())
    for some_u, some_factors in zip(u.split(batches), factors.split(batches), strict=True):
        u_tiles, factor_tiles = some_u.split(side, dim=1), some_factors.split(side, dim=1)
        for i in range(len(u_tiles)):
            for j in range(i, len(u_tiles)):
                part = checkpoint(
                    tile, u_tiles[i], factor_tiles[i], u_tiles[j], factor_tiles[j],
                    use_reentrant=False, preserve_rng_state=False,
                )  # fmt: skip
                total = total + (part if i == j else 2.0 * part)
    return total


def _pad(residuals: Tensor, own: Tensor, sizes: Tensor, longest: int) -> Groups:
    """Sort residuals into (K, longest, D), padded with weight 0."""
    n, D = residuals.shape
    order = torch.argsort(own, stable=True)
    starts = sizes.cumsum(0) - sizes
    place = torch.arange(n, device=own.device) - starts[own[order]] + own[order] * longest
    laid_out = residuals.new_zeros(len(sizes) * longest, D).index_copy(0, place, residuals[order])
    weights = residuals.new_zeros(len(sizes) * longest).index_fill(0, place, 1.0)
    shape = (len(sizes), longest)
    return Groups(laid_out.view(*shape, D), weights.view(*shape, 1), sizes.to(residuals.dtype).unsqueeze(-1), n)


def _or_one(totals: Tensor) -> Tensor:
    """The totals, with 1 for an empty cluster, whose sums are 0 anyway."""
    return torch.where(totals > 0, totals, torch.ones_like(totals))
