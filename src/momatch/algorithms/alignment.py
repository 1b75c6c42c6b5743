"""Distribution alignment: posteriors corrected so that on average they have the classes' expected frequencies."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from momatch.pseudo_labels.policy import masked_mean, move_average

#: Keeps a class that is never predicted from dividing by 0.
SMALLEST_SHARE = 1e-6


def align(
    posterior: Float[Tensor, "u K"], mean: Float[Tensor, " K"], target: Float[Tensor, " K"]
) -> Float[Tensor, "u K"]:
    """p * target / mean, normalised."""
    aligned = posterior * ((target + SMALLEST_SHARE) / (mean + SMALLEST_SHARE))
    return aligned / aligned.sum(-1, keepdim=True)


class LabelAlignment(nn.Module):
    """ReMixMatch's: an exponential moving average of the posterior is aligned to the frequencies of the labels.

    Args:
        num_classes: K.
        momentum: of the average, which starts at the first batch's mean.
    """

    mean: Tensor
    label_counts: Tensor
    started: Tensor

    def __init__(self, num_classes: int, *, momentum: float = 0.999) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.full((num_classes,), 1.0 / num_classes))
        # As integers: a float32 stops counting at 2^24 labels.
        self.register_buffer("label_counts", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    def forward(
        self, posterior: Float[Tensor, "u K"], keep: Float[Tensor, " u"], labels: Integer[Tensor, " b"]
    ) -> Float[Tensor, "u K"]:
        """Update the average with the samples that count and align all of them."""
        counted = (keep > 0).to(posterior.dtype)
        self.label_counts.scatter_add_(0, labels, torch.ones_like(labels, dtype=torch.int64))
        mean = masked_mean(posterior, counted).to(self.mean.dtype)
        # Until there is an average, the first batch that counts is it.
        is_first = (counted.amax() > 0) & ~self.started
        self.mean.copy_(torch.where(is_first, mean, self.mean))
        move_average(self.mean, mean, counted, self.momentum)
        self.started |= is_first
        target = (self.label_counts / self.label_counts.sum()).to(posterior.dtype)
        return align(posterior, self.mean.to(posterior.dtype), target)


class RecentAlignment(nn.Module):
    """CoMatch's: the mean posterior of the last batches is aligned to equal frequencies.

    Args:
        num_classes: K.
        length: number of batches.
    """

    means: Tensor
    filled: Tensor

    def __init__(self, num_classes: int, *, length: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(length, num_classes))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def forward(self, posterior: Float[Tensor, "u K"], keep: Float[Tensor, " u"]) -> Float[Tensor, "u K"]:
        """Remember the mean of the samples that count, if any, and align all of them."""
        length, num_classes = self.means.shape
        counted = (keep > 0).to(posterior.dtype)
        any_counted = counted.amax() > 0
        place = (self.filled % length).unsqueeze(0)
        new = masked_mean(posterior, counted).to(self.means.dtype).unsqueeze(0)
        self.means.index_copy_(0, place, torch.where(any_counted, new, self.means.index_select(0, place)))
        self.filled += any_counted
        mean = self.means.sum(0) / self.filled.clamp(1, length)
        # Before any batch has counted there is nothing to correct.
        mean = torch.where(self.filled > 0, mean, 1.0 / num_classes)
        return align(posterior, mean.to(posterior.dtype), torch.full_like(mean, 1.0 / num_classes))


class MovingAlignment(nn.Module):
    """SimMatchV2's: a moving average of the posterior, without the batch itself, is aligned to equal frequencies.

    Args:
        num_classes: K.
        momentum: of the average, which starts at 1/K.
    """

    mean: Tensor

    def __init__(self, num_classes: int, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.full((num_classes,), 1.0 / num_classes))

    def forward(self, posterior: Float[Tensor, "u K"], keep: Float[Tensor, " u"]) -> Float[Tensor, "u K"]:
        """Align all samples, then update the average with those that count."""
        mean = self.mean.to(posterior.dtype)
        aligned = align(posterior, mean, torch.full_like(mean, 1.0 / len(mean)))
        counted = (keep > 0).to(posterior.dtype)
        move_average(self.mean, masked_mean(posterior, counted), counted, self.momentum)
        return aligned
