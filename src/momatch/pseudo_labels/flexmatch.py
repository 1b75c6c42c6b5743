"""FlexMatch (Zhang et al., 2021): cutoffs by class, lower for classes that are learned less."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from momatch.numerics.checks import check_fraction, check_positive_int
from momatch.pseudo_labels.policy import CUTOFF, Policy, prepare


class FlexMatchPolicy(Policy):
    """FixMatch whose cutoff is lowered for the classes that have been learned less so far.

    A memory holds, for every unlabelled sample, the class it was last confidently given (-1: never). With beta_c a class's
    count relative to the largest, a sample counts if max p >= cutoff * beta_c / (2 - beta_c), c its class.

    Args:
        num_classes: K.
        num_samples: N_u, the size of the unlabelled pool that `indices` point into.
        cutoff: the confidence at beta = 1, and from which the memory is written.
        warmup: let the samples never selected take part in the largest count, so that cutoffs start low.
    """

    selected: Tensor
    counts: Tensor
    beta: Tensor
    _latest: Tensor

    def __init__(self, num_classes: int, num_samples: int, *, cutoff: float = CUTOFF, warmup: bool = True) -> None:
        super().__init__()
        self.num_classes = check_positive_int("num_classes", num_classes)
        self.num_samples = check_positive_int("num_samples", num_samples)
        self.cutoff = check_fraction("cutoff", cutoff)
        self.warmup = warmup
        counts = torch.zeros(num_classes + 1, dtype=torch.int64)
        counts[-1] = num_samples  # the last place counts the -1
        self.register_buffer("selected", torch.full((num_samples,), -1, dtype=torch.int64))
        self.register_buffer("counts", counts)
        self.register_buffer("beta", torch.zeros(num_classes))
        self.register_buffer("_latest", torch.full((num_samples,), -1, dtype=torch.int64), persistent=False)

    @classmethod
    def build(cls, *, num_classes: int, num_samples: int, cutoff: float) -> "FlexMatchPolicy":
        """The policy with a memory of `num_samples` and this cutoff."""
        return cls(num_classes, num_samples, cutoff=cutoff)

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 or 1, by the beta of the steps before; then the memory takes this batch in.

        Raises:
            ValueError: if shapes do not fit, the batch is empty or an index is outside the pool.
        """
        posterior, keep = prepare(
            posterior, indices, exclude, num_classes=self.num_classes, num_samples=self.num_samples
        )
        confidence, labels = posterior.max(-1)
        weight = keep * (confidence >= self.thresholds(self.num_classes)[labels])
        self._remember(indices.long(), labels, (confidence >= self.cutoff) & (keep > 0))
        return weight

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """The confidence from which a pseudo-label of each class counts in the next step."""
        return self.cutoff * (self.beta / (2.0 - self.beta))

    def _remember(self, indices: Tensor, labels: Tensor, confident: Tensor) -> None:
        """Write confident labels into the memory and move their counts; an index that comes twice takes its last label."""
        place = torch.arange(len(indices), device=indices.device)
        write = torch.where(confident, place, -1)
        self._latest.index_fill_(0, indices, -1).scatter_reduce_(0, indices, write, "amax")
        winner = self._latest[indices]  # which place writes this sample's label; -1: none
        old = self.selected[indices]
        self.selected[indices] = torch.where(winner >= 0, labels[winner.clamp_min(0)], old)
        moved = (confident & (winner == place)).long()
        self.counts.scatter_add_(0, torch.where(old >= 0, old, self.num_classes), -moved)
        self.counts.scatter_add_(0, labels, moved)
        largest = (self.counts if self.warmup else self.counts[:-1]).amax().clamp_min(1)
        self.beta.copy_(self.counts[:-1] / largest)
