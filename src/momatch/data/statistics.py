"""Mean and standard deviation of each channel, for normalising images."""

import math

import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.rows import PixelRows, Rows

#: The benchmark protocol's (mean, standard deviation) by dataset name, for channels in [0, 1].
KNOWN_STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "stl10": ((112.4 / 255, 109.1 / 255, 98.6 / 255), (68.4 / 255, 66.6 / 255, 68.5 / 255)),
}


def normalization(name: str, pool: Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, standard deviation) for dataset `name`: from the protocol if it defines them, else computed from `pool`."""
    if name in KNOWN_STATISTICS and len(KNOWN_STATISTICS[name][0]) == pool.shape[0]:
        return KNOWN_STATISTICS[name]
    return channel_statistics(pool)


def channel_statistics(images: Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and (population) standard deviation of each channel over all pixels of all images, in [0, 1].

    Levels are counted chunk by chunk, so memory is bounded and both sums are exact integers: the result does not depend on
    chunks, threads or the machine.

    Returns:
        (mean, standard deviation), C numbers each. The deviation of a constant channel is 1, so that it normalises to 0.

    Raises:
        ValueError: if there are no images, or `images` is features.
    """
    if not isinstance(images, PixelRows):
        raise ValueError(f"images: got {images.describe()}; expected pixels: features have no channels")
    if not len(images):
        raise ValueError("images: got none, expected at least one")
    counts = torch.zeros(images.shape[0], 256, dtype=torch.int64)
    for chunk in images.chunks():
        for channel, levels in enumerate(chunk.unbind(1)):
            counts[channel] += torch.bincount(levels.reshape(-1), minlength=256)
    means, deviations = zip(*(_mean_and_deviation(row) for row in counts), strict=True)
    return means, deviations


def _mean_and_deviation(counts: Int64[Tensor, "256"]) -> tuple[float, float]:
    per_level = list(enumerate(counts.tolist()))
    n = sum(count for _, count in per_level)
    total = sum(level * count for level, count in per_level)
    # n^2 times the variance, in Python integers to avoid cancellation.
    spread = n * sum(level * level * count for level, count in per_level) - total * total
    return total / n / 255, math.sqrt(spread) / n / 255 if spread else 1.0
