"""FlexMatch (Zhang et al., 2021): one cutoff per class, lower for classes that are learned less well."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from momatch.numerics.checks import check_fraction, check_positive_int
from momatch.pseudo_labels.policy import CUTOFF, Policy, prepare


class FlexMatchPolicy(Policy):
    """FixMatch with a lower cutoff for classes that are learned less well so far.

    A memory holds the last confident pseudo-label of every unlabelled sample (-1: none yet). With beta_c the count of class c
    in the memory relative to the largest, a sample of class c counts if max p >= cutoff * beta_c / (2 - beta_c).

    Args:
        num_classes: K.
        num_samples: N_u, size of the unlabelled pool.
        cutoff: cutoff at beta = 1, and minimum confidence for updating the memory.
        warmup: include samples without a pseudo-label in the largest count, so that cutoffs start low.
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
        counts[-1] = num_samples  # the last entry counts -1
        self.register_buffer("selected", torch.full((num_samples,), -1, dtype=torch.int64))
        self.register_buffer("counts", counts)
        self.register_buffer("beta", torch.zeros(num_classes))
        self.register_buffer("_latest", torch.full((num_samples,), -1, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 or 1, by the current beta; then updates the memory.

        Raises:
            ValueError: if shapes do not match, the batch is empty or an index is outside the pool.
        """
        posterior, keep = prepare(
            posterior, indices, exclude, num_classes=self.num_classes, num_samples=self.num_samples
        )
        confidence, labels = posterior.max(-1)
        weight = keep * (confidence >= self.thresholds(self.num_classes)[labels])
        self._remember(indices.long(), labels, (confidence >= self.cutoff) & (keep > 0))
        return weight

    @torch.no_grad()
    def forget_undrawn(self, is_drawn: Bool[Tensor, " N_u"]) -> None:
        """Forget the others: as samples that never get a pseudo-label they would keep the cutoffs low for ever.

        Raises:
            ValueError: if there is not one value for each sample of the pool.
        """
        if is_drawn.shape != (self.num_samples,):
            raise ValueError(f"is_drawn: got shape {tuple(is_drawn.shape)}, expected ({self.num_samples},)")
        self.selected.masked_fill_(~is_drawn, -1)
        memory = torch.where(self.selected < 0, self.num_classes, self.selected)[is_drawn]
        self.counts.copy_(torch.bincount(memory, minlength=self.num_classes + 1))

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """Minimum confidence of a pseudo-label in the next step, by class."""
        return self.cutoff * (self.beta / (2.0 - self.beta))

    def _remember(self, indices: Tensor, labels: Tensor, confident: Tensor) -> None:
        """Store confident labels in the memory and update the counts. For a repeated index, the last label wins."""
        place = torch.arange(len(indices), device=indices.device)
        write = torch.where(confident, place, -1)
        self._latest.index_fill_(0, indices, -1).scatter_reduce_(0, indices, write, "amax")
        winner = self._latest[indices]  # position in the batch that sets this sample's label; -1: none
        old = self.selected[indices]
        self.selected[indices] = torch.where(winner >= 0, labels[winner.clamp_min(0)], old)
        moved = (confident & (winner == place)).long()
        self.counts.scatter_add_(0, torch.where(old >= 0, old, self.num_classes), -moved)
        self.counts.scatter_add_(0, labels, moved)
        largest = (self.counts if self.warmup else self.counts[:-1]).amax().clamp_min(1)
        self.beta.copy_(self.counts[:-1] / largest)
