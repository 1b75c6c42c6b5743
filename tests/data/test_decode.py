import os

import numpy as np
import pytest
from PIL import Image

from momatch.data.decode import ColorFound, WrongSizeError, decode, decode_for, probe


def save(path, image, **keywords):
    image.save(path, **keywords)
    return str(path)


def test_rgb_is_taken_as_it_is(tmp_path, rng):
    pixels = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", Image.fromarray(pixels))
    image, done = decode(path, (3, 6, 9), None)
    assert (image == pixels.transpose(2, 0, 1)).all()
    assert done == []
    assert probe(path, None) == (3, 6, 9)


def test_sixteen_bits_are_scaled_and_named(tmp_path):
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    path = save(tmp_path / "a.png", Image.fromarray(values))
    image, done = decode(path, (1, 1, 4), None)
    assert image.tolist() == [[[0, 1, 128, 255]]]
    assert done == ["16-bit to 8-bit"]


def test_sixteen_bit_tiff_too(tmp_path):
    path = save(tmp_path / "a.tif", Image.fromarray(np.full((4, 4), 65535, np.uint16)))
    image, done = decode(path, (1, 4, 4), None)
    assert image.max() == 255
    assert done == ["16-bit to 8-bit"]


def sixteen_bit_color_png(path):
    """Pillow cannot write one: 1x1 RGB of 16 bits, by hand."""
    import struct
    import zlib

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    row = b"\0" + struct.pack(">3H", 65535, 32768, 0)
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    )
    return str(path)


def test_sixteen_bit_color_is_named(tmp_path):
    image, done = decode(sixteen_bit_color_png(tmp_path / "a.png"), (3, 1, 1), None)
    assert image.flatten().tolist() == [255, 128, 0]
    assert done == ["16-bit to 8-bit"]


@pytest.mark.parametrize(("mode", "color", "channels"), [("RGBA", (10, 20, 30, 0), 3), ("LA", (10, 0), 1)])
def test_transparency_is_laid_over_white(tmp_path, mode, color, channels):
    clear = Image.new(mode, (2, 2), color)
    image, done = decode(save(tmp_path / "a.png", clear), (channels, 2, 2), None)
    assert (image == 255).all()
    assert done == ["transparency laid over white"]


def test_palettes_become_rgb(tmp_path):
    picture = Image.new("RGB", (4, 4), (200, 10, 30)).convert("P", palette=Image.Palette.ADAPTIVE)
    image, done = decode(save(tmp_path / "a.png", picture), (3, 4, 4), None)
    assert image[:, 0, 0].tolist() == [200, 10, 30]
    assert done == ["palette to RGB"]
    image, done = decode(save(tmp_path / "b.png", picture, transparency=0), (3, 4, 4), None)
    assert (image == 255).all()
    assert done == ["transparency laid over white"]


def test_cmyk_and_one_bit_are_converted_and_named(tmp_path):
    image, done = decode(save(tmp_path / "a.jpg", Image.new("CMYK", (8, 8), (0, 0, 0, 0))), (3, 8, 8), None)
    assert (image == 255).all()
    assert done == ["CMYK to RGB"]
    image, done = decode(save(tmp_path / "b.png", Image.new("1", (8, 8), 1)), (1, 8, 8), None)
    assert (image == 255).all()
    assert done == ["1-bit to gray"]


def test_exif_orientation_turns_the_image_upright(tmp_path):
    picture = Image.new("L", (8, 4), 0)
    picture.paste(255, (0, 0, 2, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path / "a.png", picture, exif=exif)
    image, done = decode(path, (1, 8, 4), None)
    assert done == ["turned upright (EXIF)"]
    assert (image[0, :2] == 255).all()
    assert (image[0, 2:] == 0).all()


def test_the_first_of_several_frames(tmp_path):
    frames = [Image.new("L", (4, 4), value) for value in (0, 255)]
    path = save(tmp_path / "a.tif", frames[0], save_all=True, append_images=frames[1:])
    image, done = decode(path, (1, 4, 4), None)
    assert image.max() == 0
    assert done == ["first of several frames"]


def test_size_resizes_the_shorter_side_and_crops_the_centre(tmp_path):
    picture = Image.new("L", (30, 10), 0)
    picture.paste(255, (10, 0, 20, 10))
    image, _ = decode(save(tmp_path / "a.png", picture), (1, 10, 10), 10)
    assert (image == 255).all()
    for shape in ((31, 17), (17, 31), (1, 100), (3, 2)):
        picture = Image.new("RGB", shape)
        assert probe(save(tmp_path / "b.png", picture), 16) == (3, 16, 16)


def test_large_jpegs_come_out_alike_at_a_reduced_scale(tmp_path):
    ramp = np.linspace(0, 255, 800).astype(np.uint8)
    picture = Image.fromarray(np.broadcast_to(ramp, (800, 800)).copy())
    path = save(tmp_path / "a.jpg", picture, quality=95)
    image, _ = decode(path, (1, 32, 32), 32)
    expected = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(image[0].astype(int) - expected.astype(int)).max() <= 3


def test_gray_among_colour_and_colour_among_gray(tmp_path):
    path = save(tmp_path / "a.png", Image.new("L", (4, 4), 7))
    image, done = decode(path, (3, 4, 4), None)
    assert (image == 7).all()
    assert done == ["gray to three channels"]
    with pytest.raises(ColorFound):
        decode(save(tmp_path / "b.png", Image.new("RGB", (4, 4))), (1, 4, 4), None)


def test_other_sizes_floats_and_bombs_are_refused(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", Image.new("L", (4, 5)))
    with pytest.raises(WrongSizeError, match="got 4x5 pixels, expected 4x4"):
        decode(path, (1, 4, 4), None)
    with pytest.raises(ValueError, match="floating-point"):
        probe(save(tmp_path / "a.tif", Image.fromarray(np.zeros((4, 4), np.float32))), None)
    with pytest.raises(ValueError, match="expected 8 or 16 bits"):
        probe(save(tmp_path / "b.tif", Image.fromarray(np.full((4, 4), 70000, np.int32))), None)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(Image.DecompressionBombWarning):
        probe(path, None)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for call in (lambda path: decode(path, (3, 4, 4), None), lambda path: decode_for(path, (3, 4, 4))):
        with pytest.raises(OSError, match="not a regular file"):
            call(str(tmp_path / "pipe.png"))
