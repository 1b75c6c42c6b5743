"""CIFAR-10 and CIFAR-100, in the binary and the python layout.

The python layout consists of pickles, which can run arbitrary code when loaded. They are read by an unpickler that accepts only
byte strings, numbers, lists, dicts and plain integer arrays.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer, UInt8

from momatch.data.catalog import KNOWN
from momatch.data.dataset import Dataset, Split
from momatch.data.locate import obtain
from momatch.data.report import DataError, LoadOptions, LoadReport

_PIXELS = 3 * 32 * 32


def _empty_array(*_: object) -> UInt8[np.ndarray, "0"]:
    """Replaces numpy's array constructor; the content comes later, with the state."""
    return np.empty(0, np.uint8)


class _Array:
    """Replaces the class ``numpy.ndarray``, which the pickle only passes to the array constructor."""


def _integer_dtype(code: str | bytes, *_: object) -> "np.dtype[np.integer[Any]]":
    dtype = np.dtype(code.decode("ascii") if isinstance(code, bytes) else code)
    if dtype.kind not in "iu":
        raise pickle.UnpicklingError(f"got an array of {dtype}, expected integers")
    return dtype


def _latin1(text: str, encoding: str) -> bytes:
    """Replaces ``_codecs.encode``, which old pickle protocols use for bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"got the encoding {encoding!r}, expected latin1")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _integer_dtype,
    ("_codecs", "encode"): _latin1,
}


class _CifarUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"got a reference to {module}.{name}, which CIFAR files do not contain")
        return _ADMITTED[module, name]


def _read_pickle(path: Path) -> dict[str, Any]:
    try:
        content = _CifarUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:
        # A broken pickle can raise almost anything.
        raise DataError(f"{path}: cannot be read ({error}), expected a batch file of the python layout") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: got a {type(content).__name__}, expected a dict")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _split(images: UInt8[np.ndarray, "n d"], labels: Integer[np.ndarray, " n"], num_classes: int, path: Path) -> Split:
    """Make a split of images (n, 3072), stored as planes, and labels.

    Raises:
        DataError: if they do not match, or a label is out of range.
    """
    if images.shape[1] != _PIXELS or labels.shape != images.shape[:1]:
        raise DataError(
            f"{path}: got images {images.shape} and labels {labels.shape}, expected (n, {_PIXELS}) and (n,)"
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise DataError(
            f"{path}: got labels from {labels.min()} to {labels.max()}, expected 0 to {num_classes - 1}; "
            "the file is damaged or belongs to another dataset"
        )
    return Split(torch.from_numpy(images.reshape(-1, 3, 32, 32)), torch.from_numpy(labels.astype(np.int64)))


def read_binary(path: Path, label_bytes: int, num_classes: int) -> Split:
    """Read a .bin file: records of `label_bytes` labels (the last is used) and 3,072 bytes of pixel planes.

    Raises:
        DataError: if the length or the labels are invalid.
    """
    raw = np.fromfile(path, np.uint8)
    record = label_bytes + _PIXELS
    if len(raw) == 0 or len(raw) % record:
        raise DataError(f"{path}: got {len(raw)} bytes, expected a multiple of {record}; the file is incomplete")
    records = raw.reshape(-1, record)
    return _split(np.ascontiguousarray(records[:, label_bytes:]), records[:, label_bytes - 1], num_classes, path)


def read_python(path: Path, label_key: str, num_classes: int) -> Split:
    """Read a batch of the python layout, without running code in the pickle.

    Raises:
        DataError: if it is not such a batch.
    """
    batch = _read_pickle(path)
    images, labels = batch.get("data"), batch.get(label_key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2:
        raise DataError(f"{path}: got no uint8 array (n, {_PIXELS}) under 'data'")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise DataError(f"{path}: got no list of integers under {label_key!r}")
    return _split(images, np.asarray(labels, np.int64), num_classes, path)


def _class_names(folder: Path, name: str, is_binary: bool) -> tuple[str, ...]:
    if KNOWN[name].class_names:
        return KNOWN[name].class_names
    if is_binary:
        path = folder / "fine_label_names.txt"
        names = path.read_text("utf-8").split()
    else:
        path = folder / "meta"
        listed = _read_pickle(path).get("fine_label_names", [])
        names = [item.decode("latin1") if isinstance(item, bytes) else str(item) for item in listed]
    if len(names) != 100:
        raise DataError(f"{path}: got {len(names)} class names, expected 100")
    return tuple(names)


def _join(splits: list[Split]) -> Split:
    return Split(torch.cat([split.images for split in splits]), torch.cat([split.labels for split in splits]))


def load_cifar(name: str, data_dir: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load `cifar10` or `cifar100` (its 100 fine classes): uint8 (N, 3, 32, 32).

    Raises:
        DataError: if the files are missing or damaged.
    """
    layout, folder = obtain(name, data_dir, options)
    is_binary = layout is KNOWN[name].layouts[0]
    names = _class_names(folder, name, is_binary)

    def read(member: str) -> Split:
        if is_binary:
            return read_binary(folder / member, 1 if name == "cifar10" else 2, len(names))
        return read_python(folder / member, "labels" if name == "cifar10" else "fine_labels", len(names))

    train = _join([read(member) for member in layout.members if member.startswith(("data_batch", "train"))])
    test = read(next(member for member in layout.members if member.startswith("test")))
    return Dataset(name, names, train, test), LoadReport(str(folder))
