"""Shared by FixMatch, FlexMatch, FreeMatch and SoftMatch: the strong view learns the weak one's prediction by a weight."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Guess, Outputs, Targets
from momatch.pseudo_labels import Policy


class WeightedPseudoLabels(Algorithm):
    """loss = mean(weight * CE(strong, argmax p(y | weak))), with the weight of a policy (docs/method.md, "Pseudo-labels").

    Args:
        policy: weighs the samples.
        unlabeled_weight: weight of the loss.
    """

    def __init__(self, policy: Policy, *, unlabeled_weight: float = 1.0) -> None:
        super().__init__()
        self.policy = policy
        self.unlabeled_weight = unlabeled_weight

    def label(self, guess: Guess) -> Targets:
        """The predicted classes, weighed by the policy and P(inlier)."""
        weight = self.policy(guess.posterior, guess.indices, guess.exclude)
        weight = weight if guess.trust is None else weight * guess.trust
        return Targets(guess.posterior.argmax(-1), weight, guess.keep)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """The pseudo-label loss."""
        sample_losses = F.cross_entropy(outputs["strong"].log_joint, pseudo.target, reduction="none")
        return {"unlabeled_loss": self.unlabeled_weight * (pseudo.weight * sample_losses).mean()}

    def forget_undrawn(self, is_drawn: Bool[Tensor, " N_u"]) -> None:
        """As the policy does."""
        self.policy.forget_undrawn(is_drawn)

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"] | None:
        """Those of the policy."""
        return self.policy.thresholds(num_classes)
