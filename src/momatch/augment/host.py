"""The same operations in numpy, for images in host memory.

A batch in which every sample has its own operations splits into some thirty small groups, so call overhead matters, and numpy's
is a third of torch's. Arguments, results (bit for bit, tested) and arithmetic are those of `levels`, `blends` and `geometry`,
except where numpy is faster another way: blends use float32, which holds levels times multiples of 2^-16 exactly.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from momatch.augment.levels import ONE

Images = UInt8[np.ndarray, "n C H W"]
Magnitude = Int64[np.ndarray, " n"]
Blend = Float32[np.ndarray, "n C H W"]


def autocontrast(images: Images, magnitude: Magnitude) -> Images:
    """Stretch the levels of each channel to 0..255; a channel of one level is unchanged."""
    low, high = images.min((2, 3)), images.max((2, 3))  # (n, C)
    # For a channel of one level, stretching 0..255 to 0..255 changes nothing.
    low, high = np.where(low == high, 0.0, low), np.where(low == high, 255.0, high)
    scale = 255.0 / (high - low)
    stretched = images * scale[:, :, None, None]
    stretched -= (low * scale)[:, :, None, None]
    return stretched.astype(np.uint8)


def equalize(images: Images, magnitude: Magnitude) -> Images:
    """Flatten the histogram of each channel; a channel of one level is unchanged."""
    flat = images.reshape(-1, images.shape[2] * images.shape[3])  # (nC, HW)
    index = flat.astype(np.intp)
    index += np.arange(0, 256 * len(flat), 256)[:, None]  # one table per channel
    counts = np.bincount(index.ravel(), minlength=256 * len(flat)).reshape(-1, 256)
    brightest = counts[np.arange(len(flat)), flat.max(1)]  # pixels at the highest level in use
    step = ((flat.shape[1] - brightest) // 255)[:, None]
    darker = counts.cumsum(1) - counts  # pixels darker than each level
    # Float division, because integer division is not vectorised; exact far below 2^53.
    table = np.minimum((step // 2 + darker) / np.maximum(step, 1), 255).astype(np.uint8)
    table[step[:, 0] == 0] = np.arange(256)
    equalized: Images = table.ravel().take(index).reshape(images.shape)
    return equalized


def posterize(images: Images, magnitude: Magnitude) -> Images:
    """Keep the upper bits of each level: as many as `magnitude`, truncated."""
    dropped = 8 - (magnitude >> 16)
    posterized: Images = images & _column((255 >> dropped) << dropped, np.uint8)
    return posterized


def solarize(images: Images, magnitude: Magnitude) -> Images:
    """Invert the levels at or above `magnitude`."""
    below = images.astype(np.int16)
    below -= _column((magnitude + ONE - 1) >> 16, np.int16)
    below >>= 15
    solarized: Images = images ^ ~below.astype(np.uint8)
    return solarized


def brightness(images: Images, magnitude: Magnitude) -> Images:
    """Blend with black."""
    blended: Blend = images * _column(magnitude / ONE, np.float32)
    return blended.astype(np.uint8)


def contrast(images: Images, magnitude: Magnitude) -> Images:
    """Blend with the image's mean gray, rounded to a level."""
    mean = np.floor(_gray(images).mean((1, 2, 3), dtype=np.float64) + 0.5)
    blended: Blend = images * _column(magnitude / ONE, np.float32)
    blended += _column(mean * (1 - magnitude / ONE), np.float32)
    return blended.astype(np.uint8)


def color(images: Images, magnitude: Magnitude) -> Images:
    """Blend with the gray image."""
    plain = _gray(images)
    plain *= _column(1 - magnitude / ONE, np.float32)
    blended: Blend = images * _column(magnitude / ONE, np.float32)
    blended += plain
    return blended.astype(np.uint8)


def sharpness(images: Images, magnitude: Magnitude) -> Images:
    """Blend with the smoothed image; border pixels, and images less than 3 pixels high or wide, are unchanged."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    # All images as one line, as in `blends`; sums of 13 levels fit in 16 bits.
    line = images.ravel().astype(np.int16)
    across = line[:-2] + line[1:-1]
    across += line[2:]
    center = line[width + 1 : -width - 1]
    smooth = center * np.int16(4)
    for row in range(3):
        smooth += across[row * width : row * width + len(smooth)]
    smooth += 6  # half of 13, to round the quotient
    smooth //= 13
    difference = np.zeros(images.shape, np.float32)
    np.subtract(center, smooth, out=difference.reshape(-1)[width + 1 : -width - 1])
    difference *= _column(magnitude / ONE, np.float32)
    difference.reshape(-1)[width + 1 : -width - 1] += smooth
    sharpened = images.copy()
    sharpened[..., 1:-1, 1:-1] = difference[..., 1:-1, 1:-1]
    return sharpened


def slide(images: Images, matrices: Int64[np.ndarray, "n 6"]) -> Images:
    """`geometry.warp` for maps that keep rows intact: shear along x and translation (a = e = 1, d = 0).

    Copying whole rows is far faster than copying pixels.
    """
    n, channels, height, width = images.shape
    b, c, f = matrices[:, [1]], matrices[:, [2]], matrices[:, [5]]  # each (n, 1)
    y = np.arange(height)
    row = y + (f >> 16)
    shift = ((b * y + c) >> 16).clip(-width, width)
    shift[(row < 0) | (row >= height)] = width
    # A black row before the first and after each row, so that a shift of up to one width runs into black on either side.
    levels = np.zeros(2 * images.size + width, np.uint8)
    levels[width:].reshape(n, channels, height, 2 * width)[..., :width] = images
    within = row.clip(0, height - 1) * (2 * width) + shift + width  # (n, H)
    channel = np.arange(0, 2 * images.size, 2 * height * width).reshape(n, channels, 1)
    rows = np.ndarray(len(levels) - width + 1, f"V{width}", levels, strides=(1,))  # one row starting at each level
    moved: Images = rows[channel + within[:, None, :]].view(np.uint8).reshape(images.shape)
    return moved


def cutout(images: Images, draws: Int64[np.ndarray, "n 3"], *, size: float, fill: Sequence[int]) -> None:
    """`geometry.cutout`, in place: only the pixels of the squares are touched."""
    height, width = images.shape[2:]
    units = draws >> 16
    side = units[:, 0] * round(size * ONE * width) >> 16
    pixels = (side + ONE - 1) >> 16
    top = (2 * units[:, 1] * height - side).clip(0) >> 17
    left = (2 * units[:, 2] * width - side).clip(0) >> 17
    level = np.array(fill, np.uint8)[:, None, None]
    for image, y, x, span in zip(images, top.tolist(), left.tolist(), pixels.tolist(), strict=True):
        image[:, y : y + span, x : x + span] = level


def _gray(images: Images) -> Float32[np.ndarray, "n 1 H W"]:
    if images.shape[1] == 1:
        return images.astype(np.float32)
    weighted: Float32[np.ndarray, "n 1 H W"] = images[:, :1] * np.float32(19595)
    weighted += images[:, 1:2] * np.float32(38470)
    weighted += images[:, 2:] * np.float32(7471)
    weighted += 0x8000
    weighted *= 1 / ONE
    np.floor(weighted, out=weighted)
    return weighted


def _column(values: np.ndarray, dtype: type) -> np.ndarray:
    return values.astype(dtype).reshape(-1, 1, 1, 1)


#: By the names of `operations.OPERATIONS`.
PIXELS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "solarize": solarize,
    "brightness": brightness,
    "contrast": contrast,
    "color": color,
    "sharpness": sharpness,
}
