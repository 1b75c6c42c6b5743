"""ReMixMatch (Berthelot et al., 2020): MixMatch with distribution alignment, augmentation anchoring and rotations."""

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from momatch.algorithms.algorithm import Guess, Outputs, Sizes, Targets, Wants
from momatch.algorithms.alignment import LabelAlignment
from momatch.algorithms.mixing import MixedSamples
from momatch.algorithms.targets import ramp, sharpen, soft_cross_entropy


class ReMixMatch(MixedSamples):
    """The weak view's posterior, aligned and sharpened, is the target of two strong views; then all samples are mixed in pairs.

    Args:
        sizes: K and the size of the features.
        temperature: of the sharpening.
        mix_alpha: parameter of the Beta distribution that the mixing share is drawn from; 0 mixes nothing.
        unlabeled_weight: weight of the mixed loss, at the end of the ramp.
        anchor_weight: weight of the loss of the strong view that is not mixed, likewise.
        rotation_weight: weight of telling by how much an image is turned; 0 turns none.
        ramp_up: fraction of the training over which the weights rise from 0.
    """

    wants = Wants(
        trained=("strong",),
        guess="first",
        labeled=False,
        mixed=("strong", "strong_1", "weak"),
        rotated="strong",
        features=True,
    )
    terms: ClassVar[tuple[str, ...]] = ("unlabeled_loss", "anchor_loss", "rotation_loss")

    def __init__(
        self,
        sizes: Sizes,
        *,
        temperature: float,
        mix_alpha: float,
        unlabeled_weight: float,
        anchor_weight: float,
        rotation_weight: float,
        ramp_up: float,
    ) -> None:
        super().__init__(mix_alpha=mix_alpha)
        self.temperature = temperature
        self.unlabeled_weight = unlabeled_weight
        self.anchor_weight = anchor_weight
        self.rotation_weight = rotation_weight
        self.ramp_up = ramp_up
        self.alignment = LabelAlignment(sizes.num_classes)
        self.turn: nn.Linear | None = None
        if rotation_weight:
            self.turn = nn.Linear(sizes.num_features, 4)
        else:
            self.wants = replace(self.wants, rotated=None, features=False)

    def label(self, guess: Guess) -> Targets:
        """The aligned and sharpened posterior, of every sample."""
        aligned = self.alignment(guess.posterior, guess.keep, guess.labels)
        return Targets(sharpen(aligned, self.temperature), guess.keep, guess.keep)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropies of the mixed views, of the strong view alone, and of the quarter turns."""
        targets = outputs.mixing.targets if outputs.mixing is not None else {}
        mixed = [soft_cross_entropy(outputs[f"mixed_{view}"].log_joint, targets[view]) for view in self.wants.mixed]
        anchor = soft_cross_entropy(outputs["strong"].log_joint, pseudo.target)
        rise = ramp(outputs.progress, self.ramp_up)
        return {
            "unlabeled_loss": self.unlabeled_weight * rise * (pseudo.weight * torch.stack(mixed)).mean(),
            "anchor_loss": self.anchor_weight * rise * (pseudo.weight * anchor).mean(),
            "rotation_loss": self.rotation_weight * self._rotation_loss(outputs, pseudo),
        }

    def _rotation_loss(self, outputs: Outputs, pseudo: Targets) -> Float[Tensor, ""]:
        if self.turn is None:
            return outputs["strong"].log_joint.new_zeros(())
        features = outputs["rotated"].features
        assert features is not None
        assert outputs.turns is not None
        return (pseudo.keep * F.cross_entropy(self.turn(features), outputs.turns, reduction="none")).mean()
