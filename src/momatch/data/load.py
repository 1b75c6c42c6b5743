"""`load_dataset`: load a dataset by name or path."""

import difflib
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from momatch.data.catalog import KNOWN
from momatch.data.dataset import Dataset, Split
from momatch.data.feature_spec import read_feature_spec
from momatch.data.features import load_features
from momatch.data.image_files import case_warnings
from momatch.data.locate import data_root
from momatch.data.report import DataError, DataWarning, LoadOptions, LoadReport
from momatch.data.rows import PixelRows
from momatch.data.sources.cifar import load_cifar
from momatch.data.sources.digits import load_digits
from momatch.data.sources.folder import load_folder
from momatch.data.sources.idx import load_idx
from momatch.data.sources.manifest import load_manifest
from momatch.data.sources.npz import load_npz
from momatch.data.sources.stl10 import load_stl10
from momatch.data.sources.svhn import load_svhn

_Loader = Callable[[str, Path, LoadOptions], tuple[Dataset, LoadReport]]

_ARRAYS = frozenset({"size"})
_ON_DISK = _ARRAYS | {"verify"}
_FILES = frozenset({"size", "strict", "max_skipped", "test_fraction", "test_seed"})

#: Name -> loader, and the options it supports.
BY_NAME: dict[str, tuple[_Loader, frozenset[str]]] = {
    "digits": (load_digits, _ARRAYS),
    "mnist": (load_idx, _ON_DISK),
    "fashion-mnist": (load_idx, _ON_DISK),
    "kmnist": (load_idx, _ON_DISK),
    "cifar10": (load_cifar, _ON_DISK),
    "cifar100": (load_cifar, _ON_DISK),
    "svhn": (load_svhn, _ON_DISK | {"extra"}),
    "stl10": (load_stl10, _ON_DISK | {"drop_test_duplicates"}),
}

#: The same by file extension; "" is a folder.
BY_EXTENSION: dict[str, tuple[_Loader, frozenset[str]]] = {
    "": (load_folder, _FILES | {"unlabeled_folders", "test_folder"}),
    ".csv": (load_manifest, _FILES),
    ".parquet": (load_manifest, _FILES),
    ".pq": (load_manifest, _FILES),
    ".npz": (load_npz, _ARRAYS),
}

#: The same for an .npz written by ``momatch embed``.
_FEATURES: tuple[_Loader, frozenset[str]] = (load_features, frozenset({"verify", "labels"}))


def load_dataset(name_or_path: str | Path, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """Load a dataset.

    Args:
        name_or_path: ``digits``, ``mnist``, ``fashion-mnist``, ``kmnist``, ``cifar10``, ``cifar100``, ``svhn`` or ``stl10``;
            or the path of an image folder, a .csv or .parquet manifest, or an .npz file of images or of features
            (``momatch embed``). Write a path that looks like a name as ``./mnist``.
        data_dir: directory of known datasets and downloads; default: ``$MOMATCH_DATA``, or the user cache directory.
        **options: see `LoadOptions`.

    Returns:
        uint8 images (N, C, H, W), int64 labels with -1 for unlabelled, class names and a test split. Images decoded from files
        are memory-mapped from the cache. A features file gives memory-mapped float16 features (N, V, F) instead of images.

    Raises:
        DataError: if the data cannot be used.

    Warns:
        DataWarning: if part of the data was skipped, a known dataset is incomplete, or names of classes differ only in case.
    """
    known = {option.name for option in fields(LoadOptions)}
    for option in options.keys() - known:
        close = difflib.get_close_matches(option, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise DataError(f"options: got {option!r}, expected one of {', '.join(sorted(known))}{hint}")
    dataset, report = load_with_report(name_or_path, data_dir, LoadOptions(**options))
    for message in report.warnings:
        warnings.warn(message, DataWarning, stacklevel=2)
    return dataset


def load_with_report(
    name_or_path: str | Path, data_dir: str | Path | None = None, options: LoadOptions | None = None
) -> tuple[Dataset, LoadReport]:
    """Like `load_dataset`, but returns a report of what was skipped and converted instead of warning.

    Raises:
        DataError: if the data cannot be used.
    """
    options = options or LoadOptions()
    name = str(name_or_path)
    if name in BY_NAME:
        load, used = BY_NAME[name]
        options.refuse_unused(name, used)
        dataset, report = load(name, data_root(data_dir), options)
        _compare_with_official(dataset, report, options)
        return _resized(dataset, options.size), report
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise DataError(unknown_name(name))
    load, used = _of_path(path)
    options.refuse_unused(name, used)
    dataset, report = load(dataset_name(path), path, options)
    where_labels_are = dataset.labeling and dataset.labeling.source
    report.warnings += case_warnings(where_labels_are or report.source, dataset.class_names)
    return _resized(dataset, options.size), report


def dataset_name(path: Path) -> str:
    """Name of the dataset at a path; one named like a known dataset must not get that dataset's official statistics."""
    return f"./{path.name}" if path.name in BY_NAME else path.name


def _of_path(path: Path) -> tuple[_Loader, frozenset[str]]:
    extension = "" if path.is_dir() else path.suffix.lower()
    if extension not in BY_EXTENSION or (path.is_file() and not extension):
        found = f"a {extension} file" if extension else "a file without extension"
        raise DataError(f"{path}: got {found}, expected a folder, .csv, .parquet or .npz")
    return BY_EXTENSION[extension] if read_feature_spec(path) is None else _FEATURES


def takes_size(name: str) -> bool:
    """Whether `name` is an existing path whose loader accepts a size.

    Raises:
        DataError: if it is an unsupported file.
    """
    path = Path(name).expanduser()
    return name not in BY_NAME and path.exists() and "size" in _of_path(path)[1]


def _resized(dataset: Dataset, size: int | None) -> Dataset:
    """The dataset with images of size x size; files are already decoded to it, arrays are stretched."""
    if size is None:
        return dataset

    def resized(split: Split) -> Split:
        rows = PixelRows([split.images]).converted((split.images.shape[1], size, size))
        return Split(rows, split.labels, split.files)

    return replace(dataset, train=resized(dataset.train), test=dataset.test and resized(dataset.test))


def unknown_name(name: str) -> str:
    """Error message for an unknown dataset name, with a suggestion."""
    close = difflib.get_close_matches(name.lower(), BY_NAME, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{name!r} is neither a known dataset ({', '.join(BY_NAME)}) nor a path that exists{hint}"


def _compare_with_official(dataset: Dataset, report: LoadReport, options: LoadOptions) -> None:
    """Warn if a known dataset has a different number of images than the official one."""
    known = KNOWN[dataset.name]
    got = len(dataset.train), len(dataset.test) if dataset.test is not None else 0
    expected = known.num_train, known.num_test
    if got != expected and not (options.extra or options.drop_test_duplicates):
        report.warnings.append(
            f"{report.source}: got {got[0]} training and {got[1]} test images, "
            f"the official {dataset.name} has {expected[0]} and {expected[1]}"
        )
