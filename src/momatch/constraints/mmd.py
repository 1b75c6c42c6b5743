"""Maximum mean discrepancy to a Gaussian, an alternative to moments (docs/method.md, "Other constraints")."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from momatch.constraints.clusters import checked_groups, pair_sum
from momatch.numerics.precision import full_precision

#: Kernel widths, as factors on the squared width of the median heuristic.
BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


class MMDConstraint(nn.Module):
    """Squared maximum mean discrepancy (RBF kernels) between each cluster's residuals and N(0, I).

        MMD^2 = mean_ij k(u_i, u_j) - 2 mean_i E k(u_i, g) + E k(g, g'),   k(a, b) = exp(-|a - b|^2 / (2 s^2))

    For a Gaussian target both expectations have a closed form:
    E k(u, g) = (s^2/(s^2+1))^(D/2) exp(-|u|^2 / (2 (s^2+1))) and E k(g, g') = (s^2/(s^2+2))^(D/2).

    Args:
        bandwidths: factors on the median heuristic's s^2; the kernels are averaged.
        samples: 0 for the closed form; otherwise the number of samples of N(0, I), drawn at each call, that replace it.
        whiten: divide residuals by the head's sigma, so that the target is the head's Gaussian.
        generator: for `samples`; None for torch's default.

    The median heuristic sets 2 s^2 to the median squared distance between two samples of the target (about 2 D). It does not
    depend on the residuals: a width that shrank with them would hide a collapse.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        *,
        bandwidths: Sequence[float] = BANDWIDTHS,
        samples: int = 0,
        whiten: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not bandwidths or not all(0 < bandwidth < torch.inf for bandwidth in bandwidths):
            raise ValueError(f"bandwidths: got {bandwidths!r}, expected one or more positive, finite numbers")
        if not isinstance(samples, int) or samples < 0:
            raise ValueError(f"samples: got {samples!r}, expected 0 (closed form) or a positive number of samples")
        self.bandwidths = tuple(float(bandwidth) for bandwidth in bandwidths)
        self.samples = samples
        self.whiten = whiten
        self.generator = generator

    def forward(
        self,
        z: Float[Tensor, "n D"],
        centers: Float[Tensor, "K D"],
        assignment: Integer[Tensor, " n"] | Float[Tensor, "n K"],
        variances: Float[Tensor, "K D"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of a batch; arguments and errors as for `momatch.MomentConstraint`."""
        groups, dtype = checked_groups(z, centers, assignment, variances, whiten=self.whiten)
        with full_precision(z)[1]:
            D = z.shape[1]
            widths = self._widths(D, groups.residuals)
            if self.samples:
                target = torch.randn(1, self.samples, D, generator=self.generator, device=z.device, dtype=dtype)
                cross = _kernel(groups.residuals, target, widths).mean(-1)  # (B, m)
                among_target = _kernel(target, target, widths).mean()
            else:
                squared = groups.residuals.square().sum(-1, keepdim=True)  # (B, m, 1)
                scale = (widths / (widths + 1)) ** (D / 2)
                cross = (scale * torch.exp(-squared / (2 * (widths + 1)))).mean(-1)
                among_target = ((widths / (widths + 2)) ** (D / 2)).mean()
            among_samples = pair_sum(groups, lambda rows, columns: _kernel(rows, columns, widths))
            means = groups.mean(cross.unsqueeze(-1)).squeeze(-1)  # (B, C)
            return among_samples + (groups.shares * (among_target - 2.0 * means)).sum()

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"bandwidths={self.bandwidths}, samples={self.samples}, whiten={self.whiten}"

    def _widths(self, D: int, like: Tensor) -> Float[Tensor, " S"]:
        """s^2 for each kernel; filled on the device, because copying it there would need a host sync."""
        # Median of |g - g'|^2: twice that of chi-square with D degrees of freedom (Wilson-Hilferty approximation).
        median = 2.0 * D * (1.0 - 2.0 / (9.0 * D)) ** 3
        return torch.cat([like.new_full((1,), 0.5 * factor * median) for factor in self.bandwidths])


def _kernel(
    rows: Float[Tensor, "b r D"], columns: Float[Tensor, "b2 c D"], widths: Float[Tensor, " S"]
) -> Float[Tensor, "b r c"]:
    """The mean over the widths s^2 of exp(-|a - b|^2 / (2 s^2)), for every pair."""
    squared = _squared_distances(rows, columns).unsqueeze(-1)
    return torch.exp(-squared / (2 * widths)).mean(-1)


def _squared_distances(rows: Tensor, columns: Tensor) -> Tensor:
    products = torch.matmul(rows, columns.transpose(1, 2))
    squared = rows.square().sum(-1).unsqueeze(-1) + columns.square().sum(-1).unsqueeze(-2) - 2.0 * products
    return squared.clamp_min(0.0)
