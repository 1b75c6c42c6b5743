"""Every operation, crop, cutout and whole view equals Pillow bit for bit; the tolerance is zero levels at zero pixels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from momatch.augment import OPERATIONS, StrongAugment, WeakAugment, geometry, host
from momatch.augment.blends import luma
from momatch.augment.draws import draw
from momatch.augment.operations import PIXELS, RANGES, apply, draw_magnitude
from tests.augment.pillow_reference import ONE, PILLOW, cutout, to_pillow, to_tensor, weak


def as_reference(images, name, magnitude):
    values = (magnitude.double() / ONE).tolist()
    changed = [to_tensor(PILLOW[name](to_pillow(x), v)) for x, v in zip(images, values, strict=True)]
    return torch.stack(changed)


def with_magnitudes(images, name):
    """Apply `name` to all images with magnitudes that span its range, both ends included."""
    low, high = (round(bound * ONE) for bound in RANGES[name])
    magnitude = torch.linspace(low, high, len(images), dtype=torch.float64).long()
    index = torch.full((len(images), 1), OPERATIONS.index(name))
    return apply(images, index, magnitude[:, None]), as_reference(images, name, magnitude)


def edge_cases(channels, height, width):
    """Constant, two-level, gradient and random images."""
    generator = torch.Generator().manual_seed(0)
    shape = (channels, height, width)
    ramp = torch.linspace(0, 255, height * width).view(1, height, width).expand(shape)
    random = [torch.randint(0, high, shape, generator=generator) for high in (2, 7, 256, 256, 256)]
    cases = [torch.zeros(shape), torch.full(shape, 77), torch.full(shape, 255), random[0] * 200 + 20, ramp, *random[1:]]
    return torch.stack([case.to(torch.uint8) for case in cases])


@pytest.mark.parametrize("name", OPERATIONS)
def test_equals_pillow_on_photographs(photos, name):
    got, expected = with_magnitudes(photos, name)
    assert torch.equal(got, expected)
    if name not in ("identity", "autocontrast"):
        assert not torch.equal(got, photos)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "color"])
def test_equals_pillow_on_gray_photographs(photos, name):
    got, expected = with_magnitudes(luma(photos).to(torch.uint8), name)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 2), (3, 3), (8, 8), (24, 40), (57, 31), (96, 96)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_equals_pillow_on_edge_cases_of_any_size(name, size):
    for channels in (1, 3) if name != "color" else (3,):
        got, expected = with_magnitudes(edge_cases(channels, *size), name)
        assert torch.equal(got, expected)


@pytest.mark.parametrize("name", PIXELS)
def test_torch_operations_equal_those_on_the_host(photos, name):
    """`apply` above ran numpy, and elsewhere runs torch."""
    for images in (photos, edge_cases(3, 24, 40)):
        got, _ = with_magnitudes(images, name)
        low, high = (round(bound * ONE) for bound in RANGES[name])
        magnitude = torch.linspace(low, high, len(images), dtype=torch.float64).long()
        assert torch.equal(PIXELS[name](images, magnitude), got)


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_affine_operations_equal_pillow_at_every_magnitude(name):
    """One image in which every pixel is different, moved by 600 random magnitudes."""
    image = torch.arange(3 * 17 * 15).view(1, 3, 17, 15).to(torch.uint8)
    images = image.expand(600, 3, 17, 15)
    index = torch.full((600, 1), OPERATIONS.index(name))
    magnitude = draw_magnitude(index, draw(600, 1, seed=1, step=0), OPERATIONS)
    assert torch.equal(apply(images, index, magnitude), as_reference(images, name, magnitude[:, 0]))


def test_luma_equals_pillow(photos):
    expected = torch.stack([to_tensor(to_pillow(x).convert("L")) for x in photos])
    assert torch.equal(luma(photos), expected.int())


def test_the_rounded_mean_of_sharpness_is_exact():
    weighted = torch.arange(13 * 255 + 1, dtype=torch.int32)
    assert torch.equal((weighted * 80660 + 524290) >> 20, (2 * weighted + 13) // 26)


@settings(max_examples=40)
@given(
    height=st.integers(1, 40), width=st.integers(1, 40), channels=st.sampled_from([1, 3]), seed=st.integers(0, 2**64)
)
def test_crop_flip_and_cutout_equal_pillow(height, width, channels, seed):
    generator = torch.Generator().manual_seed(seed % 2**63)
    images = torch.randint(0, 256, (6, channels, height, width), generator=generator, dtype=torch.uint8)
    draws = draw(6, 3, seed=seed, step=0)
    fill = (125, 123, 114)[:channels]
    for flip in (False, True):
        expected = [to_tensor(weak(to_pillow(x), d, flip=flip)) for x, d in zip(images, draws.tolist(), strict=True)]
        got = geometry.crop_flip(images, draws, padding=0.125, flip=flip)
        assert torch.equal(got, torch.stack(expected))
    squares = [
        to_tensor(cutout(to_pillow(x), d, fill if channels == 3 else fill[0]))
        for x, d in zip(images, draws.tolist(), strict=True)
    ]
    assert torch.equal(geometry.cutout(images, draws, size=0.5, fill=fill), torch.stack(squares))
    host.cutout(images.numpy(), draws.numpy(), size=0.5, fill=fill)  # in place
    assert torch.equal(images, torch.stack(squares))


@pytest.mark.parametrize("channels", [1, 3])
def test_whole_views_equal_a_pillow_pipeline(photos, channels):
    images = photos if channels == 3 else luma(photos).to(torch.uint8)
    names = [name for name in OPERATIONS if channels == 3 or name != "color"]
    draws = draw(len(images), 12, seed=5, step=9, view=2)
    which = (draws[:, 3:6] * len(names)) >> 32
    magnitude = draw_magnitude(which, draws[:, 6:9], names)
    fill = (125, 123, 114) if channels == 3 else 123
    expected = []
    for x, row, ops, values in zip(images, draws.tolist(), which.tolist(), magnitude.tolist(), strict=True):
        image = weak(to_pillow(x), row[:3])
        for op, value in zip(ops, values, strict=True):
            image = PILLOW[names[op]](image, value / ONE)
        expected.append(to_tensor(cutout(image, row[9:], fill)))
    assert torch.equal(StrongAugment()(images, seed=5, step=9, view=2), torch.stack(expected))

    first = draw(len(images), 3, seed=5, step=9, view=1).tolist()
    expected = torch.stack([to_tensor(weak(to_pillow(x), row)) for x, row in zip(images, first, strict=True)])
    assert torch.equal(WeakAugment()(images, seed=5, step=9, view=1), expected)
