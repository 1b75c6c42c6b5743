"""Images in every form that Python has them, brought to a model's shape."""

import numpy as np
import pytest
import torch
from PIL import Image

from momatch.data.arrays import images_for
from momatch.data.decode import decode, decode_for
from momatch.data.report import DataError
from momatch.data.rows import PixelRows

RNG = np.random.default_rng(0)
COLOR = RNG.integers(0, 256, (4, 6, 6, 3), dtype=np.uint8)
GRAY = RNG.integers(0, 256, (4, 6, 6), dtype=np.uint8)


def rows(images, shape):
    found = images_for(images, shape)
    assert found.shape == shape
    return torch.cat(list(found.chunks()))


def test_layouts_of_arrays():
    expected = torch.from_numpy(COLOR.transpose(0, 3, 1, 2).copy())
    for images in (COLOR, COLOR.transpose(0, 3, 1, 2), expected, PixelRows([expected])):
        assert torch.equal(rows(images, (3, 6, 6)), expected)
    for images in (GRAY, GRAY[..., None], GRAY[:, None]):
        assert torch.equal(rows(images, (1, 6, 6)), torch.from_numpy(GRAY[:, None]))
    backwards = COLOR[::-1]
    backwards.flags.writeable = False
    assert torch.equal(rows(backwards, (3, 6, 6)), expected.flip(0))


def test_other_sizes_and_colours_are_converted():
    expected = PixelRows([torch.from_numpy(COLOR.transpose(0, 3, 1, 2).copy())]).converted((1, 4, 5))
    assert torch.equal(rows(COLOR, (1, 4, 5)), torch.cat(list(expected.chunks())))


def test_files_and_pillow_images(tmp_path):
    pictures = [Image.fromarray(pixels) for pixels in COLOR]
    for i, picture in enumerate(pictures):
        picture.save(tmp_path / f"{i}.png")
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    expected = torch.from_numpy(COLOR.transpose(0, 3, 1, 2).copy())
    for images in (pictures, tuple(paths), [str(path) for path in paths], [*pictures[:2], *paths[2:]]):
        assert torch.equal(rows(images, (3, 6, 6)), expected)
    for image in (pictures[0], paths[0], str(paths[0])):
        assert torch.equal(rows(image, (3, 6, 6)), expected[:1])
    assert pictures[0].size == (6, 6)


def test_files_are_seen_as_in_training(tmp_path):
    large = Image.fromarray(RNG.integers(0, 256, (9, 7, 3), dtype=np.uint8)).resize((900, 700))
    large.save(tmp_path / "a.jpg", quality=90)
    trained, _ = decode(str(tmp_path / "a.jpg"), (3, 32, 32), 32)
    assert np.array_equal(decode_for(str(tmp_path / "a.jpg"), (3, 32, 32)).transpose(2, 0, 1), trained)
    # A file that somebody holds open keeps its size.
    with Image.open(tmp_path / "a.jpg") as image:
        found = rows(image, (3, 32, 32))
        assert image.size == (900, 700)
    assert (found[0].int() - torch.from_numpy(trained.astype(np.int32))).abs().max() <= 16


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused(tmp_path):
    (tmp_path / "a.png").write_text("no image")
    for images, message in [
        (COLOR.astype(np.float32), "got an array of float32, expected uint8"),
        (COLOR[0], r"a single image; expected a batch: pass images\[None\]"),
        (COLOR[None], "got shape"),
        (np.zeros((2, 3, 5, 3), np.uint8), "in one place"),
        ([], "got none"),
        ([COLOR[0]], r"images\[0\]: got ndarray, expected paths or Pillow images"),
        ([tmp_path / "gone.png"], "gone.png: No such file"),
        (tmp_path / "a.png", "a.png: UnidentifiedImageError"),
        (Image.fromarray(np.zeros((4, 4), np.float32)), r"images\[0\]: .*floating-point"),
    ]:
        with pytest.raises(DataError, match=message):
            images_for(images, (3, 6, 6))
    with pytest.raises(ValueError, match=r"torch.uint8 \(N, C, H, W\)"):
        images_for(torch.zeros(2, 3, 6, 6), (3, 6, 6))


@pytest.mark.parametrize("nothing", [None, 5])
def test_what_is_no_image_at_all(nothing, unchecked):
    with pytest.raises(DataError, match="expected a tensor, an array, a Pillow image, a path or a list"):
        images_for(nothing, (1, 4, 4))
