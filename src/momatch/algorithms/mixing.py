"""Mixup of samples and targets, shared by MixMatch and ReMixMatch."""

import random
from collections.abc import Sequence

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Mixing, Outputs, Targets
from momatch.algorithms.targets import one_hot, soft_cross_entropy


class MixedSamples(Algorithm):
    """Every sample is mixed with a random other one; the labelled ones learn their mixed labels.

    Args:
        mix_alpha: parameter of the Beta distribution that the mixing share is drawn from; 0 mixes nothing.
    """

    def __init__(self, *, mix_alpha: float) -> None:
        super().__init__()
        self.mix_alpha = mix_alpha

    def mix(self, labels: Integer[Tensor, " b"], pseudo: Targets, seed: int) -> Mixing:
        """One share for the batch, and a random partner for each sample."""
        views = self.wants.mixed
        partner = draw_partners(len(labels) + len(pseudo.target) * len(views), seed, labels.device)
        share = draw_share(self.mix_alpha, seed)
        return mix_targets(labels, pseudo.target, pseudo.keep, views, share=share, partner=partner)

    def supervised_loss(self, outputs: Outputs) -> Float[Tensor, ""]:
        """Cross-entropy of the mixed labelled samples."""
        assert outputs.mixing is not None
        return soft_cross_entropy(outputs["mixed_labeled"].log_joint, outputs.mixing.targets["labeled"]).mean()


def draw_share(alpha: float, seed: int) -> float:
    """max(s, 1 - s) with s from Beta(alpha, alpha), so that the larger part is the sample's; 1 (no mixing) for alpha 0."""
    if alpha == 0:
        return 1.0
    share = random.Random(seed).betavariate(alpha, alpha)
    return max(share, 1.0 - share)


def draw_partners(num_samples: int, seed: int, device: torch.device) -> Integer[Tensor, " N"]:
    """A random permutation, drawn on the host: the same on all devices."""
    drawn = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))
    if device.type == "cuda":  # A copy from pageable memory would make the host wait.
        drawn = drawn.pin_memory()
    return drawn.to(device, non_blocking=True)


def mix_targets(
    labels: Integer[Tensor, " b"],
    target: Float[Tensor, "u K"],
    keep: Float[Tensor, " u"],
    views: Sequence[str],
    *,
    share: float,
    partner: Integer[Tensor, " N"],
) -> Mixing:
    """Mix the labelled samples and every view of the unlabelled ones with their partners.

    A partner that may not count (an outlier) is replaced by the sample itself: what belongs to no class must not enter others.

    Args:
        labels: of the labelled samples.
        target: of the unlabelled ones.
        keep: 0 for those that may not count.
        views: of the unlabelled ones, in the order in which they follow the labelled ones.
        share: what is left of a sample, 0 to 1.
        partner: of each of the N = b + u * len(views) samples.
    """
    targets = torch.cat([one_hot(labels, target), *[target] * len(views)])
    counts = torch.cat([keep.new_ones(len(labels)), *[keep] * len(views)])
    itself = torch.arange(len(partner), device=partner.device)
    partner = torch.where(counts[partner] > 0, partner, itself)
    mixed = share * targets + (1.0 - share) * targets[partner]
    parts = mixed.split([len(labels), *[len(target)] * len(views)])
    return Mixing(partner, share, dict(zip(("labeled", *views), parts, strict=True)))
