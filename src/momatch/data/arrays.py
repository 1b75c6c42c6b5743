"""Arrays in the usual layouts, Pillow images and image paths, converted to a model's shape."""

import os
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from momatch.data.decode import decode_for, quiet_pillow, reason
from momatch.data.report import DataError
from momatch.data.rows import PixelRows

#: Accepted by `images_for`.
Images = Tensor | np.ndarray | PixelRows | Image.Image | str | os.PathLike[str] | Sequence[object]
_CHANNELS = (1, 3)


def channels_first(name: str, stored: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The shape (N, C, H, W) of images stored as (N, H, W), (N, H, W, C) or (N, C, H, W).

    Raises:
        DataError: if the layout is none of these or ambiguous; the message starts with `name`.
    """
    if len(stored) == 3:
        return stored[0], 1, stored[1], stored[2]
    first, last = len(stored) == 4 and stored[1] in _CHANNELS, len(stored) == 4 and stored[3] in _CHANNELS
    if first == last:
        raise DataError(
            f"{name}: got shape {stored}, expected (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3 in one place"
        )
    if first:
        return stored[0], stored[1], stored[2], stored[3]
    return stored[0], stored[3], stored[1], stored[2]


def images_for(images: Images, image_shape: tuple[int, int, int]) -> PixelRows:
    """Convert raw images of any kind to rows of `image_shape` (C, H, W), as training does.

    Arrays and tensors are stretched to the size (`PixelRows.converted`). Files and Pillow images are resized by their shorter
    side and centre-cropped (`decode`).

    Args:
        images: uint8 tensor or rows (N, C, H, W); uint8 array (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3; a Pillow
            image, the path of an image file, or a sequence of these. All decoded files are held in memory.
        image_shape: input shape of the model.

    Raises:
        DataError: if there are no images, they are of another type, or a file cannot be read.
    """
    if isinstance(images, np.ndarray):
        images = _tensor(images)
    if isinstance(images, Tensor | PixelRows):
        return _pixels(images).converted(image_shape)
    if not isinstance(images, Image.Image | str | os.PathLike | Sequence):
        raise DataError(
            f"images: got {type(images).__name__}, expected a tensor, an array, a Pillow image, a path or a list of these"
        )
    several = [images] if isinstance(images, Image.Image | str | os.PathLike) else list(images)
    if not several:
        raise DataError("images: got none, expected at least one")
    decoded = np.empty((len(several), *image_shape), np.uint8)
    with quiet_pillow():
        for row, image in enumerate(several):
            decoded[row] = _decode(image, row, image_shape).transpose(2, 0, 1)
    return PixelRows([torch.from_numpy(decoded)])


def _pixels(images: Tensor | PixelRows) -> PixelRows:
    if isinstance(images, PixelRows):
        return images
    if not PixelRows.fits(images):
        raise DataError(f"images: got {images.dtype} {tuple(images.shape)}, expected {PixelRows.expected}")
    return PixelRows([images])


def _decode(image: object, row: int, image_shape: tuple[int, int, int]) -> UInt8[np.ndarray, "H W C"]:
    if isinstance(image, os.PathLike):
        image = os.fspath(image)
    if not isinstance(image, str | Image.Image):
        raise DataError(
            f"images[{row}]: got {type(image).__name__}, expected paths or Pillow images in a list; "
            "stack arrays of one size first: np.stack(images)"
        )
    try:
        return decode_for(image, image_shape)
    except Exception as error:
        # A broken image file can raise almost anything inside a decoder.
        raise DataError(f"{image if isinstance(image, str) else f'images[{row}]'}: {reason(error)}") from error


def _tensor(images: np.ndarray) -> UInt8[Tensor, "N C H W"]:
    if images.dtype != np.uint8:
        raise DataError(
            f"images: got an array of {images.dtype}, expected uint8 from 0 to 255; scale and convert it first"
        )
    if images.ndim == 3 and images.shape[-1] in _CHANNELS:
        raise DataError(f"images: got shape {images.shape}, a single image; expected a batch: pass images[None]")
    shape = channels_first("images", images.shape)
    moved = images.transpose(0, 3, 1, 2) if images.ndim == 4 and images.shape != shape else images.reshape(shape)
    # Copies read-only arrays and negative strides, which torch does not support.
    return torch.from_numpy(np.require(moved, requirements=["C", "W"]))
