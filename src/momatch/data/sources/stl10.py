"""STL-10 in its binary layout: images as column-major planes; labels start at 1.

The training split is the 5,000 labelled images followed by the 100,000 unlabelled ones, memory-mapped from the cache (2.9 GB).
"""

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from momatch.data.cache import cache_key, map_images, open_or_build, write_rows
from momatch.data.catalog import KNOWN
from momatch.data.dataset import UNLABELED, Dataset, Split
from momatch.data.locate import obtain
from momatch.data.near_duplicates import find_near_duplicates
from momatch.data.report import DataError, LoadOptions, LoadReport

_SHAPE = (3, 96, 96)
_BLOCK = 512


def map_binary(path: Path) -> UInt8[Tensor, "N 3 96 96"]:
    """The images of a .bin file, memory-mapped; a view puts rows and columns in order.

    Raises:
        DataError: if the length is not a multiple of the image size.
    """
    image = int(np.prod(_SHAPE))
    length = path.stat().st_size
    if length == 0 or length % image:
        raise DataError(f"{path}: got {length} bytes, expected a multiple of {image}; the file is incomplete")
    return map_images(path, (length // image, *_SHAPE)).transpose(2, 3)


def _read_labels(path: Path, count: int) -> Int64[Tensor, " N"]:
    labels = np.fromfile(path, np.uint8).astype(np.int64) - 1
    if len(labels) != count:
        raise DataError(f"{path}: got {len(labels)} labels, expected {count}, one per image")
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{path}: got labels from {labels.min() + 1} to {labels.max() + 1}, expected 1 to 10")
    return torch.from_numpy(labels)


def _blocks(images: UInt8[Tensor, "N 3 96 96"], rows: Int64[Tensor, " n"]) -> Iterator[UInt8[np.ndarray, "_ 3 96 96"]]:
    for start in range(0, len(rows), _BLOCK):
        yield images[rows[start : start + _BLOCK]].numpy()


def load_stl10(name: str, data_dir: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load `stl10`: uint8 (N, 3, 96, 96); `drop_test_duplicates` drops unlabelled near-duplicates of test images.

    Raises:
        DataError: if the files are missing or damaged.
    """
    _, folder = obtain(name, data_dir, options)
    train, unlabeled, test_images = (map_binary(folder / f"{part}_X.bin") for part in ("train", "unlabeled", "test"))
    labels = _read_labels(folder / "train_y.bin", len(train))
    test_labels = _read_labels(folder / "test_y.bin", len(test_images))
    test = Split(test_images.contiguous(), test_labels)

    def build(part: Path) -> dict[str, Any]:
        kept = torch.ones(len(unlabeled), dtype=torch.bool)
        if options.drop_test_duplicates:
            is_duplicate, _ = find_near_duplicates(unlabeled, test.images, progress=options.progress)
            kept = ~is_duplicate
        rows = kept.nonzero().flatten()
        blocks = chain(_blocks(train, torch.arange(len(train))), _blocks(unlabeled, rows))
        meta = write_rows(part, blocks, (len(train) + len(rows), *_SHAPE), progress=options.progress)
        return meta | {"dropped": (~kept).nonzero().flatten().tolist()}

    stats = [os.stat(folder / f"{part}_X.bin") for part in ("train", "unlabeled", "test")]
    identity = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
    key = cache_key("stl10", folder.absolute(), identity, options.drop_test_duplicates)
    entry = open_or_build(key, options.cache_dir, build)
    report = LoadReport(str(folder), cache=entry.folder)
    if options.drop_test_duplicates:
        report.notes.append(
            f"dropped {len(entry.meta['dropped'])} of {len(unlabeled)} unlabelled images: near-duplicates of test images"
        )
    all_labels = torch.cat([labels, torch.full((len(entry.images) - len(labels),), UNLABELED)])
    return Dataset(name, KNOWN[name].class_names, Split(entry.images, all_labels), test), report
