"""The idx format of MNIST and its relatives: a big-endian header (type, dimensions), then bytes; plain or gzipped."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from momatch.data.catalog import IDX_MEMBERS, KNOWN
from momatch.data.dataset import Dataset, Split
from momatch.data.locate import member_path, obtain
from momatch.data.report import DataError, LoadOptions, LoadReport

_UINT8 = 0x08


def read_idx(path: Path, ndim: int) -> UInt8[np.ndarray, "..."]:
    """Read an idx file of unsigned bytes with `ndim` dimensions.

    Raises:
        DataError: if the header, dimensions or length are invalid.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a complete gzip file ({error}); download it again") from error
    header = 4 + 4 * ndim
    magic = bytes((0, 0, _UINT8, ndim))
    if len(raw) < header or raw[:4] != magic:
        raise DataError(
            f"{path}: got the first bytes {raw[:4].hex(' ')}, expected {magic.hex(' ')} "
            f"(idx, unsigned bytes, {ndim} dimensions)"
        )
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", count=ndim, offset=4))
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(raw) != expected:
        raise DataError(f"{path}: got {len(raw)} bytes, expected {expected} for dimensions {shape}; download it again")
    # Copied, because a view of bytes is read-only.
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy()


def _split(images_path: Path, labels_path: Path) -> Split:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{images_path.parent}: got {len(images)} images in {images_path.name} but {len(labels)} labels in "
            f"{labels_path.name}, expected the same number"
        )
    return Split(torch.from_numpy(images[:, None]), torch.from_numpy(labels.astype(np.int64)))


def load_idx(name: str, data_dir: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load `mnist`, `fashion-mnist` or `kmnist`: uint8 (N, 1, 28, 28).

    Raises:
        DataError: if the files are missing or damaged.
    """
    _, folder = obtain(name, data_dir, options)
    paths = [member_path(folder, member) for member in IDX_MEMBERS]
    train_images, train_labels, test_images, test_labels = (path for path in paths if path is not None)
    train, test = _split(train_images, train_labels), _split(test_images, test_labels)
    return Dataset(name, KNOWN[name].class_names, train, test), LoadReport(str(folder))
