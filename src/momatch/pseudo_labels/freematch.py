"""FreeMatch (Wang et al., 2023): thresholds that follow the model's confidence, and a fairness loss."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from momatch.numerics.checks import check_fraction, check_positive_int
from momatch.pseudo_labels.policy import MOMENTUM, Policy, masked_mean, move_average, one_hot, prepare


class FreeMatchPolicy(Policy):
    """Thresholds that follow the model's confidence, globally and by class.

    With exponential moving averages tau of max p, p~ of p and h~ of the predicted classes (all starting at 1/K and updated
    first), a sample of class c counts if max p >= tau * p~_c / max p~.

    Args:
        num_classes: K.
        momentum: of the averages.
    """

    tau: Tensor
    mean_posterior: Tensor
    mean_histogram: Tensor

    def __init__(self, num_classes: int, *, momentum: float = MOMENTUM) -> None:
        super().__init__()
        self.num_classes = check_positive_int("num_classes", num_classes)
        self.momentum = check_fraction("momentum", momentum)
        self.register_buffer("tau", torch.tensor(1.0 / num_classes))
        self.register_buffer("mean_posterior", torch.full((num_classes,), 1.0 / num_classes))
        self.register_buffer("mean_histogram", torch.full((num_classes,), 1.0 / num_classes))

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 or 1; `indices` are not used.

        Raises:
            ValueError: if shapes do not match or the batch is empty.
        """
        posterior, keep = prepare(posterior, indices, exclude, num_classes=self.num_classes)
        confidence, labels = posterior.max(-1)
        move_average(self.tau, masked_mean(confidence, keep), keep, self.momentum)
        move_average(self.mean_posterior, masked_mean(posterior, keep), keep, self.momentum)
        move_average(self.mean_histogram, masked_mean(one_hot(labels, posterior), keep), keep, self.momentum)
        return keep * (confidence >= self.thresholds(self.num_classes)[labels])

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """Minimum confidence of a pseudo-label, by class."""
        return self.tau * self.mean_posterior / self.mean_posterior.amax()

    def fairness_loss(self, strong_posterior: Float[Tensor, "n K"], weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """Self-adaptive fairness loss: sum_c norm(p~/h~)_c log norm(pbar/h)_c.

        pbar and h are the mean and histogram of the strong views with positive weight; classes that do not occur among them are
        left out, and the loss is 0 without such views. It is negative by design and meant for a small weight (0.001).

        Args:
            strong_posterior: posterior of the strong views, with gradient.
            weight: result of `forward` for these samples.

        Raises:
            ValueError: if shapes do not match or the batch is empty.
        """
        strong_posterior, counted = prepare(
            strong_posterior, weight, weight <= 0, num_classes=self.num_classes, name="weight"
        )
        mean = masked_mean(strong_posterior, counted)
        histogram = masked_mean(one_hot(strong_posterior.argmax(-1), strong_posterior), counted)
        seen = histogram > 0
        safe = torch.where(seen, histogram, 1.0)
        # The inner where keeps log 0 out of the gradient.
        ratio = torch.where(seen, mean, 1.0) / safe
        log_ratio = torch.where(seen, ratio.log() - torch.where(seen, ratio, 0.0).sum().clamp_min(1e-30).log(), 0.0)
        # The ratio would overflow for a class that has not been predicted for very long.
        known = self.mean_histogram >= torch.finfo(self.mean_histogram.dtype).tiny
        target = torch.where(known, self.mean_posterior / self.mean_histogram, 0.0)
        return ((target / target.sum()) * log_ratio).sum()
