"""Operations on the levels of an image as in Pillow's ``ImageOps``: auto-contrast, equalize, posterize, solarize.

Each takes uint8 images and one magnitude per sample in 16.16 fixed point (65536 = 1.0; ignored by operations without one), and
matches Pillow bit for bit.
"""

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

#: 1.0 in 16.16 fixed point.
ONE = 1 << 16


def autocontrast(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Stretch the levels of each channel to 0..255; a channel of one level is unchanged."""
    # Pillow truncates a float64 product. Apple's MPS has no float64: levels may be off by one there.
    real = torch.float32 if images.device.type == "mps" else torch.float64
    # 16 bits, because torch 2.13 compiles the minimum of bytes wrongly for the CPU.
    wide = images.short()
    low, high = (extreme((2, 3), keepdim=True).to(real) for extreme in (wide.amin, wide.amax))  # (n, C, 1, 1)
    flat = high == low
    # Not `255.0 / span`, which torch evaluates as 255 times the reciprocal, rounding twice.
    scale = torch.where(flat, 1.0, torch.full_like(low, 255.0).div_(high - low))
    offset = torch.where(flat, 0.0, -low * scale)
    return images.to(real).mul_(scale).add_(offset).to(torch.uint8)


def equalize(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Flatten the histogram of each channel; a channel of one level is unchanged."""
    n, channels, height, width = images.shape
    flat = images.flatten(2).long()  # (n, C, HW)
    ones = torch.ones_like(flat, dtype=torch.int32)  # materialised: scattering an expanded 1 takes three times as long
    counts = torch.zeros(n, channels, 256, dtype=torch.int32, device=images.device).scatter_add_(2, flat, ones)
    brightest = counts.gather(2, images.flatten(2).amax(2, keepdim=True).long())  # pixels at the highest level in use
    step = (height * width - brightest) // 255
    darker = counts.cumsum(2, dtype=torch.int32) - counts  # pixels darker than each level
    table = ((step // 2 + darker) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device, dtype=torch.int32)).to(torch.uint8)
    return table.gather(2, flat).view(images.shape)


def posterize(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Keep the upper bits of each level: as many as `magnitude`, truncated."""
    dropped = 8 - (magnitude >> 16)
    mask = (255 >> dropped) << dropped
    return images & mask.to(torch.uint8)[:, None, None, None]


def solarize(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Invert the levels at or above `magnitude`."""
    threshold = ((magnitude + ONE - 1) >> 16).short()[:, None, None, None]
    # The spread sign bit masks the levels to keep, which is faster on CPUs than a comparison and a select.
    below = images.short().sub_(threshold).bitwise_right_shift_(15).to(torch.uint8)
    return images ^ ~below
