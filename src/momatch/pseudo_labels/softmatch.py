"""SoftMatch (Chen et al., 2023): weights that fall off below the mean confidence."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from momatch.numerics.checks import check_fraction, check_positive_int
from momatch.pseudo_labels.policy import MOMENTUM, Policy, masked_mean, move_average, prepare


class SoftMatchPolicy(Policy):
    """Soft weights instead of a cutoff: 1 above the mean confidence, falling like a Gaussian below it.

    With exponential moving averages of the mean mu (starting at 1/K) and the variance s2 (starting at 1) of max p, the weight
    is exp(-min(max p - mu, 0)^2 / (2 s2 / 4)). Here p is the posterior divided by its running mean and normalised (uniform
    alignment); the pseudo-label itself is not aligned.

    Args:
        num_classes: K.
        momentum: of the averages.
    """

    mean: Tensor
    variance: Tensor
    mean_posterior: Tensor

    def __init__(self, num_classes: int, *, momentum: float = MOMENTUM) -> None:
        super().__init__()
        self.num_classes = check_positive_int("num_classes", num_classes)
        self.momentum = check_fraction("momentum", momentum)
        self.register_buffer("mean", torch.tensor(1.0 / num_classes))
        self.register_buffer("variance", torch.tensor(1.0))
        self.register_buffer("mean_posterior", torch.full((num_classes,), 1.0 / num_classes))

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 to 1; `indices` are not used.

        Raises:
            ValueError: if shapes do not match or the batch is empty.
        """
        posterior, keep = prepare(posterior, indices, exclude, num_classes=self.num_classes)
        move_average(self.mean_posterior, masked_mean(posterior, keep), keep, self.momentum)
        # Three denominators may be 0: the mean of an unseen class, the sum of a masked row, and the variance.
        tiny = torch.finfo(self.mean.dtype).tiny
        aligned = posterior / self.mean_posterior.clamp_min(tiny)
        confidence = (aligned / aligned.sum(-1, keepdim=True).clamp_min(tiny)).amax(-1)
        mean = masked_mean(confidence, keep)
        squares = ((confidence - mean).square() * keep).sum()
        move_average(self.mean, mean, keep, self.momentum)
        move_average(self.variance, squares / (keep.sum() - 1).clamp_min(1), keep, self.momentum)
        shortfall = (confidence - self.mean).clamp_max(0.0)
        return keep * torch.exp(-2.0 * shortfall.square() / self.variance.clamp_min(tiny))

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """The (aligned) confidence at which the weight reaches 1; the same for all classes."""
        return self.mean.expand(num_classes)
