"""Operations on the levels of an image as in Pillow's ``ImageOps``: auto-contrast, equalize, posterize, solarize.

Each takes uint8 images and one magnitude a sample in 16.16 fixed point (65536 = 1.0; ignored where the operation has none), and
each equals Pillow bit for bit.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

#: 1.0 in 16.16 fixed point.
ONE = 1 << 16


def autocontrast(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Stretch each channel from its darkest and brightest level to 0..255; a channel of one level stays."""
    return spread(images, (len(images), 0))


def equalize(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Spread the levels of each channel so that their histogram becomes flat; a channel of one level stays."""
    return spread(images, (0, len(images)))


def spread(images: UInt8[Tensor, "n C H W"], sizes: Sequence[int]) -> UInt8[Tensor, "n C H W"]:
    """Auto-contrast of the first ``sizes[0]`` images and equalize of the other ``sizes[1]``, through one look-up."""
    flat = images.flatten(2)
    index = flat.long()  # (n, C, HW)
    brightest = flat.amax(2, keepdim=True)
    first = sizes[0]
    tables = []
    if first:
        tables.append(_autocontrast_table(flat[:first], brightest[:first]))
    if first < len(images):
        tables.append(_equalize_table(index[first:], brightest[first:].long()))
    return torch.cat(tables).gather(2, index).view(images.shape)


def _autocontrast_table(
    flat: UInt8[Tensor, "n C pixels"], brightest: UInt8[Tensor, "n C 1"]
) -> UInt8[Tensor, "n C 256"]:
    # Pillow truncates a float64 product. Apple's MPS has no float64: there a level may come out one apart.
    real = torch.float32 if flat.device.type == "mps" else torch.float64
    # The minimum as the maximum of the negative: compiled for the CPU by torch 2.13, the minimum of bytes comes out wrong.
    low = (~(~flat).amax(2, keepdim=True)).to(real)
    high = brightest.to(real)
    # A channel of one level stays because from 0 to 255 is where every channel is stretched to.
    single = high == low
    low, high = low.masked_fill(single, 0.0), high.masked_fill(single, 255.0)
    # Not `255.0 / span`: torch evaluates that as 255 times the reciprocal, which rounds twice.
    scale = torch.full_like(low, 255.0).div_(high.sub_(low))
    table = torch.arange(256, device=flat.device, dtype=real) * scale - low * scale
    return table.clamp_(0, 255).int().to(torch.uint8)


def _equalize_table(index: Int64[Tensor, "n C pixels"], brightest: Int64[Tensor, "n C 1"]) -> UInt8[Tensor, "n C 256"]:
    ones = torch.ones_like(index, dtype=torch.int32)  # in memory: scattering an expanded 1 takes three times as long
    counts = index.new_zeros((*index.shape[:2], 256), dtype=torch.int32).scatter_add_(2, index, ones)
    step = (index.shape[2] - counts.gather(2, brightest)) // 255  # without the pixels at the highest level in use
    darker = counts.cumsum(2, dtype=torch.int32).sub_(counts)  # pixels darker than each level
    table = darker.add_(step >> 1).div_(step.clamp(min=1), rounding_mode="trunc").clamp_(max=255)
    # Where there is nothing to spread levels stay. By product, because a select is not vectorised on CPUs.
    unchanged = torch.arange(256, device=index.device, dtype=torch.int32)
    return table.sub_(unchanged).mul_(step.sign()).add_(unchanged).to(torch.uint8)


def posterize(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Keep the upper bits of each level; the number of bits is `magnitude` without its fraction."""
    dropped = 8 - (magnitude >> 16)
    mask = (255 >> dropped) << dropped
    return images & mask.to(torch.uint8).view(-1, 1, 1, 1)


def solarize(images: UInt8[Tensor, "n C H W"], magnitude: Int64[Tensor, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Invert the levels from the threshold `magnitude` upwards."""
    threshold = ((magnitude + ONE - 1) >> 16).short().view(-1, 1, 1, 1)
    # The sign bit, spread over the number, is the mask of the levels that stay: on CPUs faster than a comparison and a select.
    below = images.short().sub_(threshold).bitwise_right_shift_(15).to(torch.uint8)
    return images ^ ~below
