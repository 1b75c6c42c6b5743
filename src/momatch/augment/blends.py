"""Blends of an image with a plainer version of itself, as in Pillow's ``ImageEnhance``: brightness, contrast, color, sharpness.

Pillow evaluates ``plain + factor * (image - plain)`` in float32 and truncates. If the factor is a multiple of 2^-16 and levels
have 8 bits, every step is exact in 24 bits. Integers therefore give the same result, bit for bit, on every device. Magnitudes
(one factor per sample) are in 16.16 fixed point.
"""

import torch
from jaxtyping import Int32, Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from momatch.augment.levels import ONE


def brightness(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Blend with black."""
    return images.int().mul_(_column(magnitude)).bitwise_right_shift_(16).to(torch.uint8)


def contrast(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Blend with the image's mean gray, rounded to a level."""
    pixels = images.shape[2] * images.shape[3]
    mean = (2 * luma(images).sum((1, 2, 3)) + pixels) // (2 * pixels)
    plain = _column(mean * (ONE - magnitude))
    return images.int().mul_(_column(magnitude)).add_(plain).bitwise_right_shift_(16).to(torch.uint8)


def color(images: UInt8[Tensor, "n 3 H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n 3 H W"]:
    """Blend with the gray image."""
    plain = luma(images).mul_(_column(ONE - magnitude))
    return images.int().mul_(_column(magnitude)).add_(plain).bitwise_right_shift_(16).to(torch.uint8)


def sharpness(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Blend with the smoothed image.

    Smoothing is Pillow's ``SMOOTH``: the rounded 3 x 3 mean with weight 5 at the center and 1 around it. As in Pillow, border
    pixels, and images less than 3 pixels high or wide, are left unchanged.
    """
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images.clone()
    # Shift the whole batch as one line: long contiguous sums beat short rows on CPUs. Values that wrap around an edge land in
    # border pixels, which get weight 0.
    levels = images.int()
    line = levels.flatten()
    across = (line[:-2] + line[1:-1]).add_(line[2:])
    weighted = (across[: -2 * width] + across[width:-width]).add_(across[2 * width :])
    center = line[width + 1 : -width - 1]
    # The rounded mean w / 13 is floor((2 w + 13) / 26), here as a product and a shift because integer division is not
    # vectorised on CPUs. Exact for every possible w (tested exhaustively).
    smooth = weighted.add_(center, alpha=4).mul_(80660).add_(524290).bitwise_right_shift_(20)
    difference = pad(smooth.sub_(center), (width + 1, width + 1)).view(images.shape)
    weight = pad(_column(ONE - magnitude).expand(-1, 1, height - 2, width - 2), (1, 1, 1, 1))
    return difference.mul_(weight).bitwise_right_shift_(16).add_(levels).to(torch.uint8)


def luma(images: UInt8[Tensor, "n C H W"]) -> Int32[Tensor, "n 1 H W"]:
    """Gray levels as in Pillow's ``convert("L")``: ITU-R 601 weights in 16-bit fixed point, rounded."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().chunk(3, dim=1)
    return (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471).add_(0x8000).bitwise_right_shift_(16)


def _column(values: Int64[Tensor, " n"]) -> Int32[Tensor, "n 1 1 1"]:
    return values.int()[:, None, None, None]
