"""A small folder of image files for the tests of features and labels."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from momatch.embedding import EmbedOptions
from tests.embedding.setting import small_options


def write_image(path: Path, seed: int, bright: int) -> None:
    """A noisy gray 8x8 image, bright in one corner."""
    pixels = np.random.default_rng(seed).integers(0, 120, (8, 8), dtype=np.uint8)
    top, left = 4 * (bright // 2), 4 * (bright % 2)
    pixels[top : top + 4, left : left + 4] += 100
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    # A file that is not recent, so that its digest is cached.
    os.utime(path, (1e9 + seed, 1e9 + seed))


def write_folder(root: Path, *, labeled: int = 4, pool: int = 10, test: int = 3) -> Path:
    """Three classes, cat, dog and emu, with so many images each; `pool` unlabelled ones of each."""
    seed = 0
    for k, name in enumerate(("cat", "dog", "emu")):
        places = [f"{name}/{i}.png" for i in range(labeled)] + [f"test/{name}/{i}.png" for i in range(test)]
        for place in places + [f"unlabeled/{name}{i}.png" for i in range(pool)]:
            write_image(root / place, seed, k)
            seed += 1
    return root


def folder_options(folder: Path, **changes: object) -> EmbedOptions:
    """Options to embed the folder ``pets``, which is written where it is not there."""
    if not (folder / "pets").exists():
        write_folder(folder / "pets")
    return small_options(folder, **{"dataset": str(folder / "pets"), "batch_size": 16, **changes})
