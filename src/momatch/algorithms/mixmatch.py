"""MixMatch (Berthelot et al., 2019)."""

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Guess, Outputs, Sizes, Targets, Wants
from momatch.algorithms.mixing import MixedSamples
from momatch.algorithms.targets import ramp, sharpen, squared_error


class MixMatch(MixedSamples):
    """The mean posterior of two weak views, sharpened, is the target of both; then all samples are mixed in pairs.

    Args:
        sizes: not used.
        temperature: of the sharpening.
        mix_alpha: parameter of the Beta distribution that the mixing share is drawn from; 0 mixes nothing.
        unlabeled_weight: weight of the loss, at the end of the ramp.
        ramp_up: fraction of the training over which the weight rises from 0.
    """

    wants = Wants(trained=(), guessed=("weak", "weak_1"), guess="first", labeled=False, mixed=("weak", "weak_1"))

    def __init__(
        self, sizes: Sizes, *, temperature: float, mix_alpha: float, unlabeled_weight: float, ramp_up: float
    ) -> None:
        super().__init__(mix_alpha=mix_alpha)
        self.temperature = temperature
        self.unlabeled_weight = unlabeled_weight
        self.ramp_up = ramp_up

    def label(self, guess: Guess) -> Targets:
        """The sharpened posterior, of every sample."""
        return Targets(sharpen(guess.posterior, self.temperature), guess.keep, guess.keep)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """mean(mean_k (p_k - target_k)^2) over the mixed unlabelled samples of both views."""
        targets = outputs.mixing.targets if outputs.mixing is not None else {}
        errors = [squared_error(outputs[f"mixed_{view}"].log_joint, targets[view]) for view in self.wants.mixed]
        weight = self.unlabeled_weight * ramp(outputs.progress, self.ramp_up)
        return {"unlabeled_loss": weight * (pseudo.weight * torch.stack(errors)).mean()}
