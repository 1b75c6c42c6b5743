"""UDA, unsupervised data augmentation (Xie et al., 2020)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Guess, Outputs, Sizes, Targets
from momatch.algorithms.targets import sharpen, soft_cross_entropy

Annealing = Literal["none", "linear", "log", "exp"]


class UDA(Algorithm):
    """The strong view learns the sharpened posterior of the weak one; labelled samples that are learned soon may be left out.

    Args:
        sizes: K.
        cutoff: minimum confidence.
        temperature: of the sharpening.
        unlabeled_weight: weight of the loss.
        signal_annealing: how the probability of its class from which on a labelled sample does not count rises to 1: "linear",
            "log" (fast at first) or "exp" (fast at the end); "none" counts them all.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        cutoff: float,
        temperature: float,
        unlabeled_weight: float,
        signal_annealing: Annealing = "none",
    ) -> None:
        super().__init__()
        self.num_classes = sizes.num_classes
        self.cutoff = cutoff
        self.temperature = temperature
        self.unlabeled_weight = unlabeled_weight
        self.signal_annealing: Annealing = signal_annealing

    def label(self, guess: Guess) -> Targets:
        """The sharpened posterior; weight 1 if the posterior itself reaches the cutoff."""
        weight = guess.keep * (guess.posterior.amax(-1) >= self.cutoff)
        return Targets(sharpen(guess.posterior, self.temperature), weight, guess.keep)

    def supervised_loss(self, outputs: Outputs) -> Float[Tensor, ""]:
        """Mean cross-entropy of the labelled samples whose class is less probable than the annealed confidence."""
        log_joint = outputs["labeled"].log_joint
        if self.signal_annealing == "none":
            return super().supervised_loss(outputs)
        sample_losses = F.cross_entropy(log_joint, outputs.labels, reduction="none")
        counts = ((-sample_losses.detach()).exp() <= self.annealed(outputs.progress)).to(log_joint.dtype)
        return (counts * sample_losses).sum() / counts.sum().clamp_min(1.0)

    def annealed(self, progress: float) -> float:
        """The confidence up to which a labelled sample counts: from about 1/K to 1."""
        rise = {
            "linear": progress,
            "log": 1.0 - math.exp(-5.0 * progress),
            "exp": math.exp(5.0 * (progress - 1.0)),
            "none": 1.0,
        }[self.signal_annealing]
        return rise * (1.0 - 1.0 / self.num_classes) + 1.0 / self.num_classes

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """mean(weight * CE(strong, sharpened))."""
        sample_losses = soft_cross_entropy(outputs["strong"].log_joint, pseudo.target)
        return {"unlabeled_loss": self.unlabeled_weight * (pseudo.weight * sample_losses).mean()}

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"] | None:
        """The cutoff."""
        return torch.full((num_classes,), self.cutoff)
