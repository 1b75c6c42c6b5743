"""Sprite sheets: all pictures of a page packed into a few large images, each picture once.

A picture is shown as a part of a sheet, the background of an element; thousands of separate images would take more bytes
and more time to load.
"""

import base64
import io
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

#: Pictures per row and column of a sheet: 64 of 64 pixels make 4096, which every browser and phone can display.
SIDE = 64
#: Approximate longer side of a small picture on screen, in pixels; its pixels stay visible.
SHOWN = 96
#: Longer side of a photograph on screen: a picture of at least `PHOTOGRAPH` pixels, which is scaled smoothly.
SHOWN_PHOTOGRAPH = 128
PHOTOGRAPH = 64


class Tile(NamedTuple):
    """Where a picture is: its kind (pictures of one shape share sheets), and its number within the kind."""

    kind: int
    number: int


class Size(NamedTuple):
    """Width and height on screen, in pixels."""

    width: int
    height: int


class Sprites:
    """The pictures of a page. Add all of them before asking for `style_sheet` and `layout`."""

    def __init__(self) -> None:
        self._kinds: list[tuple[int, int, int]] = []
        self._pictures: list[list[UInt8[Tensor, "C h w"]]] = []
        self._known: dict[tuple[int, bytes], int] = {}

    def add(self, image: UInt8[Tensor, "C H W"], *, most: int) -> Tile:
        """Add a picture, downscaled if a side is longer than `most` pixels.

        Returns:
            Where it is; equal pictures share a tile.
        """
        small = _thumbnail(image, most)
        channels, height, width = small.shape
        if (channels, height, width) not in self._kinds:
            self._kinds.append((channels, height, width))
            self._pictures.append([])
        kind = self._kinds.index((channels, height, width))
        key = (kind, small.numpy().tobytes())
        if key not in self._known:
            self._known[key] = len(self._pictures[kind])
            self._pictures[kind].append(small)
        return Tile(kind, self._known[key])

    def css_class(self, tile: Tile) -> str:
        """The class that sets the sheet of a tile as the background of an element."""
        return f"sheet-{tile.kind}-{tile.number // (SIDE * SIDE)}"

    def css_style(self, tile: Tile, *, shrink: int = 1) -> str:
        """The style of an element that shows a tile: its size, and the offset of the sheet behind it.

        Args:
            tile: the picture.
            shrink: divisor of its size.
        """
        size = Size(*(max(1, side // shrink) for side in self._shown[tile.kind]))
        row, column = divmod(tile.number % (SIDE * SIDE), SIDE)
        return (
            f"width:{size.width}px;height:{size.height}px;background-size:{SIDE * size.width}px auto;"
            f"background-position:{-column * size.width}px {-row * size.height}px"
        )

    def layout(self) -> dict[str, object]:
        """What a script needs to show tiles in the same way."""
        return {"side": SIDE, "sizes": [[size.width, size.height] for size in self._shown]}

    def style_sheet(self) -> str:
        """CSS rules that hold the sheets."""
        rules = []
        for kind, pictures in enumerate(self._pictures):
            for start in range(0, len(pictures), SIDE * SIDE):
                url = _data_url(_pack(pictures[start : start + SIDE * SIDE]))
                smooth = ";image-rendering:auto" if _is_photograph(self._kinds[kind]) else ""
                rules.append(f".{self.css_class(Tile(kind, start))}{{background-image:url({url}){smooth}}}")
        return "\n".join(rules)

    @property
    def _shown(self) -> list[Size]:
        """Size on screen of each kind: small ones enlarged by a whole factor, so that pixels stay square."""
        sizes = []
        for shape in self._kinds:
            _, height, width = shape
            scale: float = max(1, round(SHOWN / max(height, width)))
            if _is_photograph(shape):
                scale = SHOWN_PHOTOGRAPH / max(height, width)
            sizes.append(Size(max(1, round(scale * width)), max(1, round(scale * height))))
        return sizes


def _is_photograph(shape: tuple[int, int, int]) -> bool:
    return max(shape[1:]) >= PHOTOGRAPH


def _thumbnail(image: UInt8[Tensor, "C H W"], most: int) -> UInt8[Tensor, "c h w"]:
    """The image in grey or RGB, no side longer than `most`."""
    image = image.cpu()[:3] if len(image) >= 3 else image.cpu()[:1]
    longest = max(image.shape[1:])
    if longest <= most:
        return image.contiguous()
    height, width = (max(1, round(side * most / longest)) for side in image.shape[1:])
    small = F.interpolate(image[None].float(), size=(height, width), mode="area")[0]
    return small.round().to(torch.uint8)


def _pack(pictures: list[UInt8[Tensor, "C h w"]]) -> Image.Image:
    channels, height, width = pictures[0].shape
    rows = -(-len(pictures) // SIDE)
    tiles = torch.zeros(rows * SIDE, channels, height, width, dtype=torch.uint8)
    tiles[: len(pictures)] = torch.stack(pictures)
    sheet = tiles.view(rows, SIDE, channels, height, width).permute(0, 3, 1, 4, 2)
    sheet = sheet.reshape(rows * height, SIDE * width, channels)
    return Image.fromarray((sheet[:, :, 0] if channels == 1 else sheet).numpy())


def _data_url(sheet: Image.Image) -> str:
    """The sheet as PNG or as lossy WebP, whichever is smaller."""
    exact, close = io.BytesIO(), io.BytesIO()
    sheet.save(exact, "PNG")
    sheet.save(close, "WEBP", quality=80, method=1)
    kind, data = min(("png", exact.getvalue()), ("webp", close.getvalue()), key=lambda pair: len(pair[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
