"""SVHN, the cropped 32x32 house numbers in MATLAB files: X (32, 32, 3, N), y (N, 1) with 10 for the digit 0."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from momatch.data.cache import cache_key, open_or_build, write_rows
from momatch.data.catalog import KNOWN, SVHN_EXTRA
from momatch.data.dataset import Dataset, Split
from momatch.data.locate import obtain
from momatch.data.report import DataError, LoadOptions, LoadReport

_BLOCK = 8192
_TEN = 10


def read_mat(path: Path) -> tuple[UInt8[np.ndarray, "N 3 32 32"], Int64[np.ndarray, " N"]]:
    """Read a cropped .mat file; label 10 becomes 0.

    Raises:
        DataError: if it is damaged or not an SVHN file.
    """
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:
        # scipy raises almost anything on a damaged file.
        raise DataError(f"{path}: cannot be read as a MATLAB file ({error}); download it again") from error
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None:
        raise DataError(f"{path}: got the variables {sorted(content)}, expected X and y")
    if images.dtype != np.uint8 or images.shape[:3] != (32, 32, 3) or labels.size != images.shape[-1]:
        raise DataError(
            f"{path}: got X {images.shape} {images.dtype} and y {labels.shape}, expected X (32, 32, 3, N) uint8 and y (N, 1)"
        )
    labels = labels.reshape(-1).astype(np.int64)
    if labels.min() < 1 or labels.max() > _TEN:
        raise DataError(
            f"{path}: got labels from {labels.min()} to {labels.max()}, expected 1 to 10 (10 is the digit 0)"
        )
    return images.transpose(3, 2, 0, 1), labels % _TEN


def _split(path: Path) -> Split:
    images, labels = read_mat(path)
    return Split(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels))


def _with_extra(folder: Path, options: LoadOptions) -> tuple[Split, Path]:
    """The training and extra images, memory-mapped (1.9 GB)."""
    paths = [folder / "train_32x32.mat", folder / SVHN_EXTRA.name]
    stats = [os.stat(path) for path in paths]
    key = cache_key("svhn", folder.absolute(), [(stat.st_size, stat.st_mtime_ns) for stat in stats])

    def build(part: Path) -> dict[str, object]:
        contents = [read_mat(path) for path in paths]
        labels = np.concatenate([labels for _, labels in contents])

        def blocks() -> Iterator[UInt8[np.ndarray, "_ 3 32 32"]]:
            for images, _ in contents:
                yield from (images[start : start + _BLOCK] for start in range(0, len(images), _BLOCK))

        meta = write_rows(part, blocks(), (len(labels), 3, 32, 32), progress=options.progress)
        return meta | {"labels": labels.tolist()}

    entry = open_or_build(key, options.cache_dir, build)
    return Split(entry.images, torch.tensor(entry.meta["labels"])), entry.folder


def load_svhn(name: str, data_dir: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load `svhn`: uint8 (N, 3, 32, 32); `extra` appends the 531,131 extra images to the training set.

    Raises:
        DataError: if the files are missing or damaged.
    """
    _, folder = obtain(name, data_dir, options, (SVHN_EXTRA,) if options.extra else ())
    report = LoadReport(str(folder))
    if options.extra:
        train, report.cache = _with_extra(folder, options)
        report.notes.append("includes the extra images")
    else:
        train = _split(folder / "train_32x32.mat")
    return Dataset(name, KNOWN[name].class_names, train, _split(folder / "test_32x32.mat")), report
