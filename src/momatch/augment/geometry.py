"""Crop and flip, the five affine operations, and cutout, as index arithmetic shared by all channels of an image.

The affine operations follow Pillow's nearest-neighbour transform, the default resampling of RandAugment's Pillow pipelines:
16.16 fixed-point coordinates of pixel centers, black outside the image. Magnitudes are 16.16 fixed point too, so shear and
translation are exact integers. The rotation's sine and cosine are computed in float64 and rounded like Pillow's.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from momatch.augment.draws import below, constant
from momatch.augment.levels import ONE


def crop_flip(
    images: UInt8[Tensor, "n C H W"], draws: Int64[Tensor, "n 3"], *, padding: float, flip: bool
) -> UInt8[Tensor, "n C H W"]:
    """Crop each image at a random place after reflect padding, and flip half of them horizontally.

    Args:
        images: the batch.
        draws: row, column and flip of each sample, uniform in [0, 2^32).
        padding: padding as a fraction of each size, rounded down to whole pixels.
        flip: whether to flip at all.

    Returns:
        Images of the same size.
    """
    height, width = images.shape[2:]
    margin = int(width * padding)
    # Reflection makes a row an even function of period 2 W - 2, with the flipped row just before the row itself. On that
    # line every crop, flipped or not, is W consecutive pixels. Copying whole rows is far faster than copying pixels.
    mirror = images.flip(3)
    lines = images.new_empty((*images.shape[:3], 2 * (width + margin) - 1))
    lines[..., :margin] = images[..., width - 1 - margin : width - 1]
    lines[..., margin : margin + width] = mirror
    lines[..., margin + width - 1 : 2 * width + margin - 1] = images
    lines[..., 2 * width + margin - 1 :] = mirror[..., 1 : margin + 1]
    shift = below(draws[:, 1], 2 * margin + 1)
    start = shift + width - 1
    if flip:
        start = torch.where(below(draws[:, 2], 2) == 1, 2 * margin - shift, start)
    rows = _cropped(draws[:, 0], height, int(height * padding))  # (n, H)
    first = _line_starts(lines) + (rows * lines.shape[3] + start[:, None])[:, None, :]  # (n, C, H)
    return _copy_rows(lines.flatten(), first, width)


def _cropped(draws: Int64[Tensor, " n"], size: int, margin: int) -> Int64[Tensor, "n size"]:
    """Source positions along one axis of a random window over the reflect-padded image."""
    start = below(draws, 2 * margin + 1) - margin
    place = start[:, None] + torch.arange(size, device=draws.device)
    return (size - 1) - ((size - 1) - place.abs()).abs()


def _line_starts(lines: UInt8[Tensor, "n C H L"]) -> Int64[Tensor, "n C 1"]:
    """Where the first line of each channel starts in the flattened lines."""
    n, channels, height, length = lines.shape
    return torch.arange(n * channels, device=lines.device).view(n, channels, 1) * (height * length)


def _copy_rows(
    levels: UInt8[Tensor, " m"], first: Int64[Tensor, "n C H"], width: int
) -> UInt8[Tensor, "n C H {width}"]:
    """Images whose rows are the `width` levels starting at each of `first`."""
    return levels.unfold(0, width, 1).index_select(0, first.flatten()).view(*first.shape, width)


def _pick(images: UInt8[Tensor, "n C h w"], index: Int64[Tensor, "n H W"]) -> UInt8[Tensor, "n C H W"]:
    n, channels = images.shape[:2]
    height, width = index.shape[1:]
    flat = index.view(n, 1, height * width).expand(n, channels, height * width)
    return images.flatten(2).gather(2, flat).view(n, channels, height, width)


def warp(images: UInt8[Tensor, "n C H W"], matrices: Int64[Tensor, "n 6"]) -> UInt8[Tensor, "n C H W"]:
    """Apply affine maps: nearest neighbour, black outside.

    Args:
        images: the batch.
        matrices: 16.16 fixed point (a, b, c, d, e, f) per sample; output pixel (x, y) is input pixel
            (floor(a x + b y + c), floor(d x + e y + f)).

    Returns:
        Images of the same size.
    """
    height, width = images.shape[2:]
    # int32 halves the memory traffic; coordinates fit because sizes are at most 2^14 (checked).
    by_x, by_y, start = matrices.int().view(-1, 2, 3, 1, 1).unbind(2)  # of columns and of rows: each (n, 2, 1, 1)
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32)[:, None]
    # A black border of one pixel catches every coordinate outside the image, which saves a second pass to blank them.
    place = ((by_x * x) + (by_y * y + (start + ONE))).bitwise_right_shift_(16)  # (n, 2, H, W)
    column, row = place[:, 0].clamp_(0, width + 1), place[:, 1].clamp_(0, height + 1)
    index = row.mul_(width + 2).add_(column)
    return _pick(pad(images, (1, 1, 1, 1)), index.long())


def affine_matrices(
    operation: Int64[Tensor, "n k"], magnitude: Int64[Tensor, "n k"], names: Sequence[str], height: int, width: int
) -> Int64[Tensor, "n k 6"]:
    """Matrices for `warp`: rotation around the center, shear from the top left corner, translation.

    Args:
        operation: index into `names`; non-affine operations get the identity.
        magnitude: 16.16 fixed point: degrees counter-clockwise, shear, or fraction of the size.
        names: the operations in use.
        height: image height.
        width: image width.
    """
    # Shear and translation are linear in the magnitude. These are rows of 2 d(matrix) / d(magnitude): doubled, because moving
    # from pixel corners to pixel centers adds half a shear.
    slopes = {
        "shear_x": (0, 2, 1, 0, 0, 0),
        "shear_y": (0, 0, 0, 2, 0, 1),
        "translate_x": (0, 0, 2 * width, 0, 0, 0),
        "translate_y": (0, 0, 0, 0, 0, 2 * height),
    }
    slope = constant(tuple(slopes.get(name, (0,) * 6) for name in names), operation.device)
    slope = slope.index_select(0, operation.flatten()).view(*operation.shape, 6)
    # Also doubled: the identity, its half pixels, and 1 to round halves up.
    identity = constant((2 * ONE + 1, 1, ONE + 1, 1, 2 * ONE + 1, ONE + 1), operation.device)
    matrices = (slope * magnitude[..., None]).add_(identity).bitwise_right_shift_(1)
    if "rotate" not in names:
        return matrices
    turned = (operation == names.index("rotate"))[..., None]
    return torch.where(turned, _rotation(magnitude, height, width), matrices)


def _rotation(degrees: Int64[Tensor, "n k"], height: int, width: int) -> Int64[Tensor, "n k 6"]:
    # Apple's MPS has no float64: a pixel on the boundary between two sources may take the other one.
    real = torch.float32 if degrees.device.type == "mps" else torch.float64
    angle = degrees.to(real) * (-math.pi / 180 / ONE)
    cos, sin = angle.cos(), angle.sin()
    center_x, center_y = width / 2, height / 2
    shift_x = cos * (0.5 - center_x) + sin * (0.5 - center_y) + center_x
    shift_y = sin * (center_x - 0.5) + cos * (0.5 - center_y) + center_y
    entries = torch.stack((cos, sin, shift_x, -sin, cos, shift_y), dim=-1)
    return entries.mul_(ONE).add_(0.5).floor_().long()


def cutout(
    images: UInt8[Tensor, "n C H W"], draws: Int64[Tensor, "n 3"], *, size: float, fill: Sequence[int]
) -> UInt8[Tensor, "n C H W"]:
    """Paint one square per sample.

    Its side is uniform in (0, `size`) of the width, rounded up to whole pixels; its center is uniform over the image. A square
    that sticks out at the top or left is moved inside; one that sticks out at the bottom or right is clipped.

    Args:
        images: the batch.
        draws: side, center row and center column of each sample, uniform in [0, 2^32).
        size: largest side as a fraction of the width.
        fill: one level per channel.

    Returns:
        Images of the same size.
    """
    height, width = images.shape[2:]
    side = (draws[:, 0] >> 16) * round(size * ONE * width) >> 16  # 16.16 fixed point, as are the centers
    pixels = (side + ONE - 1) >> 16
    within = []
    for draw, extent in ((draws[:, 1], height), (draws[:, 2], width)):
        start = (2 * (draw >> 16) * extent - side).clamp(min=0) >> 17  # center minus half a side
        place = torch.arange(extent, device=images.device) - start[:, None]
        within.append(((place >= 0) & (place < pixels[:, None])).to(torch.uint8))
    # Bit masks: a select between bytes is not vectorised on CPUs and takes ten times as long.
    square = within[0].mul_(255)[:, None, :, None] & within[1].mul_(255)[:, None, None, :]  # (n, 1, H, W)
    level = constant(tuple(fill), images.device).to(torch.uint8)[:, None, None]
    return (images ^ level).bitwise_and_(square).bitwise_xor_(images)
