"""An .npz file of arrays.

Keys, with accepted alternatives: ``images`` (``train_images``, ``x_train``), ``labels`` (``train_labels``,
``y_train``; -1 is unlabelled), and optionally ``unlabeled_images`` (``unlabelled_images``), ``test_images`` (``x_test``),
``test_labels`` (``y_test``) and ``class_names``. Images are uint8 (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3.
Nothing is unpickled. Images of more than 1 GiB are streamed into the cache and memory-mapped.
"""

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from momatch.data.arrays import channels_first
from momatch.data.cache import cache_key, open_or_build, write_rows
from momatch.data.dataset import UNLABELED, Dataset, Split
from momatch.data.image_files import check_class_labels, check_class_names
from momatch.data.report import DataError, LoadOptions, LoadReport

_KEYS = {
    "images": ("images", "train_images", "x_train"),
    "labels": ("labels", "train_labels", "y_train"),
    "unlabeled_images": ("unlabeled_images", "unlabelled_images"),
    "test_images": ("test_images", "x_test"),
    "test_labels": ("test_labels", "y_test"),
    "class_names": ("class_names",),
}
_IN_MEMORY = 1 << 30
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class StoredImages:
    """An array of images inside the archive, read in blocks; `shape` is (N, C, H, W)."""

    archive: Path
    key: str
    stored: tuple[int, ...]
    shape: tuple[int, int, int, int]

    def blocks(self, rows: int | None = None) -> Iterator[UInt8[np.ndarray, "_ C H W"]]:
        """All images in order, `rows` at a time; by default about 4 MiB at a time.

        Raises:
            Exception: whatever zipfile, zlib or numpy raise for a damaged archive.
        """
        row = int(np.prod(self.stored[1:]))
        step = rows or max(1, _BLOCK_BYTES // row)
        with zipfile.ZipFile(self.archive) as archive, archive.open(f"{self.key}.npy") as member:
            _read_header(member)
            for start in range(0, self.stored[0], step):
                count = min(step, self.stored[0] - start)
                raw = np.frombuffer(member.read(count * row), np.uint8).reshape(count, *self.stored[1:])
                yield (
                    raw.transpose(0, 3, 1, 2)
                    if self.stored[1:] != self.shape[1:] and raw.ndim == 4
                    else raw.reshape(count, *self.shape[1:])
                )


def _read_header(member: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    return np.lib.format.read_array_header_2_0(member)


def _images(path: Path, key: str) -> StoredImages:
    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as member:
        stored, fortran, dtype = _read_header(member)
    if dtype != np.uint8:
        vectors = "; for vectors use momatch.MoMatchClassifier, for features of images momatch embed"
        raise DataError(
            f"{path}: {key}: got dtype {dtype}, expected uint8 from 0 to 255; scale and convert it first"
            + (vectors if len(stored) == 2 else "")
        )
    if fortran and len(stored) > 1:
        raise DataError(f"{path}: {key}: stored in Fortran order; save np.ascontiguousarray of it")
    return StoredImages(path, key, stored, channels_first(f"{path}: {key}", stored))


def _labels(path: Path, key: str, values: Shaped[np.ndarray, "..."], count: int) -> Int64[Tensor, " N"]:
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (count,) or values.dtype.kind not in "iu":
        raise DataError(
            f"{path}: {key}: got shape {values.shape} and dtype {values.dtype}, expected integers of shape ({count},)"
        )
    return torch.from_numpy(values.astype(np.int64))


def _read(parts: list[StoredImages], path: Path, options: LoadOptions) -> tuple[UInt8[Tensor, "N C H W"], Path | None]:
    """All image arrays concatenated: in memory, or memory-mapped if large."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    for part in parts:
        if part.shape[1:] != shape[1:]:
            raise DataError(
                f"{path}: got {parts[0].key} of {shape[1:]} and {part.key} of {part.shape[1:]}, expected the same"
            )
    blocks = (block for part in parts for block in part.blocks())
    if np.prod(shape, dtype=np.int64) <= _IN_MEMORY:
        images, start = torch.empty(shape, dtype=torch.uint8), 0
        for block in blocks:
            # Without torch's complaint about blocks that are read-only.
            images.numpy()[start : start + len(block)] = block
            start += len(block)
        return images, None
    stat = os.stat(path)
    key = cache_key("npz", path.absolute(), stat.st_size, stat.st_mtime_ns, [part.key for part in parts])
    entry = open_or_build(
        key, options.cache_dir, lambda part: write_rows(part, blocks, shape, progress=options.progress)
    )
    return entry.images, entry.folder


def _class_names(small: dict[str, Shaped[np.ndarray, "..."]], train: Int64[Tensor, " N"]) -> tuple[str, ...]:
    if "class_names" in small:
        names = small["class_names"]
        if names.ndim != 1:
            raise DataError(f"class_names: got shape {names.shape}, expected (K,), one name per class")
        return tuple(str(name) for name in names)
    return tuple(str(k) for k in range(int(train.max()) + 1)) if len(train) else ()


def open_images(path: Path) -> dict[str, StoredImages]:
    """The image arrays of an .npz file by role: ``images``, ``unlabeled_images``, ``test_images``. Labels are not needed.

    Raises:
        DataError: if it is damaged, or has no such array.
    """
    with _explained(path):
        with _opened(path) as archive:
            found = _found(archive.files)
            arrays = {role: _images(path, key) for role, key in found.items() if key and role.endswith("images")}
        if not arrays:
            raise DataError(f"{path}: got the arrays {', '.join(archive.files)}, expected at least images")
        return arrays


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of reading the file into a `DataError`."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{path}: cannot be read as .npz ({error})") from error
    except ValueError as error:
        raise error if isinstance(error, DataError) else DataError(f"{path}: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: cannot be read as .npz (not a zip archive), expected a file written by np.savez")
    # Opened here, because np.load does not close a file that it cannot read.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        yield archive


def _found(keys: list[str]) -> dict[str, str | None]:
    """Role -> name of its array, or None."""
    return {role: next((key for key in spellings if key in keys), None) for role, spellings in _KEYS.items()}


def load_npz(name: str, path: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load an .npz file; see the module docstring for its keys.

    Raises:
        DataError: if it is damaged, contains pickles, or its arrays do not match.
    """
    with _explained(path):
        return _load(name, path, options)


def _load(name: str, path: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    report = LoadReport(str(path))
    with _opened(path) as archive:
        found = _found(archive.files)
        if found["images"] is None or found["labels"] is None:
            raise DataError(f"{path}: got the arrays {', '.join(archive.files)}, expected at least images and labels")
        unknown = sorted(set(archive.files) - set(found.values()))
        small = {role: archive[key] for role, key in found.items() if key and not role.endswith("images")}
    if unknown:
        report.warnings.append(f"{path}: not used: {', '.join(unknown)}")
    arrays = {role: _images(path, key) for role, key in found.items() if key and role.endswith("images")}
    if arrays["images"].shape[0] == 0:
        raise DataError(f"{path}: images: got none, expected at least one")
    images, report.cache = _read(list(arrays.values()), path, options)
    sizes = {role: array.shape[0] for role, array in arrays.items()}
    labeled = _labels(path, "labels", small["labels"], sizes["images"])
    labels = torch.cat([labeled, torch.full((sizes.get("unlabeled_images", 0),), UNLABELED)])
    names = _class_names(small, labels)
    check_class_names(str(path), names)
    if "class_names" not in small:
        check_class_labels(str(path), names, labels)
    test = None
    if "test_labels" in small and "test_images" not in sizes:
        raise DataError(f"{path}: got test_labels without test_images, expected both")
    if "test_images" in sizes:
        if "test_labels" not in small:
            raise DataError(f"{path}: got test_images without test_labels, expected both")
        test_labels = _labels(path, "test_labels", small["test_labels"], sizes["test_images"])
        test = Split(images[len(labels) :], test_labels)
    return Dataset(name, names, Split(images[: len(labels)], labels), test), report
