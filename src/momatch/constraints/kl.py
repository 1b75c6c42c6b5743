"""KL divergence to a Gaussian, an alternative to moments (docs/method.md, "Other constraints")."""

from jaxtyping import Float, Integer
from torch import Tensor, nn

from momatch.constraints.clusters import checked_groups
from momatch.numerics.precision import full_precision


class KLConstraint(nn.Module):
    """KL divergence from a diagonal Gaussian fitted to each cluster to the Gaussian of the head, in closed form.

        KL = 1/2 sum_d [ s_d^2 / var_d + (m_d - mu_d)^2 / var_d - 1 - log(s_d^2 / var_d) ]

    with m and s^2 the mean and (biased) variance of the cluster's embeddings. Like the KL term of the
    ELBO, it constrains only means and variances, not correlations or shape.

    Args:
        whiten: use the head's variances as var; otherwise 1.
        floor: lower bound on s^2 / var in the logarithm, so that a single sample has a finite divergence.

    Raises:
        ValueError: if `floor` is not positive.
    """

    def __init__(self, *, whiten: bool = False, floor: float = 1e-6) -> None:
        super().__init__()
        if not floor > 0:
            raise ValueError(f"floor: got {floor!r}, expected a positive number")
        self.whiten = whiten
        self.floor = floor

    def forward(
        self,
        z: Float[Tensor, "n D"],
        centers: Float[Tensor, "K D"],
        assignment: Integer[Tensor, " n"] | Float[Tensor, "n K"],
        variances: Float[Tensor, "K D"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of a batch; arguments and errors as for `momatch.MomentConstraint`."""
        groups, _ = checked_groups(z, centers, assignment, variances, whiten=self.whiten)
        with full_precision(z)[1]:
            u, weights = groups.residuals, groups.weights
            means = groups.mean(u)  # (B, C, D), relative to the center; in units of sigma if whitened
            deviations = u.unsqueeze(2) - means.unsqueeze(1)  # (B, m, C, D)
            spread = groups.divide_by_totals((weights.unsqueeze(-1) * deviations.square()).sum(1))
            divergence = 0.5 * (spread + means.square() - 1.0 - spread.clamp_min(self.floor).log()).sum(-1)
            return (groups.shares * divergence).sum()

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"whiten={self.whiten}, floor={self.floor}"
