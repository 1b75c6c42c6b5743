"""Pseudo-Label (Lee, 2013)."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Outputs, Sizes, Targets, Wants
from momatch.algorithms.targets import ramp
from momatch.algorithms.weighted import WeightedPseudoLabels
from momatch.pseudo_labels import FixMatchPolicy


class PseudoLabel(WeightedPseudoLabels):
    """The predicted class of a view is the label of the same view, if it is confident.

    Args:
        sizes: not used.
        cutoff: minimum confidence.
        unlabeled_weight: weight of the loss, at the end of the ramp.
        ramp_up: fraction of the training over which the weight rises from 0.
    """

    wants = Wants(trained=("weak",), splits=False)

    def __init__(self, sizes: Sizes, *, cutoff: float, unlabeled_weight: float, ramp_up: float) -> None:
        super().__init__(FixMatchPolicy(cutoff=cutoff), unlabeled_weight=unlabeled_weight)
        self.ramp_up = ramp_up

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """mean(weight * CE(weak, its own prediction))."""
        sample_losses = F.cross_entropy(outputs["weak"].log_joint, pseudo.target, reduction="none")
        weight = self.unlabeled_weight * ramp(outputs.progress, self.ramp_up)
        return {"unlabeled_loss": weight * (pseudo.weight * sample_losses).mean()}
