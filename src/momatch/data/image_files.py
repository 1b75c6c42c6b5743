"""Make a dataset from a list of labelled image files, found in a folder or a manifest."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.cache import cache_key, open_or_build
from momatch.data.dataset import NO_CLASS, Dataset, Split
from momatch.data.decode_pool import DecodePool
from momatch.data.report import DataError, LoadOptions, LoadReport, Skipped, examples


@dataclass
class ImageFiles:
    """Image files and their labels; training rows first, then test rows.

    Attributes:
        source: the folder or manifest, as the user named it.
        root: directory that `paths` are relative to.
        class_names: label k is ``class_names[k]``.
        paths: one per row.
        labels: (N,), -1 for unlabelled, -2 for training rows that are known to be of no class.
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

    def select(self, rows: Int64[np.ndarray, " n"], digest: int) -> "ImageFiles":
        """The files at `rows`, ascending, without those skipped so far.

        Args:
            rows: positions.
            digest: of the content of these files.
        """
        return replace(
            self,
            paths=[self.paths[row] for row in rows],
            labels=self.labels[rows],
            num_train=int((rows < self.num_train).sum()),
            digest=digest,
            lines=[self.lines[row] for row in rows] if self.lines else [],
            skipped=[],
            ignored=0,
        )


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


def case_warnings(source: str, class_names: Iterable[str]) -> list[str]:
    """What the user should know about classes whose names differ only in case: they may be meant as one."""
    alike: dict[str, list[str]] = {}
    for name in class_order(class_names):
        alike.setdefault(name.casefold(), []).append(name)
    return [
        f"{source}: the classes {' and '.join(names)} differ only in upper and lower case; if they are one, name them alike"
        for names in alike.values()
        if len(names) > 1
    ]


def check_class_labels(source: str, class_names: tuple[str, ...], labels: Int64[Tensor, " N"]) -> None:
    """Raise `DataError` if numbered classes are fewer than two, or one has no training label."""
    if len(class_names) < 2:
        raise DataError(
            f"{source}: got {len(class_names)} class ({', '.join(class_names) or 'no labelled images'}), expected at least two"
        )
    present = set(labels.tolist())  # `Dataset` rejects labels out of range
    empty = [name for k, name in enumerate(class_names) if k not in present]
    if empty:
        raise DataError(
            f"{source}: labels: got none of class {', '.join(empty[:10])}, expected at least one label per class; "
            "number the classes from 0 without gaps, or name them (class_names)"
        )


def check_class_names(source: str, class_names: tuple[str, ...]) -> None:
    """Raise `DataError` if class names are repeated."""
    if len(set(class_names)) < len(class_names):
        raise DataError(f"{source}: class_names: got {', '.join(class_names)}, expected no repeats")


def hold_out(files: ImageFiles, options: LoadOptions) -> None:
    """Turn `test_fraction` of the labelled rows of each class into test rows, drawn by `test_seed`.

    Drawn by the names of the files, without their folders: an image that was held out stays so when others are labelled. A
    class with few labels keeps at least one for training.

    Raises:
        DataError: if there are already test rows, or there would be none.
    """
    if options.test_fraction == 0.0:
        return
    if files.num_train < len(files.paths):
        raise DataError(f"{files.source}: got both test images and test_fraction, expected only one of them; drop one")
    is_test = np.zeros(len(files.paths), bool)
    for k in range(len(files.class_names)):
        members = np.flatnonzero(files.labels == k).tolist()
        count = min(round(options.test_fraction * len(members)), len(members) - 1)
        drawn = sorted(members, key=lambda row: (_lot(files.paths[row], options.test_seed), files.paths[row]))
        is_test[drawn[: max(0, count)]] = True
    if not is_test.any():
        raise DataError(
            f"{files.source}: test_fraction {options.test_fraction} of {int((files.labels >= 0).sum())} labelled images "
            f"in {len(files.class_names)} classes is less than one image of each, expected a larger fraction or more labels"
        )
    order = np.argsort(is_test, kind="stable")
    files.paths = [files.paths[row] for row in order]
    files.lines = [files.lines[row] for row in order] if files.lines else []
    files.labels = files.labels[order]
    files.num_train = int((~is_test).sum())


def _lot(path: str, seed: int) -> bytes:
    """The lot of a file: those with the lowest lots are held out."""
    name = os.path.basename(path).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(name, digest_size=8, key=str(seed).encode()).digest()


def load_files(name: str, files: ImageFiles, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Decode `files`, or open them from the cache, and make a dataset.

    Raises:
        DataError: on mixed sizes without `size`, or too many unreadable files.
    """
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
    train, no_class = _without_no_class(Split(entry.images[:num_train], labels[:num_train], paths[:num_train]))
    test = None
    if num_train < len(labels):
        test = Split(entry.images[num_train:], labels[num_train:], paths[num_train:])
    dataset = Dataset(name, files.class_names, train, test, no_class=no_class)
    report.notes += dataset.no_class_notes()
    return dataset, report


def _without_no_class(train: Split) -> tuple[Split, Split | None]:
    """The training images, and apart from them those that are known to be of no class; None if there are none."""
    is_none = train.labels == NO_CLASS
    if not is_none.any():
        return train, None
    # Decoded with the others, so that one more of them does not mean to decode everything again.
    kept, left_out = (train.select(torch.nonzero(mask).flatten()) for mask in (~is_none, is_none))
    return kept, left_out


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
