"""FixMatch (Sohn et al., 2020): one fixed cutoff."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from momatch.numerics.checks import check_fraction
from momatch.pseudo_labels.policy import CUTOFF, Policy, prepare


class FixMatchPolicy(Policy):
    """Weight 1 if the maximum of the posterior reaches a fixed cutoff, else 0.

    Args:
        cutoff: minimum confidence for a pseudo-label to count.
    """

    def __init__(self, *, cutoff: float = CUTOFF) -> None:
        super().__init__()
        self.cutoff = check_fraction("cutoff", cutoff)

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 or 1; `indices` are not used.

        Raises:
            ValueError: if shapes do not match or the batch is empty.
        """
        posterior, keep = prepare(posterior, indices, exclude)
        return keep * (posterior.amax(-1) >= self.cutoff)

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """Minimum confidence of a pseudo-label, by class."""
        return torch.full((num_classes,), self.cutoff)
