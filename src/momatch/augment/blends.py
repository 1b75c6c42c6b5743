"""The image blended with a plainer version of itself, as in Pillow's ``ImageEnhance``: brightness, contrast, color, sharpness.

Pillow evaluates ``plain + factor * (image - plain)`` in float32 and truncates. With a factor that is a multiple of 2^-16 and
levels of 8 bits every step of that is exact in 24 bits, so integers give the same result, bit for bit and on every device.
Magnitudes (one factor a sample) are therefore in 16.16 fixed point.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int32, Int64, UInt8
from torch import Tensor

from momatch.augment.levels import ONE


def brightness(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Blend with black."""
    return enhance(images, magnitude, (len(images), 0, 0))


def contrast(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Blend with the image's mean gray, rounded to a level."""
    return enhance(images, magnitude, (0, len(images), 0))


def color(images: UInt8[Tensor, "n 3 H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n 3 H W"]:
    """Blend with the gray image."""
    return enhance(images, magnitude, (0, 0, len(images)))


def enhance(
    images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"], sizes: Sequence[int]
) -> UInt8[Tensor, "n C H W"]:
    """Brightness of the first ``sizes[0]`` images, contrast of the next ``sizes[1]``, color of the other ``sizes[2]``."""
    levels, factor = images.int(), _column(magnitude)
    blended = levels * factor
    dark, flat = sizes[0], sizes[1]
    if dark < len(images):
        plain = _gray(levels[dark:])
        if flat:
            pixels = images.shape[2] * images.shape[3]
            mean = (2 * plain[:flat].sum((1, 2, 3)) + pixels) // (2 * pixels)
            plain[:flat] = _column(mean)
        blended[dark:] += plain.mul_(ONE - factor[dark:])
    return blended.bitwise_right_shift_(16).to(torch.uint8)


def sharpness(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Blend with the smoothed image.

    Smoothing is Pillow's ``SMOOTH``, the 3 x 3 mean with weight 5 at its center, 1 around it and 13 in all, rounded. As in
    Pillow the outermost pixels, and images of fewer than 3 pixels in a direction, are left alone.
    """
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images.clone()
    # Neighbours are found by shifting the whole batch as one line: long contiguous sums beat short rows on CPUs. What wraps
    # around an edge lands in a border pixel, and those are left out at the end. The sums fit 16 bits.
    line = images.flatten().short()
    across = (line[:-2] + line[1:-1]).add_(line[2:])
    weighted = line * 4
    inner = weighted[width + 1 : -width - 1]
    inner.add_(across[: -2 * width]).add_(across[width:-width]).add_(across[2 * width :])
    # The mean w / 13, rounded, is floor((2 w + 13) / 26); as a product and a shift, because integer division is not vectorised
    # on CPUs. Exact for every possible w (tested exhaustively).
    smooth = weighted.view(images.shape).int().mul_(80660).add_(524290).bitwise_right_shift_(20)
    factor = _column(magnitude)
    blended = smooth.mul_(ONE - factor).add_(images.int().mul_(factor)).bitwise_right_shift_(16)
    sharpened = images.clone()
    sharpened[..., 1:-1, 1:-1] = blended[..., 1:-1, 1:-1]
    return sharpened


def luma(images: UInt8[Tensor, "n C H W"]) -> Int32[Tensor, "n 1 H W"]:
    """Gray levels as Pillow's ``convert("L")``: ITU-R 601 weights in 16-bit fixed point, rounded."""
    return _gray(images.int())


def _gray(levels: Int32[Tensor, "n C H W"]) -> Int32[Tensor, "n 1 H W"]:
    if levels.shape[1] == 1:
        return levels.clone()
    red, green, blue = levels.chunk(3, dim=1)
    return (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471).add_(0x8000).bitwise_right_shift_(16)


def _column(values: Int64[Tensor, " n"]) -> Int32[Tensor, "n 1 1 1"]:
    return values.int().view(-1, 1, 1, 1)
