"""CoMatch (Li, Xiong and Hoi, 2021): pseudo-labels smoothed by a memory, embeddings contrasted by a graph of pseudo-labels."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Guess, Outputs, Sizes, Targets, Wants
from momatch.algorithms.alignment import RecentAlignment
from momatch.algorithms.memory import RecentMemory, similarity
from momatch.algorithms.projector import Projector
from momatch.algorithms.targets import soft_cross_entropy


class CoMatch(Algorithm):
    """FixMatch with soft pseudo-labels that neighbours in the memory smooth, and embeddings that follow the pseudo-labels.

    Args:
        sizes: K and the size of the features.
        cutoff: minimum confidence of the smoothed pseudo-label.
        smoothing: share of the sample's own posterior in its pseudo-label; the rest is that of its neighbours.
        memory_size: number of samples in the memory.
        alignment_steps: number of batches whose mean posterior is aligned.
        contrast_dim: size of the embeddings.
        contrast_temperature: of similarities.
        contrast_cutoff: least agreement of two pseudo-labels that makes their samples similar.
        unlabeled_weight: weight of the pseudo-label loss.
        contrast_weight: weight of the contrastive loss.
    """

    wants = Wants(trained=("weak", "strong", "strong_1"), features=True)
    terms: ClassVar[tuple[str, ...]] = ("unlabeled_loss", "contrast_loss")

    def __init__(
        self,
        sizes: Sizes,
        *,
        cutoff: float,
        smoothing: float,
        memory_size: int,
        alignment_steps: int,
        contrast_dim: int,
        contrast_temperature: float,
        contrast_cutoff: float,
        unlabeled_weight: float,
        contrast_weight: float,
    ) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.smoothing = smoothing
        self.contrast_temperature = contrast_temperature
        self.contrast_cutoff = contrast_cutoff
        self.unlabeled_weight = unlabeled_weight
        self.contrast_weight = contrast_weight
        self.projector = Projector(sizes.num_features, contrast_dim)
        self.alignment = RecentAlignment(sizes.num_classes, length=alignment_steps)
        self.memory = RecentMemory(memory_size, contrast_dim, sizes.num_classes)

    def label(self, guess: Guess) -> Targets:
        """The aligned posterior, smoothed by the memory, which then takes up the batch."""
        assert guess.features is not None
        assert guess.labeled_features is not None
        weak, labeled = self.projector(guess.features), self.projector(guess.labeled_features)
        own = self.alignment(guess.posterior, guess.keep)
        embeddings, posteriors, seen = self.memory.read()
        neighbors = similarity(weak, embeddings, seen, self.contrast_temperature) @ posteriors.to(own.dtype)
        target = torch.where(seen.any(), self.smoothing * own + (1.0 - self.smoothing) * neighbors, own)
        self.memory.take_up(weak, labeled, own, guess)
        return Targets(target, guess.keep * (target.amax(-1) >= self.cutoff), guess.keep)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropy of confident samples, and of two strong views' similarities against the graph of pseudo-labels."""
        sample_losses = soft_cross_entropy(outputs["strong"].log_joint, pseudo.target)
        first, second = outputs["strong"].features, outputs["strong_1"].features
        assert first is not None
        assert second is not None
        products = self.projector(first) @ self.projector(second).T / self.contrast_temperature
        is_other = _is_other(pseudo.keep)
        # Not minus infinity, which times an agreement of 0 is NaN.
        products = products.masked_fill(is_other, 0.5 * torch.finfo(products.dtype).min)
        contrast = -(self.graph(pseudo.target, is_other) * torch.log_softmax(products, -1)).sum(-1)
        return {
            "unlabeled_loss": self.unlabeled_weight * (pseudo.weight * sample_losses).mean(),
            "contrast_loss": self.contrast_weight * (pseudo.keep * contrast).mean(),
        }

    def graph(self, target: Float[Tensor, "u K"], is_other: Bool[Tensor, "u u"]) -> Float[Tensor, "u u"]:
        """Agreement q_i·q_j of pseudo-labels, 1 with themselves, 0 below the cutoff and with outliers; rows sum to 1."""
        agreement = (target @ target.T).fill_diagonal_(1.0).masked_fill(is_other, 0.0)
        agreement = agreement * (agreement >= self.contrast_cutoff)
        return agreement / agreement.sum(-1, keepdim=True)

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"] | None:
        """The cutoff."""
        return torch.full((num_classes,), self.cutoff)


def _is_other(keep: Float[Tensor, " u"]) -> Bool[Tensor, "u u"]:
    """Whether the second of two samples is an outlier and not the first itself: it is neither like it nor unlike it."""
    return (keep == 0).repeat(len(keep), 1).fill_diagonal_(False)
