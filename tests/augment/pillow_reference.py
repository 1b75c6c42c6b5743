"""Each operation and view as a plain Pillow pipeline makes it, one image at a time: what the batched ones must equal.

Magnitudes come as 16.16 fixed-point integers, draws as integers in [0, 2^32), as the package's own.
"""

import math

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

ONE = 1 << 16


def _affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PILLOW = {
    "autocontrast": lambda image, v: ImageOps.autocontrast(image),
    "equalize": lambda image, v: ImageOps.equalize(image),
    "posterize": lambda image, v: ImageOps.posterize(image, int(v)),
    "solarize": ImageOps.solarize,
    "brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "rotate": lambda image, v: image.rotate(v),
    "shear_x": lambda image, v: _affine(image, 1, v, 0, 0, 1, 0),
    "shear_y": lambda image, v: _affine(image, 1, 0, 0, v, 1, 0),
    "translate_x": lambda image, v: _affine(image, 1, 0, v * image.width, 0, 1, 0),
    "translate_y": lambda image, v: _affine(image, 1, 0, 0, 0, 1, v * image.height),
    "identity": lambda image, v: image,
}


def to_pillow(image):
    """(C, H, W) uint8 tensor to a Pillow image of mode RGB or L."""
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else np.ascontiguousarray(array))


def to_tensor(image):
    """Pillow image to a (C, H, W) uint8 tensor."""
    array = np.array(image)
    return torch.from_numpy(array[..., None] if array.ndim == 2 else array).permute(2, 0, 1)


def weak(image, draws, *, flip=True):
    """Pad by reflection, crop, flip; `image` is a Pillow image, `draws` row, column, flip."""
    array = np.array(image)
    margins = [int(size * 0.125) for size in array.shape[:2]]
    padded = np.pad(array, [(m, m) for m in margins] + [(0, 0)] * (array.ndim - 2), mode="reflect")
    top, left = ((d * (2 * m + 1)) >> 32 for d, m in zip(draws, margins, strict=False))
    crop = Image.fromarray(padded).crop((left, top, left + image.width, top + image.height))
    return ImageOps.mirror(crop) if flip and draws[2] >= 1 << 31 else crop


def cutout(image, draws, fill, size=0.5):
    """A rectangle drawn by its corners, both inclusive; `draws` are side, center row, center column."""
    unit = [(d >> 16) / ONE for d in draws]
    # The package keeps 16 fractional bits of the side.
    side = math.floor(unit[0] * round(size * ONE * image.width)) / ONE
    top = int(max(0.0, unit[1] * image.height - side / 2))
    left = int(max(0.0, unit[2] * image.width - side / 2))
    image = image.copy()
    if side > 0:
        span = math.ceil(side) - 1
        ImageDraw.Draw(image).rectangle((left, top, left + span, top + span), fill)
    return image
