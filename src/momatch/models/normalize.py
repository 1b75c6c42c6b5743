"""Normalisation of pixels, ``(x / 255 - mean) / std`` per channel, as a module that is saved with the weights."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Normalize(nn.Module):
    """Scale pixels to 0-1 and standardise each channel: (x - mean) / std.

    uint8 images are taken as 0-255, floating ones as 0-1. The statistics are buffers: they move with the model, are saved
    with it and become constants of an exported graph.

    Args:
        mean: one value per channel, of pixels scaled to 0-1.
        std: likewise, positive.

    Raises:
        ValueError: if the lengths differ, a value is not finite, a std is not positive, or the values are on the 0-255 scale.
    """

    mean: Float[Tensor, " C"]
    std: Float[Tensor, " C"]

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        mean, std = tuple(float(value) for value in mean), tuple(float(value) for value in std)
        if not mean or len(mean) != len(std):
            raise ValueError(f"got {len(mean)} means and {len(std)} stds, expected one of each per channel")
        if not all(math.isfinite(value) for value in mean + std) or min(std) <= 0:
            raise ValueError(f"got mean {mean} and std {std}, expected finite values and a positive std")
        if max(map(abs, mean + std)) > 1:
            raise ValueError(
                f"got mean {mean} and std {std}, expected statistics of pixels scaled to 0-1; divide them by 255"
            )
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, x: Tensor) -> Float[Tensor, "n C H W"]:
        """Normalise images.

        Args:
            x: (n, C, H, W), uint8 (0-255) or floating (0-1).

        Returns:
            Floating images of the same shape, in the dtype of the statistics.

        Raises:
            ValueError: if `x` has another shape or dtype.
        """
        channels = self.mean.shape[0]
        if x.ndim != 4 or x.shape[1] != channels:
            raise ValueError(f"images: got shape {tuple(x.shape)}, expected (n, {channels}, H, W)")
        if x.dtype != torch.uint8 and not x.is_floating_point():
            raise ValueError(f"images: got dtype {x.dtype}, expected uint8 (0-255) or floating point (0-1)")
        # One multiplication and one addition per pixel; only C numbers are divided.
        scale = 1 / self.std
        shift = (-self.mean * scale)[:, None, None]
        if x.dtype == torch.uint8:
            scale = scale / 255
        return x.to(self.mean.dtype) * scale[:, None, None] + shift

    def extra_repr(self) -> str:
        """The number of channels; the values are in the buffers."""
        return f"channels={self.mean.shape[0]}"
