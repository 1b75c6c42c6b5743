"""A contact sheet: one row of images per class, with its name and count, and one for unlabelled images."""

import io
from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from momatch.data.dataset import UNLABELED, Split
from momatch.storage.durable import replace_files

_COLUMNS = 12
_GAP = 2
_TEXT_WIDTH = 170
#: More rows than this make an image too large for most viewers.
MAX_ROWS = 100


def _pick(labels: Int64[Tensor, " N"], label: int) -> Int64[Tensor, " m"]:
    """Up to one row of samples with `label`, evenly spread over the dataset."""
    rows = (labels == label).nonzero().flatten()
    if len(rows) <= _COLUMNS:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, _COLUMNS).long()]


def _tile(image: UInt8[Tensor, "C H W"], side: int) -> Image.Image:
    pixels = image.numpy()
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
    scale = side / max(picture.size)
    # Keep the pixels of small images visible; shrink large ones smoothly.
    method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), method)


def draw_contact_sheet(split: Split, class_names: tuple[str, ...]) -> Image.Image:
    """Draw up to 12 images of each class (at most 100 classes) and 12 unlabelled ones.

    Raises:
        ValueError: if the rows are features without pictures.
    """
    pictures = split.rows.pictures
    if pictures is None:
        raise ValueError(f"contact sheet: got {split.rows.describe()} without pictures, expected pictures to draw")
    side = 64 if len(class_names) <= 30 else 48
    titles = [(k, name) for k, name in enumerate(class_names)][:MAX_ROWS]
    if (split.labels == UNLABELED).any():
        titles.append((UNLABELED, "unlabelled"))
    step = side + _GAP
    sheet = Image.new("RGB", (_TEXT_WIDTH + _COLUMNS * step + _GAP, len(titles) * step + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for row, (label, name) in enumerate(titles):
        top = _GAP + row * step
        count = int((split.labels == label).sum())
        shown = name if len(name) <= 22 else f"{name[:21]}…"
        draw.text((6, top + side // 2), f"{shown}\n{count:,}", fill="black", font=font, anchor="lm")
        for column, image in enumerate(pictures.gather(_pick(split.labels, label))):
            sheet.paste(_tile(image, side), (_TEXT_WIDTH + column * step, top))
    return sheet


def save_contact_sheet(split: Split, class_names: tuple[str, ...], path: Path) -> None:
    """Draw the contact sheet and write it as PNG, replacing an existing file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    draw_contact_sheet(split, class_names).save(content, format="PNG")
    replace_files({path: content.getvalue()})
