"""SimMatch (Zheng et al., 2022): views agree on the class and on the similarities to the labelled samples."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Guess, Outputs, Sizes, Targets, Wants
from momatch.algorithms.alignment import RecentAlignment
from momatch.algorithms.memory import LabeledMemory, log_similarity, similarity
from momatch.algorithms.projector import Projector
from momatch.algorithms.targets import soft_cross_entropy

#: Momentum of a labelled sample's embedding.
MEMORY_MOMENTUM = 0.7


class SimMatch(Algorithm):
    """Soft pseudo-labels from the classifier and the labels of similar samples, and similarities corrected by the classifier.

    Args:
        sizes: K, the number of labelled samples and the size of the features.
        cutoff: minimum confidence of the smoothed pseudo-label.
        smoothing: share of the sample's own posterior in its pseudo-label; the rest is that of similar labelled samples.
        alignment_steps: number of batches whose mean posterior is aligned.
        contrast_dim: size of the embeddings.
        contrast_temperature: of similarities.
        unlabeled_weight: weight of the pseudo-label loss.
        contrast_weight: weight of the loss of similarities.
    """

    wants = Wants(features=True)
    terms: ClassVar[tuple[str, ...]] = ("unlabeled_loss", "contrast_loss")

    def __init__(
        self,
        sizes: Sizes,
        *,
        cutoff: float,
        smoothing: float,
        alignment_steps: int,
        contrast_dim: int,
        contrast_temperature: float,
        unlabeled_weight: float,
        contrast_weight: float,
    ) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.smoothing = smoothing
        self.contrast_temperature = contrast_temperature
        self.unlabeled_weight = unlabeled_weight
        self.contrast_weight = contrast_weight
        self.projector = Projector(sizes.num_features, contrast_dim)
        self.alignment = RecentAlignment(sizes.num_classes, length=alignment_steps)
        self.memory = LabeledMemory(sizes.num_labeled, contrast_dim, momentum=MEMORY_MOMENTUM)

    def label(self, guess: Guess) -> Targets:
        """The aligned posterior and the similarities, each corrected by the other; then the memory is updated."""
        assert guess.features is not None
        assert guess.labeled_features is not None
        own = self.alignment(guess.posterior, guess.keep)
        embeddings, labels, seen = self.memory.read()
        similar = similarity(self.projector(guess.features), embeddings, seen, self.contrast_temperature)  # (u, M)
        by_class = torch.zeros_like(own).index_add_(1, labels, similar)
        target = torch.where(seen.any(), self.smoothing * own + (1.0 - self.smoothing) * by_class, own)
        corrected = similar * own[:, labels]
        corrected = corrected / corrected.sum(-1, keepdim=True).clamp_min(torch.finfo(own.dtype).tiny)
        self.memory.write(self.projector(guess.labeled_features), guess.labels, guess.labeled_indices)
        notes = {"similar": corrected, "embeddings": embeddings, "seen": seen}
        return Targets(target, guess.keep * (target.amax(-1) >= self.cutoff), guess.keep, notes)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropy of confident samples, and of the strong view's similarities against the weak one's."""
        sample_losses = soft_cross_entropy(outputs["strong"].log_joint, pseudo.target)
        features, notes = outputs["strong"].features, pseudo.notes
        assert features is not None
        log_similar = log_similarity(
            self.projector(features), notes["embeddings"], notes["seen"], self.contrast_temperature
        )
        contrast = -(notes["similar"] * log_similar).sum(-1) * notes["seen"].any()
        return {
            "unlabeled_loss": self.unlabeled_weight * (pseudo.weight * sample_losses).mean(),
            "contrast_loss": self.contrast_weight * (pseudo.keep * contrast).mean(),
        }

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"] | None:
        """The cutoff."""
        return torch.full((num_classes,), self.cutoff)
