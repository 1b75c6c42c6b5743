"""Images of one size and number of channels turned into another's, so that two datasets can share a pool.

- gray to RGB: the channel three times.
- RGB to gray: ITU-R 601 luma, (19595 R + 38470 G + 7471 B + 32768) >> 16, bit for bit Pillow's ``convert("L")``.
- size: stretched to (H, W) without cropping, bilinear with antialiasing, rounded to the nearest gray level.

Channels are reduced before and repeated after resizing, so that the resizing touches the fewest.
"""

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from momatch.data.rows import ImageRows

_LUMA = (19595, 38470, 7471)


def convert_images(images: ImageRows, image_shape: tuple[int, ...]) -> ImageRows:
    """Return `images` with shape `image_shape` (C, H, W).

    Images that have it already are returned as they are; others are converted chunk by chunk into new memory.

    Raises:
        ValueError: if a number of channels is neither 1 nor 3, a size is less than one pixel, or one of the two is of features.
    """
    if images.image_shape == image_shape:
        return images
    for name, shape in (("images", images.image_shape), ("image_shape", image_shape)):
        if len(shape) != 3:
            raise ValueError(
                f"{name}: got (V, F) = {shape}, expected pixels (C, H, W): features cannot be made of another size, nor "
                "mixed with images or with features of other views; embed both in the same way"
            )
        if shape[0] not in (1, 3) or min(shape) < 1:
            raise ValueError(f"{name}: got (C, H, W) = {shape}, expected C = 1 or 3 and at least one pixel")
    converted = torch.empty((len(images), *image_shape), dtype=torch.uint8)
    start = 0
    for chunk in images.chunks():
        converted[start : start + len(chunk)] = _convert(chunk, image_shape)
        start += len(chunk)
    return ImageRows([converted])


def _convert(images: UInt8[Tensor, "n C H W"], image_shape: tuple[int, ...]) -> UInt8[Tensor, "n c h w"]:
    channels, *size = image_shape
    if channels < images.shape[1]:
        images = _luma(images)
    if list(images.shape[2:]) != size:
        resized = F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)
        images = resized.round_().clamp_(0, 255).to(torch.uint8)
    return images.expand(-1, channels, -1, -1)


def _luma(images: UInt8[Tensor, "n 3 H W"]) -> UInt8[Tensor, "n 1 H W"]:
    total = torch.full_like(images[:, :1], 1 << 15, dtype=torch.int32)
    for channel, weight in enumerate(_LUMA):
        total.add_(images[:, channel : channel + 1], alpha=weight)
    return total.bitwise_right_shift_(16).to(torch.uint8)
