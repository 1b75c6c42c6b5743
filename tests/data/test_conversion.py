"""Conversions between image shapes, against Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image

from momatch.data import rows
from momatch.data.rows import PixelRows


def random_images(n, *shape):
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def smooth_images(n, *shape):
    """Images with structure, as photographs have it."""
    noise = torch.rand(n, shape[0], 6, 6, generator=torch.Generator().manual_seed(0)) * 255
    return torch.nn.functional.interpolate(noise, size=shape[1:], mode="bicubic").clamp(0, 255).to(torch.uint8)


def convert(images, *shape):
    converted = PixelRows([images]).converted(shape)
    return converted.gather(torch.arange(len(converted)))


def test_images_of_the_right_shape_are_not_copied():
    images = PixelRows([random_images(3, 3, 4, 4)])
    assert images.converted((3, 4, 4)) is images


def test_gray_is_repeated():
    gray = random_images(3, 1, 4, 5)
    assert torch.equal(convert(gray, 3, 4, 5), gray.repeat(1, 3, 1, 1))


def test_luma_is_pillows_bit_for_bit():
    rgb = random_images(2, 3, 64, 64)
    pillow = [np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")) for image in rgb]
    assert torch.equal(convert(rgb, 1, 64, 64)[:, 0], torch.from_numpy(np.stack(pillow)))


@pytest.mark.parametrize("size", [(28, 28), (96, 96), (20, 45), (1, 1)])
def test_size_is_pillows_bilinear_to_one_level(size):
    """Pillow rounds after each of its two passes, this once: they differ by one gray level at most."""
    images = smooth_images(3, 1, 32, 32)
    pillow = [
        np.asarray(Image.fromarray(image[0].numpy()).resize(size[::-1], Image.Resampling.BILINEAR)) for image in images
    ]
    difference = convert(images, 1, *size)[:, 0].int() - torch.from_numpy(np.stack(pillow)).int()
    assert difference.abs().max() <= 1


def test_shape_and_channels_together_whatever_the_chunks(monkeypatch):
    gray = smooth_images(7, 1, 28, 28)
    expected = convert(gray, 1, 32, 32).repeat(1, 3, 1, 1)
    monkeypatch.setattr(rows, "CHUNK_BYTES", 2000)
    assert torch.equal(convert(gray, 3, 32, 32), expected)
    rgb = smooth_images(7, 3, 28, 28)
    assert torch.equal(convert(rgb, 1, 32, 32), convert(convert(rgb, 1, 28, 28), 1, 32, 32))


@pytest.mark.parametrize("shape", [(2, 4, 4), (4, 4, 4), (3, 0, 4)])
def test_impossible_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"image_shape: got \(C, H, W\) = .*, expected C = 1 or 3"):
        convert(random_images(1, 3, 4, 4), *shape)
