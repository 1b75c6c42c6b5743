"""KL divergence of a cluster's own Gaussian fit, for comparison with the moments (docs/method.md, "Other constraints")."""

from jaxtyping import Float, Integer
from torch import Tensor, nn

from momatch.constraints.clusters import checked_groups
from momatch.numerics.precision import full_precision


class KLConstraint(nn.Module):
    """KL divergence from each cluster's own diagonal Gaussian fit to the Gaussian of the head, in closed form.

        KL = 1/2 sum_d [ s_d^2 / var_d + (m_d - mu_d)^2 / var_d - 1 - log(s_d^2 / var_d) ]

    with m and s^2 the mean and (biased) variance of the cluster's embeddings. It sees positions and widths only, as the ELBO's
    term does: correlations and shape pass unnoticed.

    Args:
        whiten: compare with the head's variances; otherwise with 1.
        floor: the smallest s^2 / var that is told apart, so that a single sample has a finite divergence.

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
            means = groups.mean(u)  # (B, C, D), about the center and in units of the head's sigma
            deviations = u.unsqueeze(2) - means.unsqueeze(1)  # (B, m, C, D)
            spread = groups.divide_by_totals((weights.unsqueeze(-1) * deviations.square()).sum(1))
            divergence = 0.5 * (spread + means.square() - 1.0 - spread.clamp_min(self.floor).log()).sum(-1)
            return (groups.shares * divergence).sum()

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"whiten={self.whiten}, floor={self.floor}"
