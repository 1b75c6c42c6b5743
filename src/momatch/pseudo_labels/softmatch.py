"""SoftMatch (Chen et al., 2023): a weight that falls off below the mean confidence."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from momatch.numerics.checks import check_fraction, check_positive_int
from momatch.pseudo_labels.policy import MOMENTUM, Policy, masked_mean, move_average, prepare


class SoftMatchPolicy(Policy):
    """A weight instead of a cutoff: 1 above the mean confidence, falling as a Gaussian below it.

    With exponential averages of the mean mu (from 1/K) and the variance s2 (from 1) of max p, the weight is
    exp(-min(max p - mu, 0)^2 / (2 s2 / 4)). max p is that of the posterior aligned to uniform classes, p~ its running mean:
    for the weight only, the pseudo-label stays what the model said.

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

    @classmethod
    def build(cls, *, num_classes: int, num_samples: int, cutoff: float) -> "SoftMatchPolicy":
        """The policy of `num_classes`; its weights follow the model."""
        return cls(num_classes)

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, within 0 to 1; `indices` are not needed.

        Raises:
            ValueError: if shapes do not fit or the batch is empty.
        """
        posterior, keep = prepare(posterior, indices, exclude, num_classes=self.num_classes)
        move_average(self.mean_posterior, masked_mean(posterior, keep), keep, self.momentum)
        # Three numbers may reach 0: the average of a class never seen, the sum of a row that takes no part, the variance.
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
        """The (aligned) confidence from which a pseudo-label of each class counts in full: the same for all."""
        return self.mean.expand(num_classes)
