"""From bytes to the network's input: (x / 255 - mean) / std, a channel at a time."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor, nn


class Normalize(nn.Module):
    """Images as floating point with mean 0 and deviation 1 in each channel.

    Args:
        mean: one a channel, in units of the full range (0 to 1).
        std: one a channel, positive, in the same units.
        channels_last: lay the result out as (n, H, W, C) in memory, which convolutions on CPUs and tensor cores prefer.

    Raises:
        ValueError: if the lengths differ or a deviation is not positive.
    """

    scale: Float[Tensor, "C 1 1"]
    shift: Float[Tensor, "C 1 1"]

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, channels_last: bool = False) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise ValueError(
                f"mean, std: got {list(mean)} and {list(std)}, expected one mean and one std > 0 a channel"
            )
        deviation = torch.tensor(std, dtype=torch.float64)[:, None, None]
        self.register_buffer("scale", (1 / deviation).float())
        self.register_buffer("shift", (-torch.tensor(mean, dtype=torch.float64)[:, None, None] / deviation).float())
        self.channels_last = channels_last

    def forward(self, images: Shaped[Tensor, "..."]) -> Float[Tensor, "n C H W"]:
        """Normalise `images`.

        Args:
            images: (n, C, H, W), uint8, or floating in [0, 1].

        Returns:
            Floating point of the dtype of the buffers (float32 unless the module was converted).

        Raises:
            ValueError: if the number of channels differs, or the dtype is neither uint8 nor floating.
        """
        if images.ndim != 4 or images.shape[1] != len(self.scale):
            raise ValueError(f"images: got shape {tuple(images.shape)}, expected (n, {len(self.scale)}, H, W)")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"images: got dtype {images.dtype}, expected uint8, or floating point in [0, 1]")
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        unit = self.scale / 255 if images.dtype == torch.uint8 else self.scale
        return images.to(self.scale.dtype, memory_format=layout) * unit + self.shift


def channel_statistics(images: UInt8[Tensor, "N C H W"], *, chunk: int = 4096) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel over all pixels, in units of the full range: what `Normalize` takes.

    Sums are exact integers and taken over `chunk` images at a time, so a memory-mapped pool is read once in bounded memory.

    Raises:
        ValueError: if there are no pixels, or a channel has a single level and cannot be scaled to deviation 1.
    """
    if images.numel() == 0:
        raise ValueError(f"images: got shape {tuple(images.shape)}, expected at least one pixel")
    total = torch.zeros(images.shape[1], dtype=torch.int64, device=images.device)
    squares = torch.zeros_like(total)
    for part in torch.split(images, chunk):
        levels = part.transpose(0, 1).flatten(1).int()  # (C, pixels); a square fits 16 bits
        total += levels.sum(1)
        squares += levels.square_().sum(1)
    pixels = images.numel() // images.shape[1]
    means, deviations = [], []
    for level, square in zip(total.tolist(), squares.tolist(), strict=True):
        spread = square * pixels - level**2  # pixels^2 times the variance, exact: Python integers do not overflow
        if spread == 0:
            raise ValueError(
                f"images: got one level, {level // pixels}, in all pixels of a channel, expected a picture"
            )
        means.append(level / pixels / 255)
        deviations.append(spread**0.5 / pixels / 255)
    return means, deviations
