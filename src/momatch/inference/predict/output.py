"""Where rows go: a file that appears whole or not at all, or the standard output."""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from momatch.inference.predict.table import Table
from momatch.inference.predict.writers import WRITERS, CsvWriter, Writer
from momatch.storage.durable import json_bytes, parse_json, part_of, remove_file, sync_folder


def check_target(path: Path, *, overwrite: bool, inputs: Sequence[str] = ()) -> None:
    """Refuse what cannot be written, before the work.

    Raises:
        ValueError: if the extension is unknown, the folder is not there, the file is there already or is itself read.
    """
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"--out: got {path}, expected a name that ends in {', '.join(WRITERS)}")
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError("--out: Parquet needs pyarrow; pip install 'momatch[parquet]', or choose .csv or .jsonl")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"--out: got {path}, expected a file, not a directory, in a directory that exists")
    if not path.exists():
        return
    if any(os.path.exists(word) and os.path.samefile(path, word) for word in inputs):
        raise ValueError(f"--out: got {path}, which is one of the inputs; choose another name")
    if not overwrite:
        raise ValueError(f"--out: {path} exists already; choose another name, or add --overwrite to replace it")


@contextmanager
def open_writer(path: Path | None, columns: Sequence[str]) -> Iterator[Writer]:
    """A writer of rows to the file at `path`, by its extension; None for CSV to the standard output.

    The file is written beside its place and renamed at the end. If anything goes wrong before, what there is of it is removed,
    and a file that was there is as it was.

    Raises:
        OSError: if it cannot be written.
    """
    if path is None:
        writer: Writer = CsvWriter(sys.stdout.buffer, columns)
        yield writer
        writer.close()
        sys.stdout.buffer.flush()
        return
    part = part_of(path)
    try:
        with open(part, "wb") as file:
            with _closed(WRITERS[path.suffix.lower()](file, columns)) as writer:
                yield writer
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.absolute().parent)
    except BaseException:
        # Ctrl-C too.
        remove_file(part)
        raise


@contextmanager
def _closed(writer: Writer) -> Iterator[Writer]:
    """Closed in any case, and while its file is open: pyarrow's would otherwise try it when it is collected."""
    try:
        yield writer
    except BaseException:
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


class Spool:
    """Rows on disk until all are there, because which of them are flagged depends on all: one line of JSON a batch.

    Args:
        folder: where; None for the system's folder of temporary files. The file has no name, and is gone with the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file: BinaryIO | Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by its own `close`

    def add(self, table: Table) -> None:
        """Keep the rows of `table`."""
        self._file.write(json_bytes(table, indent=None))

    def tables(self) -> Iterator[Table]:
        """All rows in order, a batch at a time."""
        self._file.seek(0)
        for line in self._file:
            yield parse_json(line)

    def close(self) -> None:
        """Give the space back."""
        self._file.close()
