"""Memories of embeddings, and similarities to what is in them. All writes are on the device, without a read-back."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn.functional import normalize

from momatch.algorithms.algorithm import Guess
from momatch.algorithms.targets import one_hot


def log_similarity(
    queries: Float[Tensor, "n P"], memory: Float[Tensor, "M P"], seen: Bool[Tensor, " M"], temperature: float
) -> Float[Tensor, "n M"]:
    """log softmax over the memory of q·m / T, of the entries that have been written; 0 for the others.

    If none has been written, the result is that of a full memory of whatever it holds; multiply it by `seen.any()`.
    """
    products = queries @ memory.T.to(queries.dtype) / temperature
    counts = seen | ~seen.any()
    log_weight = torch.log_softmax(products.masked_fill(~counts, -torch.inf), -1)
    return log_weight.masked_fill(~counts, 0.0)


def similarity(
    queries: Float[Tensor, "n P"], memory: Float[Tensor, "M P"], seen: Bool[Tensor, " M"], temperature: float
) -> Float[Tensor, "n M"]:
    """The softmax itself: 0 for entries that have not been written."""
    return log_similarity(queries, memory, seen, temperature).exp() * (seen | ~seen.any())


class RecentMemory(nn.Module):
    """The last `size` samples with their class probabilities; it may be smaller than a batch.

    Args:
        size: M, number of samples.
        dim: P, size of an embedding.
        num_classes: K.
    """

    embeddings: Tensor
    posteriors: Tensor
    written: Tensor

    def __init__(self, size: int, dim: int, num_classes: int) -> None:
        super().__init__()
        self.size = size
        # One entry more than the memory has: samples that are not kept are written there.
        self.register_buffer("embeddings", torch.zeros(size + 1, dim))
        self.register_buffer("posteriors", torch.zeros(size + 1, num_classes))
        self.register_buffer("written", torch.zeros((), dtype=torch.int64))

    @property
    def seen(self) -> Bool[Tensor, " M"]:
        """Which entries have been written."""
        return torch.arange(self.size, device=self.written.device) < self.written

    def read(self) -> tuple[Float[Tensor, "M P"], Float[Tensor, "M K"], Bool[Tensor, " M"]]:
        """Copies of the embeddings and posteriors, and which of them have been written."""
        return self.embeddings[:-1].clone(), self.posteriors[:-1].clone(), self.seen

    def write(
        self, embeddings: Float[Tensor, "n P"], posteriors: Float[Tensor, "n K"], keep: Bool[Tensor, " n"]
    ) -> None:
        """Replace the oldest entries by the samples to keep; of more than `size` by the last ones."""
        rank = keep.cumsum(0) - 1
        count = keep.sum()
        remembered = keep & (rank >= count - self.size)
        place = torch.where(remembered, (self.written + rank) % self.size, self.size)
        self.embeddings.index_copy_(0, place, embeddings.to(self.embeddings.dtype))
        self.posteriors.index_copy_(0, place, posteriors.to(self.posteriors.dtype))
        self.written += count

    def take_up(
        self, weak: Float[Tensor, "u P"], labeled: Float[Tensor, "b P"], posterior: Float[Tensor, "u K"], guess: Guess
    ) -> None:
        """Write a batch: unlabelled samples that may count, with their posteriors, then the labelled ones with their labels."""
        self.write(
            torch.cat([weak, labeled]),
            torch.cat([posterior, one_hot(guess.labels, posterior)]),
            torch.cat([guess.keep > 0, torch.ones_like(guess.labels, dtype=torch.bool)]),
        )


class LabeledMemory(nn.Module):
    """One embedding for each labelled sample: a moving average of its embeddings, of length 1.

    Args:
        size: M, number of labelled samples.
        dim: P, size of an embedding.
        momentum: of the average.
    """

    embeddings: Tensor
    labels: Tensor
    seen: Tensor

    def __init__(self, size: int, dim: int, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("embeddings", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(size, dtype=torch.bool))

    def read(self) -> tuple[Float[Tensor, "M P"], Integer[Tensor, " M"], Bool[Tensor, " M"]]:
        """Copies of embeddings and labels, and which of them have been written."""
        return self.embeddings.clone(), self.labels.clone(), self.seen.clone()

    def write(
        self, embeddings: Float[Tensor, "b P"], labels: Integer[Tensor, " b"], indices: Integer[Tensor, " b"]
    ) -> None:
        """Update the samples at `indices`; one that occurs several times in the batch with its mean."""
        new = embeddings.to(self.embeddings.dtype)
        sums = torch.zeros_like(self.embeddings).index_add_(0, indices, new)
        is_new = torch.zeros_like(self.seen).index_fill_(0, indices, True).unsqueeze(1)
        mean = normalize(sums, dim=-1)
        moved = normalize(self.momentum * self.embeddings + (1.0 - self.momentum) * mean, dim=-1)
        self.embeddings.copy_(torch.where(is_new, moved, self.embeddings))
        self.labels.index_copy_(0, indices, labels)
        self.seen.index_fill_(0, indices, True)
