"""What a person said about each image: a manifest that `momatch train` reads and a person can edit.

Columns: ``path``; ``label``, empty for unlabelled; ``status``, how the image was answered: ``labelled``, ``none`` (none of the
classes) or ``skipped``; ``guess``, what the model said before it knew the answer; ``answered``, when. The label counts: an
image with a label is labelled, whatever its status. Other columns and rows are kept as they are. An image that is none of the
classes is left out of training (`momatch.data.sources.manifest`).
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from momatch.data.report import DataError
from momatch.data.sources.manifest import MISSING, PAGE_COLUMNS, UNLABELED_NAMES
from momatch.storage.durable import replace_files

Status = Literal["", "labelled", "none", "skipped"]
#: A manifest reads these as "unlabelled", or refuses them as missing values.
_NO_NAMES = MISSING.union(UNLABELED_NAMES)


class Answer(NamedTuple):
    """What is known about an image.

    Attributes:
        label: name of its class; empty without one.
        status: how it was answered; empty if it was not.
        guess: class the model expected before it knew; empty if it did not.
    """

    label: str = ""
    status: Status = ""
    guess: str = ""

    @property
    def known(self) -> str:
        """What was said, as one text; empty if nothing was."""
        return f"{self.status}: {self.label}" if self.label else self.status


@dataclass(frozen=True)
class _Stamp:
    """Tells whether a file is the one that was read or written last."""

    size: int
    modified: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "_Stamp":
        found = os.stat(path)
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


class Answers:
    """The answers of a manifest. Every change is on disk when the call returns; edits by others are read first.

    Args:
        path: the manifest; written if it does not exist.
        files: the images, relative to the manifest's directory. Those that it does not list are added.
        labels: class of each image as it was found, for images that the manifest does not list; empty for none.

    Attributes:
        path: the manifest.
        readings: how often it was read; more than before if someone else has changed it.

    Raises:
        DataError: if the manifest cannot be read.
        OSError: if it cannot be written.
    """

    def __init__(self, path: Path, files: Sequence[str], labels: Sequence[str]) -> None:
        self.path = path
        self.readings = 0
        self._files = tuple(files)
        self._found = dict(zip(files, labels, strict=True))
        self._columns: list[str] = list(PAGE_COLUMNS)
        self._rows: dict[str, dict[str, str]] = {}
        self._stamp: _Stamp | None = None
        #: The manifest does not list all images yet.
        self._lacks = False
        self._check_names()
        is_read = self.refresh()
        if not is_read or self._lacks:
            self._add_missing()
            self._write()

    def refresh(self) -> bool:
        """Read the manifest if someone else has changed it; returns whether that was so.

        Raises:
            DataError: if it cannot be read.
        """
        try:
            stamp = _Stamp.of(self.path)
        except FileNotFoundError:
            return False
        if stamp == self._stamp:
            return False
        self._columns, self._rows = read_rows(self.path)
        self._stamp = stamp
        self.readings += 1
        self._lacks = any(file not in self._rows for file in self._files)
        self._add_missing()
        return True

    def __getitem__(self, file: str) -> Answer:
        """The answer about an image."""
        row = self._rows[file]
        label, status = row["label"], row["status"].strip()
        if label:
            return Answer(label, "labelled", row["guess"])
        known: Status = "none" if status == "none" else "skipped" if status == "skipped" else ""
        return Answer("", known, row["guess"])

    def give(self, answers: Mapping[str, Answer]) -> None:
        """Write answers, which one `undo` takes back together. An image that has a guess keeps it.

        Raises:
            DataError: if the manifest was changed and cannot be read.
            OSError: if it cannot be written; then nothing has changed.
        """
        self.refresh()
        # The first guess counts: those after it may know the answer.
        answers = {file: answer._replace(guess=self[file].guess or answer.guess) for file, answer in answers.items()}
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        # Two answers are never as old as each other.
        latest = max((row["answered"] for row in self._rows.values()), default="")
        when = now if now > latest else f"{latest}+"
        self._change({file: {**answer._asdict(), "answered": when} for file, answer in answers.items()})

    def undo(self) -> tuple[str, ...]:
        """Take back the latest answers, and return their images; none if there are none to take back.

        Their guesses stay: the model may have seen the answers since. Rows of images that are gone stay as they are: nobody
        could answer them again.

        Raises:
            DataError: as `give`.
            OSError: as `give`.
        """
        self.refresh()
        latest = max((self._rows[file]["answered"] for file in self._files), default="")
        if not latest:
            return ()
        files = tuple(file for file in self._files if self._rows[file]["answered"] == latest)
        self._change({file: {"label": "", "status": "", "answered": ""} for file in files})
        return files

    def last_decided(self) -> list[Answer]:
        """The answers that were given here, oldest first: labels, and images that are none of the classes."""
        rows = [(self._rows[file]["answered"], file) for file in self._files if self._rows[file]["answered"]]
        return [answer for _, file in sorted(rows) if (answer := self[file]).status in ("labelled", "none")]

    def _change(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        before = {file: self._rows[file] for file in changes}
        self._rows.update({file: {**before[file], **change} for file, change in changes.items()})
        try:
            self._write()
        except OSError:
            self._rows.update(before)
            raise

    def _check_names(self) -> None:
        """Raise `DataError` if a manifest could not hold the name of a file."""
        for file in self._files:
            if not can_hold(file):
                raise DataError(
                    f"{file!r}: got a file name that a manifest cannot hold, expected printable text; rename it"
                )

    def _add_missing(self) -> None:
        for file in self._files:
            if file not in self._rows:
                self._rows[file] = dict.fromkeys(self._columns, "") | {"path": file, "label": self._found[file]}

    def _write(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows.values())
        replace_files({self.path: text.getvalue().encode()})
        self._stamp = _Stamp.of(self.path)


def can_hold(file: str) -> bool:
    """Whether a manifest can hold the name of a file."""
    return file == file.strip() and file.isprintable()


def read_rows(path: Path) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Columns of a manifest, and its rows by path.

    Raises:
        DataError: if it is not CSV in UTF-8 with a column ``path``, a row does not fit, an image is listed twice with different
            values, or a label cannot be a class.
    """
    rows: dict[str, tuple[int, dict[str, str]]] = {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            found: list[str] = [column.strip() for column in reader.fieldnames or []]
            if "path" not in found or len(set(found)) < len(found):
                raise DataError(
                    f"{path}: got the columns {', '.join(found) or '(none)'}, expected path and label, each once"
                )
            reader.fieldnames = found
            columns = [*found, *(column for column in PAGE_COLUMNS if column not in found)]
            values: dict[Any, Any]
            for values in reader:
                # DictReader marks missing and surplus fields by None.
                if None in values or None in values.values():
                    raise DataError(f"{path}: line {reader.line_num}: expected {len(found)} fields; repair the line")
                row = dict.fromkeys(columns, "") | values
                name = row["path"].strip()
                line, first = rows.setdefault(name and os.path.normpath(name), (reader.line_num, row))
                if difference := _difference(first, row):
                    raise DataError(
                        f"{path}: lines {line} and {reader.line_num} give {name} {difference}; keep one of them, nothing was "
                        "changed"
                    )
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}), expected CSV in UTF-8; repair it, nothing was changed"
        ) from error
    for label in {_label(row) for _, row in rows.values()} - {""}:
        try:
            check_class_name(label, ())
        except ValueError as error:
            raise DataError(f"{path}: {error}; repair it, nothing was changed") from error
    return columns, {name: {**row, "label": _label(row)} for name, (_, row) in rows.items()}


def _label(row: Mapping[str, str]) -> str:
    label = row["label"].strip()
    return "" if label in UNLABELED_NAMES else label


def _difference(first: Mapping[str, str], row: Mapping[str, str]) -> str:
    """What two rows of one image say differently, to keep one of which would lose the other; empty for a plain repeat."""
    if _label(first) != _label(row):
        return f"different labels ({_label(first)!r} and {_label(row)!r})"
    others = (column for column in row if column not in ("path", "label"))
    differing = [column for column in others if first[column].strip() != row[column].strip()]
    return f"different values of {', '.join(differing)}" if differing else ""


def check_class_name(name: str, others: Sequence[str]) -> str:
    """The name of a new class, without spaces around it.

    Raises:
        ValueError: if a manifest cannot hold it, or there is a class of that name.
    """
    name = name.strip()
    if not name or not name.isprintable() or len(name) > 100:
        raise ValueError(f"class: got {name!r}, expected a name of 1 to 100 printable characters")
    if name.lower() in _NO_NAMES:
        raise ValueError(f"class: got {name!r}, expected another name: in a manifest this means a missing value")
    if name in others:
        raise ValueError(f"class: got {name!r}, which is there already")
    return name
