"""Crop and flip, the five affine operations, and cutout: all are index arithmetic, shared by the channels of an image.

The affine operations follow Pillow's nearest-neighbour transform, the resampling that RandAugment's Pillow pipelines use by
default: 16.16 fixed-point coordinates of pixel centers, black outside the image. Magnitudes are 16.16 fixed point too, so shear
and translation are exact integers; the rotation's sine and cosine are taken in float64 and rounded as Pillow rounds them.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from momatch.augment.draws import below
from momatch.augment.levels import ONE

HALF = ONE // 2


def crop_flip(
    images: UInt8[Tensor, "n C H W"], draws: Int64[Tensor, "n 3"], *, padding: float, flip: bool
) -> UInt8[Tensor, "n C H W"]:
    """Crop each image at its own place after reflect padding, and flip half of them from left to right.

    Args:
        images: the batch.
        draws: row, column and flip of each sample, uniform in [0, 2^32).
        padding: padded pixels as a fraction of each size, rounded down.
        flip: whether to flip at all.

    Returns:
        Images of the same size.
    """
    height, width = images.shape[2:]
    rows = _cropped(draws[:, 0], height, int(height * padding))  # (n, H)
    columns = _cropped(draws[:, 1], width, int(width * padding))  # (n, W)
    if flip:
        columns = torch.where(below(draws[:, 2:], 2) == 1, columns.flip(1), columns)
    index = (rows * width)[:, :, None] + columns[:, None, :]
    return _pick(images, index)


def _cropped(draws: Int64[Tensor, " n"], size: int, margin: int) -> Int64[Tensor, "n size"]:
    """Source positions along one direction of a random window over the reflect-padded image."""
    start = below(draws, 2 * margin + 1) - margin
    place = start[:, None] + torch.arange(size, device=draws.device)
    return (size - 1) - ((size - 1) - place.abs()).abs()


def _pick(images: UInt8[Tensor, "n C h w"], index: Int64[Tensor, "n H W"]) -> UInt8[Tensor, "n C H W"]:
    n, channels = images.shape[:2]
    flat = index.flatten(1)[:, None, :].expand(n, channels, index[0].numel() if n else 0)
    return images.flatten(2).gather(2, flat).view(n, channels, *index.shape[1:])


def warp(images: UInt8[Tensor, "n C H W"], matrices: Int64[Tensor, "n 6"]) -> UInt8[Tensor, "n C H W"]:
    """Move pixels by affine maps, nearest neighbour, black outside.

    Args:
        images: the batch.
        matrices: 16.16 fixed point (a, b, c, d, e, f) a sample; output pixel (x, y) is input pixel
            (floor(a x + b y + c), floor(d x + e y + f)).

    Returns:
        Images of the same size.
    """
    height, width = images.shape[2:]
    # int32 halves the memory traffic; coordinates fit because sizes are checked to stay under 2^14.
    a, b, c, d, e, f = matrices.int()[:, :, None, None].unbind(1)
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32)[:, None]
    # A black frame of one pixel takes every coordinate outside the image, so no second pass has to blank them.
    column = ((a * x) + (b * y + c)).bitwise_right_shift_(16).clamp_(-1, width)
    row = ((d * x) + (e * y + f)).bitwise_right_shift_(16).clamp_(-1, height)
    index = row.add_(1).mul_(width + 2).add_(column).add_(1)
    return _pick(pad(images, (1, 1, 1, 1)), index.long())


def identity_matrix(device: torch.device) -> Int64[Tensor, "1 6"]:
    """The map that leaves each pixel in its place."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    return _matrix(zero + ONE, zero, zero + HALF, zero, zero + ONE, zero + HALF)


def rotate(magnitude: Int64[Tensor, " n"], height: int, width: int) -> Int64[Tensor, "n 6"]:
    """Turn by `magnitude` degrees counter-clockwise around the image's center."""
    # Apple's MPS has no float64: there a pixel at the edge between two sources may fall to the other one.
    real = torch.float32 if magnitude.device.type == "mps" else torch.float64
    angle = magnitude.to(real) * (-math.pi / 180 / ONE)
    cos, sin = angle.cos(), angle.sin()
    center_x, center_y = width / 2, height / 2
    shift_x = cos * (0.5 - center_x) + sin * (0.5 - center_y) + center_x
    shift_y = sin * (center_x - 0.5) + cos * (0.5 - center_y) + center_y
    entries = torch.stack((cos, sin, shift_x, -sin, cos, shift_y), dim=1)
    return (entries * ONE + 0.5).floor().long()


def shear_x(magnitude: Int64[Tensor, " n"], height: int, width: int) -> Int64[Tensor, "n 6"]:
    """Shift each row by `magnitude` times its distance from the top."""
    zero = torch.zeros_like(magnitude)
    return _matrix(zero + ONE, magnitude, _round_half(ONE + magnitude), zero, zero + ONE, zero + HALF)


def shear_y(magnitude: Int64[Tensor, " n"], height: int, width: int) -> Int64[Tensor, "n 6"]:
    """Shift each column by `magnitude` times its distance from the left."""
    zero = torch.zeros_like(magnitude)
    return _matrix(zero + ONE, zero, zero + HALF, magnitude, zero + ONE, _round_half(ONE + magnitude))


def translate_x(magnitude: Int64[Tensor, " n"], height: int, width: int) -> Int64[Tensor, "n 6"]:
    """Shift to the left by `magnitude` of the width."""
    zero = torch.zeros_like(magnitude)
    return _matrix(zero + ONE, zero, magnitude * width + HALF, zero, zero + ONE, zero + HALF)


def translate_y(magnitude: Int64[Tensor, " n"], height: int, width: int) -> Int64[Tensor, "n 6"]:
    """Shift upwards by `magnitude` of the height."""
    zero = torch.zeros_like(magnitude)
    return _matrix(zero + ONE, zero, zero + HALF, zero, zero + ONE, magnitude * height + HALF)


def _matrix(*entries: Int64[Tensor, " n"]) -> Int64[Tensor, "n 6"]:
    return torch.stack(entries, dim=1)


def _round_half(double: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Half of a fixed-point number, halves up: the entry that moves from pixel corners to pixel centers."""
    return (double + 1) >> 1


def cutout(
    images: UInt8[Tensor, "n C H W"], draws: Int64[Tensor, "n 3"], *, size: float, fill: Sequence[int]
) -> UInt8[Tensor, "n C H W"]:
    """Paint one square a sample.

    Its side is uniform in (0, `size`) of the width and rounded up to whole pixels; its center is uniform over the image. A
    square that would stick out at the top or left is moved inside, one that sticks out at the bottom or right is cut.

    Args:
        images: the batch.
        draws: side, center row and center column of each sample, uniform in [0, 2^32).
        size: largest side as a fraction of the width.
        fill: one level a channel.

    Returns:
        Images with their squares.
    """
    height, width = images.shape[2:]
    side = (draws[:, 0] >> 16) * round(size * ONE * width) >> 16  # 16.16 fixed point, as are the centers
    pixels = (side + ONE - 1) >> 16
    within = []
    for draw, extent in ((draws[:, 1], height), (draws[:, 2], width)):
        start = (2 * (draw >> 16) * extent - side).clamp(min=0) >> 17  # center less half a side
        place = torch.arange(extent, device=images.device) - start[:, None]
        within.append(((place >= 0) & (place < pixels[:, None])).to(torch.uint8))
    # Bit masks, because a select between bytes is not vectorised on CPUs and takes ten times as long.
    square = within[0].mul_(255)[:, None, :, None] & within[1].mul_(255)[:, None, None, :]  # (n, 1, H, W)
    painted = images & ~square
    for channel, level in enumerate(fill):
        painted[:, channel] |= square[:, 0] & level
    return painted
