"""FreeMatch (Wang et al., 2023)."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Outputs, Sizes, Targets
from momatch.algorithms.weighted import WeightedPseudoLabels
from momatch.heads import log_posterior
from momatch.pseudo_labels import FreeMatchPolicy


class FreeMatch(WeightedPseudoLabels):
    """Confidences that follow the model's, and a loss that keeps the predicted classes balanced.

    Args:
        sizes: K.
        unlabeled_weight: weight of the pseudo-label loss.
        fairness_weight: weight of the fairness loss.
    """

    terms: ClassVar[tuple[str, ...]] = ("unlabeled_loss", "fairness_loss")
    policy: FreeMatchPolicy

    def __init__(self, sizes: Sizes, *, unlabeled_weight: float, fairness_weight: float) -> None:
        super().__init__(FreeMatchPolicy(sizes.num_classes), unlabeled_weight=unlabeled_weight)
        self.fairness_weight = fairness_weight

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """The pseudo-label loss and the fairness loss of the strong views that count."""
        strong_posterior = log_posterior(outputs["strong"].log_joint).exp()
        fairness = self.policy.fairness_loss(strong_posterior, pseudo.weight)
        return {**super().losses(outputs, pseudo), "fairness_loss": self.fairness_weight * fairness}
