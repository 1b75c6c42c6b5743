"""The method-of-moments constraint: the moments of order 1 to p of every cluster should be those of a Gaussian.

    loss_p = sum_k n_k/n * mean over non-empty classes of [mean over the class's cells of (M - T)^2]
    loss   = sum_{q <= p} w_q loss_q

M is the cluster's sample moment tensor with D^p cells, T that of N(0, I); see docs/method.md, "The constraint".
`momatch.constraints.gram` and `momatch.constraints.explicit` compute it exactly without building the tensor.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from momatch.constraints.cells import MAX_ORDER, cell_weights
from momatch.constraints.clusters import Groups, check_clusters, group
from momatch.constraints.explicit import explicit_moment_loss, monomial_count
from momatch.constraints.gram import gram_moment_loss
from momatch.numerics.precision import full_precision

Method = Literal["auto", "gram", "explicit"]
Variant = Literal["paper", "published"]

PAPER_WEIGHTS = (1.0, 0.5, 0.25, 0.125)


class MomentConstraint(nn.Module):
    """Penalises clusters whose moments are not those of a Gaussian around their center.

    Args:
        order: p, 0 to 4; includes all lower orders. 0 is no constraint.
        whiten: divide residuals by the head's sigma, so that the target is the head's Gaussian; otherwise it has unit
            variance, as in the paper.
        order_weights: w_1, ..., w_p.
        method: "gram" or "explicit" (both exact), or "auto" for the cheaper one.
        variant: "paper", the definition above, or "published", which reproduces the paper's published code (orders 1 and 2).

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> constraint = MomentConstraint(order=2)
        >>> loss = F.cross_entropy(head(z), labels) + constraint(z, head.centers, labels)
    """

    def __init__(
        self,
        order: int,
        *,
        whiten: bool = False,
        order_weights: Sequence[float] = PAPER_WEIGHTS,
        method: Method = "auto",
        variant: Variant = "paper",
    ) -> None:
        super().__init__()
        if isinstance(order, bool) or not hasattr(order, "__index__") or order not in range(MAX_ORDER + 1):
            raise ValueError(f"order: got {order!r}, expected an integer from 0 to {MAX_ORDER}")
        if len(order_weights) < order or not all(0 <= weight < math.inf for weight in order_weights):
            raise ValueError(f"order_weights: got {order_weights!r}, expected at least {order} numbers of at least 0")
        if method not in get_args(Method):
            raise ValueError(f"method: got {method!r}, expected one of {get_args(Method)}")
        if variant not in get_args(Variant):
            raise ValueError(f"variant: got {variant!r}, expected one of {get_args(Variant)}")
        if variant == "published" and (order > 2 or whiten or tuple(order_weights[:order]) != PAPER_WEIGHTS[:order]):
            raise ValueError(
                f"variant: got 'published' with order={order}, whiten={whiten}, order_weights={tuple(order_weights)}; expected "
                "order 1 or 2, no whitening and the default weights: it reproduces the published code, whose orders 3 and 4 "
                "are wrong; use variant='paper' for anything else"
            )
        self.order = int(order)
        self.whiten = whiten
        self.order_weights = tuple(float(weight) for weight in order_weights)
        self.method = method
        self.variant = variant

    def forward(
        self,
        z: Float[Tensor, "n D"],
        centers: Float[Tensor, "K D"],
        assignment: Integer[Tensor, " n"] | Float[Tensor, "n K"],
        variances: Float[Tensor, "K D"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of a batch, a scalar in float32 or better.

        Args:
            z: embeddings, (n, D).
            centers: the head's centers, (K, D).
            assignment: clusters of the samples: class numbers (n,) or weights (n, K), whose rows normally sum to 1.
            variances: the head's variances, (K, D); used only with `whiten`.

        Raises:
            ValueError: if shapes do not match, the batch is empty, an assignment is out of range (checked on the CPU only;
                elsewhere such samples are ignored) or `whiten` is set without variances.
        """
        check_clusters(z, centers, assignment, variances, whiten=self.whiten)
        dtype, without_autocast = full_precision(z, centers)
        with without_autocast:
            if self.order == 0:
                return z.new_zeros((), dtype=dtype)
            scale = variances.to(dtype) if self.whiten and variances is not None else None
            explicit = self.method == "explicit" or (self.method == "auto" and self._explicit_is_cheaper(*z.shape))
            wants_pairs = not explicit or self.variant == "published"
            groups = group(z.to(dtype), centers.to(dtype), assignment, scale, padded=wants_pairs)
            if self.variant == "published":
                return _published_moment_loss(groups, self.order)
            if explicit:
                return explicit_moment_loss(groups, self.order, self.order_weights)
            return gram_moment_loss(groups, self.order, cell_weights(z.shape[1], self.order, self.order_weights))

    def _explicit_is_cheaper(self, n: int, D: int) -> bool:
        """n * monomials against n^2 pairs; below about 500 monomials the fixed cost of the pairs dominates."""
        return monomial_count(D, self.order) <= max(n, 512)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return (
            f"order={self.order}, whiten={self.whiten}, order_weights={self.order_weights}, "
            f"method={self.method!r}, variant={self.variant!r}"
        )


def _published_moment_loss(groups: Groups, order: int) -> Float[Tensor, ""]:
    """Reproduces the paper's published code at orders 1 and 2, to float tolerance (docs/method.md, "Decisions").

    Its second order ignores the variances (and their half of the weight), compresses the covariances by
    N(x) = sign(x) (sqrt(|x| + 1/4) - 1/2), and returns the square of the sum.
    """
    u, counts = groups.residuals, groups.totals + 1e-7
    weighted = u.unsqueeze(2) * groups.weights.unsqueeze(-1)  # (B, m, C, D)
    first = weighted.sum(1) / counts.unsqueeze(-1)  # (B, C, D)
    loss = (groups.shares * first.square().mean(-1)).sum()
    D = u.shape[-1]
    if order == 2 and D > 1:
        second = torch.einsum("bmcd,bme->bcde", weighted, u) / counts[..., None, None]
        compressed = torch.where(second < 0, -1.0, 1.0) * ((second.abs() + 0.25).sqrt() - 0.5)
        off_diagonal = ~torch.eye(D, dtype=torch.bool, device=u.device)
        covariances = (compressed.square() * off_diagonal).sum((-2, -1)) / (D * (D - 1))
        loss = loss + PAPER_WEIGHTS[1] * 0.5 * (groups.shares * covariances).sum()
    return loss.square()
