"""A manifest: a CSV or Parquet table of image files with the columns ``path``, ``label`` and optionally ``split``, ``status``.

Paths are relative to the manifest. An empty label, or -1, means unlabelled. ``split`` is ``train`` (or empty) or ``test``.
Labels are names; integers are ordered by value. An unlabelled image with the ``status`` ``none`` is known to be of no class;
any other status means nothing here. Unusable rows are reported by line and skipped, up to the limit.
"""

import csv
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from momatch.data.dataset import NO_CLASS, UNLABELED, Dataset
from momatch.data.image_files import ImageFiles, class_order, file_digest, hold_out, load_files
from momatch.data.report import DataError, LoadOptions, LoadReport, Skipped, examples

#: line, path, label, split, status
_Row = tuple[int, str, str, str, str]
#: Extensions of manifests.
MANIFESTS = frozenset({".csv", ".parquet", ".pq"})
_SPLITS = {"": False, "train": False, "test": True}
UNLABELED_NAMES = ("", str(UNLABELED))
#: In the column ``status``, of an image without a label: it is of none of the classes.
NONE = "none"
#: Name and columns of the manifest that `momatch label` keeps.
PAGE_LABELS = "labels.csv"
PAGE_COLUMNS = ("path", "label", "status", "guess", "answered")
#: Written by other tools for a missing value: not a class, and not clearly "unlabelled".
MISSING = frozenset({"nan", "na", "n/a", "null", "none"})


def _check_columns(source: Path, columns: list[str], needed: tuple[str, ...]) -> None:
    if not set(needed) <= set(columns):
        raise DataError(f"{source}: got the columns {', '.join(columns) or '(none)'}, expected {' and '.join(needed)}")
    repeated = sorted({column for column in columns if columns.count(column) > 1} & {"path", "label", "split"})
    if repeated:
        raise DataError(f"{source}: got the column {', '.join(repeated)} more than once, expected no repeats")


def _csv_rows(source: Path, needed: tuple[str, ...]) -> Iterator[_Row | Skipped]:
    with open(source, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            columns = [column.strip() for column in next(reader, [])]
            _check_columns(source, columns, needed)
            for fields in reader:
                if not fields:
                    continue
                if len(fields) != len(columns):
                    yield Skipped(f"line {reader.line_num}", f"got {len(fields)} fields, expected {len(columns)}")
                    continue
                row = dict(zip(columns, (value.strip() for value in fields), strict=True))
                label, split, status = (row.get(name, "") for name in ("label", "split", "status"))
                yield reader.line_num, row["path"], label, split, status
        except (csv.Error, UnicodeDecodeError) as error:
            # After a broken quote or character, the rows that follow cannot be trusted.
            raise DataError(
                f"{source}: cannot be read after line {reader.line_num} ({error}), expected CSV in UTF-8"
            ) from error


def _cell(value: object) -> str:
    """A table cell as text. Integral floats become integers: pandas writes integer columns with gaps as floats."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes | list | dict):
        raise DataError(f"got {value!r} in a cell, expected text or an integer; save the column as strings")
    return str(value).strip()


def _parquet_rows(source: Path, needed: tuple[str, ...]) -> Iterator[_Row | Skipped]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{source}: Parquet needs pyarrow; pip install pyarrow, or save the manifest as CSV") from error
    try:
        table = pq.ParquetFile(source)
        _check_columns(source, table.schema_arrow.names, needed)
        columns = [name for name in ("path", "label", "split", "status") if name in table.schema_arrow.names]
        number = 0
        for batch in table.iter_batches(columns=columns):
            for row in batch.to_pylist():
                number += 1
                label, split, status = (_cell(row.get(name)) for name in ("label", "split", "status"))
                yield number, _cell(row["path"]), label, split, status
    except pa.ArrowException as error:
        raise DataError(f"{source}: cannot be read as Parquet ({error})") from error


def _rows(source: Path, needed: tuple[str, ...]) -> Iterator[_Row | Skipped]:
    read = _parquet_rows if source.suffix.lower() in (".parquet", ".pq") else _csv_rows
    return read(source, needed)


def manifest_paths(source: Path) -> Iterator[str | Skipped]:
    """The paths listed in a manifest, one per row, as written; labels are not needed.

    Raises:
        DataError: if it has no column ``path``, or cannot be read.
    """
    for row in _rows(source, ("path",)):
        if isinstance(row, Skipped):
            yield row
            continue
        line, path, *_ = row
        yield path or Skipped(f"line {line}", "the path is empty")


@dataclass
class _Reading:
    """Usable and skipped rows so far."""

    root: str
    must_exist: bool = True
    digest: int = 0
    paths: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    is_test: list[bool] = field(default_factory=list)
    has_no_class: list[bool] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)

    def add(self, line: int, path: str, label: str, split: str, status: str) -> None:
        if not path:
            self.skipped.append(Skipped(f"line {line}", "the path is empty"))
            return
        if label.lower() in MISSING:
            meant = f"got the label {label!r}, expected a class, or an empty cell for unlabelled"
            self.skipped.append(Skipped(f"line {line}: {path}", meant))
            return
        label = "" if label in UNLABELED_NAMES else label
        split = split.lower()
        if split not in _SPLITS:
            self.skipped.append(Skipped(f"line {line}: {path}", f"got the split {split!r}, expected train or test"))
            return
        try:
            if self.must_exist:
                self.digest += file_digest(path, os.stat(os.path.join(self.root, path)))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.skipped.append(Skipped(f"line {line}: {path}", str(reason)))
            return
        # The label counts, whatever the status says. An image of no class serves neither to train nor to test.
        has_no_class = not label and status.lower() == NONE
        is_test = _SPLITS[split] and not has_no_class
        self._refuse_conflict(line, path, (label, is_test, has_no_class))
        self.paths.append(path)
        self.labels.append(label)
        self.is_test.append(is_test)
        self.has_no_class.append(has_no_class)
        self.lines.append(line)

    def _refuse_conflict(self, line: int, path: str, said: tuple[str, bool, bool]) -> None:
        """Reject a file listed twice with different labels, splits or statuses; plain repeats are fine."""
        row = self.first.setdefault(os.path.realpath(os.path.join(self.root, path)), len(self.paths))
        if row == len(self.paths):
            return
        if (self.labels[row], self.is_test[row], self.has_no_class[row]) != said:
            raise DataError(
                f"lines {self.lines[row]} and {line} give {path} different labels or splits "
                f"({self.labels[row]!r} and {said[0]!r}); keep one of them"
            )


def named_labels(source: Path) -> list[tuple[int, str, str, str]]:
    """Line, path, label and split of each row of a manifest; the images need not exist.

    The split is "train", "test", or "none" for an image that is of no class.

    Raises:
        DataError: as `read_manifest`.
    """
    reading = _read(source, LoadOptions(), must_exist=False)
    said = zip(reading.has_no_class, reading.is_test, strict=True)
    splits = [NONE if has_no_class else "test" if is_test else "train" for has_no_class, is_test in said]
    return list(zip(reading.lines, reading.paths, reading.labels, splits, strict=True))


def _read(source: Path, options: LoadOptions, *, must_exist: bool) -> _Reading:
    """The usable rows.

    Raises:
        DataError: as `read_manifest`.
    """
    reading = _Reading(str(source.parent), must_exist)
    for row in _rows(source, ("path", "label")):
        if isinstance(row, Skipped):
            reading.skipped.append(row)
        else:
            reading.add(*row)
    total = len(reading.paths) + len(reading.skipped)
    if total == 0:
        raise DataError(f"{source}: got no rows, expected one per image")
    limit = options.skip_limit(total)
    if not reading.paths:
        raise DataError(
            f"{source}: got no row that can be used out of {total}, expected paths relative to the file, and labels:\n"
            f"{examples(reading.skipped)}\nRepair them"
        )
    if len(reading.skipped) > limit:
        raise DataError(
            f"{source}: {len(reading.skipped)} of {total} rows cannot be used, expected at most {limit}:\n"
            f"{examples(reading.skipped)}\nRepair or remove them",
            options.skip_remedy,
        )
    return reading


def read_manifest(source: Path, options: LoadOptions) -> ImageFiles:
    """Read a manifest; the images are not opened yet.

    Raises:
        DataError: if it is empty, lacks a column, has contradictory rows, or too many unusable rows.
    """
    reading = _read(source, options, must_exist=True)
    files = _files(source, reading)
    hold_out(files, options)
    return files


def _files(source: Path, reading: _Reading) -> ImageFiles:
    is_test = np.asarray(reading.is_test, bool)
    names = class_order({label for label in reading.labels if label})
    numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
    if len(set(numbers)) < len(numbers):
        raise DataError(
            f"{source}: got the labels {', '.join(names)}, expected each number in one spelling (1, not 01)"
        )
    number = {name: k for k, name in enumerate(names)} | {"": UNLABELED}
    for row in np.flatnonzero(is_test):
        if not reading.labels[row]:
            raise DataError(f"{source}: line {reading.lines[row]}: got a test image without a label, expected a class")
    labels = np.asarray([number[label] for label in reading.labels], np.int64)
    labels[reading.has_no_class] = NO_CLASS
    order = np.argsort(is_test, kind="stable")
    return ImageFiles(
        str(source),
        reading.root,
        names,
        [reading.paths[row] for row in order],
        labels[order],
        int((~is_test).sum()),
        reading.digest,
        [reading.lines[row] for row in order],
        reading.skipped,
    )


def load_manifest(name: str, path: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load the images listed in a CSV or Parquet manifest.

    Raises:
        DataError: if the manifest or its images cannot be used.
    """
    return load_files(name, read_manifest(path, options), options)
