"""Make a dataset from a list of labelled image files, found in a folder or a manifest."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.cache import cache_key, open_or_build
from momatch.data.dataset import UNLABELED, Dataset, Split
from momatch.data.decode_pool import DecodePool
from momatch.data.report import DataError, LoadOptions, LoadReport, Skipped, examples
from momatch.data.sampling import Purpose, bit_stream, permutations


@dataclass
class ImageFiles:
    """Image files and their labels; training rows first, then test rows.

    Attributes:
        source: the folder or manifest, as the user named it.
        root: directory that `paths` are relative to.
        class_names: label k is ``class_names[k]``.
        paths: one per row.
        labels: (N,), -1 for unlabelled.
        num_train: number of training rows.
        digest: of names, sizes and modification times, independent of their order.
        lines: manifest line of each row; empty for a folder.
        skipped: files and rows that could not be used so far.
        ignored: number of files without an image extension.
    """

    source: str
    root: str
    class_names: tuple[str, ...]
    paths: list[str]
    labels: Int64[np.ndarray, " N"]
    num_train: int
    digest: int
    lines: list[int] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    ignored: int = 0

    def name(self, row: int) -> str:
        """Name of the file of `row` in messages."""
        path = self.paths[row]
        return f"line {self.lines[row]}: {path}" if self.lines else path


def file_digest(path: str, stat: os.stat_result) -> int:
    """A number that changes with the file's name, size or modification time; add them up for a set of files."""
    text = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")


def class_order(names: Iterable[str]) -> tuple[str, ...]:
    """Class names in label order: sorted; by value if all are integers, so that "2" comes before "10"."""
    ordered = sorted(set(names))
    if all(name.isascii() and name.isdigit() for name in ordered):
        ordered.sort(key=int)
    return tuple(ordered)


def check_class_labels(source: str, class_names: tuple[str, ...], labels: Int64[Tensor, " N"]) -> None:
    """Raise `DataError` if class names are repeated, fewer than two, or have no training label."""
    if len(set(class_names)) < len(class_names):
        raise DataError(f"{source}: class_names: got {', '.join(class_names)}, expected no repeats")
    check_classes(source, class_names)
    present = set(labels.tolist())  # `Dataset` rejects labels out of range
    empty = [name for k, name in enumerate(class_names) if k not in present]
    if empty:
        raise DataError(
            f"{source}: labels: got none of class {', '.join(empty[:10])}, expected at least one label per class; "
            "number the classes from 0 without gaps"
        )


def check_classes(source: str, class_names: tuple[str, ...]) -> None:
    """Raise `DataError` if there are fewer than two classes."""
    if len(class_names) < 2:
        raise DataError(
            f"{source}: got {len(class_names)} class ({', '.join(class_names) or 'no labelled images'}), expected at least two"
        )


def hold_out(files: ImageFiles, options: LoadOptions) -> None:
    """Turn `test_fraction` of the labelled rows of each class into test rows, drawn by `test_seed`.

    Raises:
        DataError: if there are already test rows, or a class would have no training or no test rows.
    """
    if options.test_fraction == 0.0:
        return
    if files.num_train < len(files.paths):
        raise DataError(f"{files.source}: got both test images and test_fraction, expected only one of them; drop one")
    is_test = np.zeros(len(files.paths), bool)
    for k, class_name in enumerate(files.class_names):
        members = np.flatnonzero(files.labels == k)
        count = round(options.test_fraction * len(members))
        if not 0 < count < len(members):
            raise DataError(
                f"{files.source}: test_fraction {options.test_fraction} of the {len(members)} images of class {class_name!r} "
                f"is {count}, expected at least one image for testing and one for training"
            )
        (shuffled,) = permutations(bit_stream(options.test_seed, Purpose.HELD_OUT, k), 1, len(members))
        is_test[members[shuffled[:count]]] = True
    order = np.argsort(is_test, kind="stable")
    files.paths = [files.paths[row] for row in order]
    files.lines = [files.lines[row] for row in order] if files.lines else []
    files.labels = files.labels[order]
    files.num_train = int((~is_test).sum())


def load_files(name: str, files: ImageFiles, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Decode `files`, or open them from the cache, and make a dataset.

    Raises:
        DataError: on mixed sizes without `size`, too many unreadable files, or a class without readable images.
    """
    hold_out(files, options)
    order = hashlib.sha256("\0".join(files.paths).encode("utf-8", "surrogateescape")).hexdigest()
    key = cache_key("files", os.path.abspath(files.root), files.digest, order, f"size={options.size}")
    pool = DecodePool(
        files.root,
        files.paths,
        name=files.name,
        source=files.source,
        options=options,
        already_skipped=len(files.skipped),
    )
    entry = open_or_build(key, options.cache_dir, pool.build)

    bad_rows = [row for row, _ in entry.meta["skipped"]]
    bad = [Skipped(files.name(row), reason) for row, reason in entry.meta["skipped"]]
    report = LoadReport(files.source, files.skipped + bad, entry.meta["conversions"], files.ignored, cache=entry.folder)
    _check_skipped(report, len(files.paths), options)
    kept = np.ones(len(files.paths), bool)
    kept[bad_rows] = False
    labels = torch.from_numpy(files.labels[kept])
    num_train = int(kept[: files.num_train].sum())
    paths = tuple(path for path, keep in zip(files.paths, kept, strict=True) if keep)
    train = Split(entry.images[:num_train], labels[:num_train], paths[:num_train])
    test = None
    if num_train < len(labels):
        test = Split(entry.images[num_train:], labels[num_train:], paths[num_train:])
    _check_nonempty(files, train)
    return Dataset(name, files.class_names, train, test), report


def _check_skipped(report: LoadReport, total: int, options: LoadOptions) -> None:
    """Check the limit again, since the cache may have been built under a laxer one; record a warning."""
    if not report.skipped:
        return
    limit = options.skip_limit(total)
    listed = f"{len(report.skipped)} files or rows cannot be used:\n{examples(report.skipped)}"
    if len(report.skipped) > limit:
        raise DataError(
            f"{report.source}: {listed}\nexpected at most {limit}; repair or remove them", options.skip_remedy
        )
    report.warnings.append(f"{report.source}: skipped: {listed}")


def _check_nonempty(files: ImageFiles, train: Split) -> None:
    counts = Counter(train.labels.tolist())
    empty = [class_name for k, class_name in enumerate(files.class_names) if not counts[k]]
    if empty:
        raise DataError(f"{files.source}: no training image of class {', '.join(empty)} can be read")
    if counts[UNLABELED] == len(train):
        raise DataError(f"{files.source}: no labelled training image can be read")
