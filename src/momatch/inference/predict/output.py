"""Writers of prediction rows: CSV, JSON lines or Parquet, batch by batch, to stdout or atomically to a file."""

import csv
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from momatch.inference.predict.table import COLUMN_TYPES, Table
from momatch.storage.durable import check_target, json_bytes, parse_json, part_of, remove_file, sync_folder

#: Rows per Parquet row group, which is held in memory until it is written.
ROW_GROUP = 16_384


class CsvWriter:
    """CSV in UTF-8 with a header; None is empty, booleans are yes or no."""

    def __init__(self, file: BinaryIO | io.BufferedIOBase, columns: Sequence[str]) -> None:
        self._file, self._columns = file, columns
        self._write_rows([columns])

    def write(self, table: Table) -> None:
        """Add the rows of `table`."""
        shown = {name: map(_yes_or_no, table[name]) if _type(name) is bool else table[name] for name in self._columns}
        self._write_rows(zip(*shown.values(), strict=True))

    def close(self) -> None:
        """Do nothing."""

    def _write_rows(self, rows: Any) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        # File names that are not valid UTF-8 are written as their original bytes.
        self._file.write(text.getvalue().encode("utf-8", "surrogateescape"))


class JsonlWriter:
    """One JSON object per line."""

    def __init__(self, file: BinaryIO | io.BufferedIOBase, columns: Sequence[str]) -> None:
        self._file, self._columns = file, columns

    def write(self, table: Table) -> None:
        """Add the rows of `table`."""
        for values in zip(*(table[name] for name in self._columns), strict=True):
            self._file.write(json_bytes(dict(zip(self._columns, values, strict=True)), indent=None))

    def close(self) -> None:
        """Do nothing."""


class ParquetWriter:
    """Parquet in row groups of `ROW_GROUP` rows.

    Raises:
        ImportError: if pyarrow is not installed.
    """

    def __init__(self, file: BinaryIO | io.BufferedIOBase, columns: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
        self._schema = pa.schema([(name, kinds[_type(name)]) for name in columns])
        self._writer = pq.ParquetWriter(file, self._schema)
        self._waiting: list[Any] = []

    def write(self, table: Table) -> None:
        """Add the rows of `table`."""
        import pyarrow as pa

        valid = {name: list(map(_valid, values)) if _type(name) is str else values for name, values in table.items()}
        self._waiting.append(pa.RecordBatch.from_pydict(valid, schema=self._schema))
        if sum(batch.num_rows for batch in self._waiting) >= ROW_GROUP:
            self._flush()

    def close(self) -> None:
        """Write the last row group and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=ROW_GROUP)
            self._waiting = []


#: `write` adds the rows of a table, `close` flushes; neither closes the file.
Writer = CsvWriter | JsonlWriter | ParquetWriter

#: File extension -> writer.
WRITERS: dict[str, type[Writer]] = {
    ".csv": CsvWriter,
    ".jsonl": JsonlWriter,
    ".parquet": ParquetWriter,
}


def _type(column: str) -> type:
    return COLUMN_TYPES.get(column, float)


def _yes_or_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _valid(text: str | None) -> str | None:
    """Text that is valid in Parquet: bytes that are not UTF-8 are escaped."""
    return text if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_out(path: Path, *, overwrite: bool, inputs: Sequence[str] = ()) -> None:
    """Check the output file before any work is done.

    Raises:
        ValueError: if the extension is unknown, the folder does not exist, or the file exists or is one of the inputs.
    """
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"--out: got {path}, expected a file name with the extension {', '.join(WRITERS)}")
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError("--out: Parquet needs pyarrow; pip install 'momatch[parquet]', or choose .csv or .jsonl")
    if path.exists() and any(os.path.exists(word) and os.path.samefile(path, word) for word in inputs):
        raise ValueError(f"--out: got {path}, which is one of the inputs; choose another name")
    check_target(path, overwrite=overwrite)


@contextmanager
def open_writer(path: Path | None, columns: Sequence[str]) -> Iterator[Writer]:
    """Open a writer for the file at `path`, by its extension; None for CSV to stdout.

    The file is written under a temporary name and renamed at the end. On any error the temporary file is removed, and an
    existing file is unchanged.

    Raises:
        OSError: if writing fails.
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
        # Also on Ctrl-C.
        remove_file(part)
        raise


@contextmanager
def _closed(writer: Writer) -> Iterator[Writer]:
    """Close the writer even on errors, while its file is still open; pyarrow's would try again when garbage-collected."""
    try:
        yield writer
    except BaseException:
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


class Spool:
    """Rows on disk until all are known, for flags that depend on all of them; one line of JSON per batch.

    Args:
        folder: where to put the unnamed temporary file; None for the system's default.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file: BinaryIO | Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by its own `close`

    def add(self, table: Table) -> None:
        """Store the rows of `table`."""
        self._file.write(json_bytes(table, indent=None))

    def tables(self) -> Iterator[Table]:
        """All rows in order, a batch at a time."""
        self._file.seek(0)
        for line in self._file:
            yield parse_json(line)

    def close(self) -> None:
        """Delete the temporary file."""
        self._file.close()
