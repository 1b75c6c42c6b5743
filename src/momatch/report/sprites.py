"""Thumbnails: all pictures of a page on a few large images, each picture once, however often it is shown.

A browser loads a handful of large images at once and draws a part of one as the background of an element; thousands of small
images would cost more bytes and more time.
"""

import base64
import io
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

#: Pictures across a sheet and down it. 64 pictures of 32 pixels give 2048, which every browser and phone can hold.
SIDE = 64
#: Pixels that the longer side of a shown picture comes near to.
SHOWN = 96


class Tile(NamedTuple):
    """A picture's place: which kind of sheet (all pictures of one size share a kind), and its number there."""

    kind: int
    number: int


class Size(NamedTuple):
    """Pixels across and down."""

    width: int
    height: int


class Sprites:
    """The pictures of a page. Add them, then ask for `style` and `facts`."""

    def __init__(self) -> None:
        self._kinds: list[tuple[int, int, int]] = []
        self._pictures: list[list[UInt8[Tensor, "C h w"]]] = []
        self._known: dict[tuple[int, bytes], int] = {}

    def add(self, image: UInt8[Tensor, "C H W"], *, most: int) -> Tile:
        """Keep a picture, made smaller if a side is longer than `most` pixels.

        Returns:
            Its place; the same for the same picture.
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

    def html(self, tile: Tile, label: str) -> str:
        """An element that shows a picture; `label` is HTML already."""
        size = self._shown[tile.kind]
        sheet, place = divmod(tile.number, SIDE * SIDE)
        row, column = divmod(place, SIDE)
        # The sheet is the background of a small window, moved so that the right picture is seen.
        style = (
            f"width:{size.width}px;height:{size.height}px;background-size:{SIDE * size.width}px auto;"
            f"background-position:{-column * size.width}px {-row * size.height}px"
        )
        return f'<i class="tile sheet-{tile.kind}-{sheet}" role="img" aria-label="{label}" style="{style}"></i>'

    def facts(self) -> dict[str, object]:
        """What a script needs in order to show pictures as `html` does."""
        return {"side": SIDE, "sizes": [[size.width, size.height] for size in self._shown]}

    def style(self) -> str:
        """The sheets as rules of a style sheet."""
        rules = []
        for kind, pictures in enumerate(self._pictures):
            for sheet in range(self._sheets(kind)):
                part = pictures[sheet * SIDE * SIDE : (sheet + 1) * SIDE * SIDE]
                rules.append(f".sheet-{kind}-{sheet}{{background-image:url({_data_url(_pack(part))})}}")
        return "\n".join(rules)

    def _sheets(self, kind: int) -> int:
        return -(-len(self._pictures[kind]) // (SIDE * SIDE))

    @property
    def _shown(self) -> list[Size]:
        """In which size pictures of each kind are shown: enlarged by a whole factor, so that pixels stay square."""
        scales = [max(1, round(SHOWN / max(height, width))) for _, height, width in self._kinds]
        return [
            Size(scale * width, scale * height) for scale, (_, height, width) in zip(scales, self._kinds, strict=True)
        ]


def _thumbnail(image: UInt8[Tensor, "C H W"], most: int) -> UInt8[Tensor, "c h w"]:
    """Gray or colour, no side longer than `most`."""
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
    """The smaller of the exact image and of one that is as good to the eye."""
    exact, close = io.BytesIO(), io.BytesIO()
    sheet.save(exact, "PNG")
    sheet.save(close, "WEBP", quality=80, method=1)
    kind, data = min(("png", exact.getvalue()), ("webp", close.getvalue()), key=lambda pair: len(pair[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
