"""Decode an image file to uint8 (C, H, W) with Pillow. These are all conversions; each is reported to the caller for counting.

- EXIF orientation: the image is turned upright.
- 16-bit: round(value / 257), so that 65535 becomes 255. For 16-bit colour, Pillow itself keeps the high bytes.
- transparency (RGBA, LA, or a palette with it): laid over white.
- palette, CMYK and other colour spaces: to RGB. Black and white (1 bit): to gray.
- gray among colour images: repeated in all three channels. Colour for a model of gray images: to gray (`decode_for`).
- several frames: the first.
- with `size`: the shorter side is resized to `size` (bilinear, antialiased), then the centre is cropped to a square. Large
  JPEGs are first decoded at a reduced scale of at least twice that size.

Decoding processes run `decode_chunk` and import Pillow and numpy, but not torch.
"""

import errno
import os
import stat
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

_GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"})
_SIXTEEN_BIT = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})
_ORIENTATION = 0x0112


class ColorFound(Exception):  # noqa: N818 - a signal to the caller, not an error
    """Found a colour image where gray ones were expected."""


class WrongSizeError(ValueError):
    """An image whose size differs from the rest.

    Args:
        got: width and height.
        expected: width and height.
    """

    def __init__(self, got: tuple[int, int], expected: tuple[int, int]) -> None:
        super().__init__(f"got {got[0]}x{got[1]} pixels, expected {expected[0]}x{expected[1]}")


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings about odd but readable files; a decompression bomb is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _to_eight_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise ValueError(f"got pixel values from {values.min()} to {values.max()}, expected 8 or 16 bits")
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _over_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return flat.convert("L" if image.mode in _GRAY_MODES else "RGB")


def _convert(image: Image.Image, done: list[str]) -> Image.Image:
    """Convert to mode L or RGB; append the conversion to `done`."""
    if image.mode in _SIXTEEN_BIT:
        done.append("16-bit to 8-bit")
        return _to_eight_bit(image)
    if image.mode in ("RGBA", "LA", "La", "RGBa", "PA") or "transparency" in image.info:
        done.append("transparency laid over white")
        return _over_white(image)
    if image.mode == "1":
        done.append("1-bit to gray")
        return image.convert("L")
    if image.mode == "F":
        raise ValueError("got floating-point pixels, whose range is unknown; convert the file to 8 or 16 bits")
    if image.mode not in ("L", "RGB"):
        done.append(f"{'palette' if image.mode == 'P' else image.mode} to RGB")
        return image.convert("RGB")
    return image


def _fit(image: Image.Image, target: tuple[int, int]) -> Image.Image:
    """Scale the image to just cover `target` (width, height), then crop the centre."""
    scale = max(wanted / side for wanted, side in zip(target, image.size, strict=True))
    width, height = (max(wanted, round(side * scale)) for wanted, side in zip(target, image.size, strict=True))
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - target[0]) // 2, (height - target[1]) // 2
    return image.crop((left, top, left + target[0], top + target[1]))


def _holds_16_bit_color(image: Image.Image) -> bool:
    return any("16" in str(tile[3]) for tile in getattr(image, "tile", ()) if image.mode in ("RGB", "RGBA", "LA"))


def _read(image: Image.Image, reduced_to: int | None, done: list[str]) -> Image.Image:
    """Load an opened image, upright and in mode L or RGB; large JPEGs at a reduced scale of at least `reduced_to` pixels."""
    if getattr(image, "is_animated", False):
        done.append("first of several frames")
    if _holds_16_bit_color(image):
        done.append("16-bit to 8-bit")
    if reduced_to is not None:
        image.draft(None, (reduced_to, reduced_to))
    image.load()
    upright: Image.Image = image
    if image.getexif().get(_ORIENTATION, 1) != 1:
        done.append("turned upright (EXIF)")
        upright = ImageOps.exif_transpose(image)
    return _convert(upright, done)


def _open(path: str, size: int | None) -> tuple[Image.Image, list[str]]:
    done: list[str] = []
    check_regular(path)
    with Image.open(path) as image:
        converted = _read(image, None if size is None else 2 * size, done)
        # The file is closed on exit: return a copy of the pixels.
        return (_fit(converted, (size, size)) if size is not None else converted.copy()), done


def probe(path: str, size: int | None) -> tuple[int, int, int]:
    """The natural shape (C, H, W) of the decoded file.

    Raises:
        Exception: whatever Pillow raises for an unreadable file.
    """
    with quiet_pillow():
        image, _ = _open(path, size)
    return len(image.getbands()), image.height, image.width


def decode(path: str, shape: tuple[int, int, int], size: int | None) -> tuple[UInt8[np.ndarray, "C H W"], list[str]]:
    """Decode the file at `path` to `shape`; returns the pixels and the conversions made.

    Raises:
        ColorFound: if it is a colour image and `shape` is gray.
        WrongSizeError: if its size differs from `shape`.
        Exception: whatever Pillow raises for an unreadable file.
    """
    with quiet_pillow():
        image, done = _open(path, size)
    channels, height, width = shape
    if image.size != (width, height):
        raise WrongSizeError(image.size, (width, height))
    if channels == 1 and image.mode == "RGB":
        raise ColorFound(os.fspath(path))
    if channels == 3 and image.mode == "L":
        done.append("gray to three channels")
        image = image.convert("RGB")
    pixels = np.asarray(image)
    return (pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)), done


def decode_for(source: str | Image.Image, shape: tuple[int, int, int]) -> UInt8[np.ndarray, "H W C"]:
    """Decode any image for a model with input `shape` (C, H, W), with the same steps as `decode` with a size.

    For a model of gray images, colour becomes gray before resizing. An already opened image is not decoded at a reduced scale,
    because that would modify it. The caller silences Pillow's warnings with `quiet_pillow`, once for all threads: warning
    filters are global to the process.

    Raises:
        Exception: whatever Pillow raises for an unreadable file.
    """
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    if isinstance(source, str):
        check_regular(source)
    with Image.open(source) if isinstance(source, str) else nullcontext(source) as image:
        upright = _read(image, 2 * max(height, width) if isinstance(source, str) else None, [])
        if mode == "L" and upright.mode == "RGB":
            upright = upright.convert("L")
        fitted = _fit(upright, (width, height))
        return np.asarray(fitted if fitted.mode == mode else fitted.convert(mode)).reshape(height, width, channels)


def check_regular(path: str) -> None:
    """Reject pipes, sockets and devices: reading a pipe would block.

    Raises:
        OSError: if `path` is one of these or does not exist. (Pillow reports directories.)
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file")


def reason(error: Exception) -> str:
    """Why a file could not be read, on one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


@dataclass(frozen=True)
class Task:
    """A chunk of files to decode into the file at `out`, starting at row `first`."""

    first: int
    root: str
    paths: Sequence[str]
    out: str
    shape: tuple[int, int, int]
    size: int | None


def decode_chunk(task: Task) -> dict[str, Any]:
    """Decode the files of `task` and write their rows; runs in a separate process.

    Returns:
        The journal record: ``first``, ``skipped`` (row, reason), ``conversions``; or ``color`` / ``wrong_size`` with the row of
        a file that stops the build.
    """
    rows = np.zeros((len(task.paths), *task.shape), np.uint8)
    skipped: list[tuple[int, str]] = []
    conversions: Counter[str] = Counter()
    for i, path in enumerate(task.paths):
        try:
            rows[i], done = decode(os.path.join(task.root, path), task.shape, task.size)
            conversions.update(done)
        except ColorFound:
            return {"first": task.first, "color": task.first + i}
        except WrongSizeError as error:
            return {"first": task.first, "wrong_size": task.first + i, "reason": str(error)}
        except Exception as error:
            # A broken image file can raise almost anything inside a decoder.
            skipped.append((task.first + i, f"{type(error).__name__}: {error}"))
    with open(task.out, "r+b") as out:
        out.seek(task.first * rows[0].size)
        out.write(rows.data)
    return {"first": task.first, "skipped": skipped, "conversions": dict(conversions)}
