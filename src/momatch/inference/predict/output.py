"""Where rows go: CSV, JSON lines or Parquet, batch by batch, into a file that appears whole or not at all, or to stdout."""

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

from momatch.inference.predict.table import Table
from momatch.storage.durable import check_target, json_bytes, parse_json, part_of, remove_file, sync_folder

#: Rows of a Parquet row group: what is held before it is written.
ROW_GROUP = 16_384
_TEXT = ("path", "label", "error")


class CsvWriter:
    """CSV in UTF-8 with a header: nothing for None, yes or no for truth values."""

    def __init__(self, file: BinaryIO | io.BufferedIOBase, columns: Sequence[str]) -> None:
        self._file, self._columns = file, columns
        self._write_rows([columns])

    def write(self, table: Table) -> None:
        """Add the rows of `table`."""
        shown = table | {"flagged": [None if value is None else "yes" if value else "no" for value in table["flagged"]]}
        self._write_rows(zip(*(shown[name] for name in self._columns), strict=True))

    def close(self) -> None:
        """Nothing is left."""

    def _write_rows(self, rows: Any) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        # A name of a file that is no UTF-8 is written as the bytes that it is.
        self._file.write(text.getvalue().encode("utf-8", "surrogateescape"))


class JsonlWriter:
    """One JSON object a line; null for None."""

    def __init__(self, file: BinaryIO | io.BufferedIOBase, columns: Sequence[str]) -> None:
        self._file, self._columns = file, columns

    def write(self, table: Table) -> None:
        """Add the rows of `table`."""
        for values in zip(*(table[name] for name in self._columns), strict=True):
            self._file.write(json_bytes(dict(zip(self._columns, values, strict=True)), indent=None))

    def close(self) -> None:
        """Nothing is left."""


class ParquetWriter:
    """Parquet in row groups of `ROW_GROUP` rows; null for None.

    Raises:
        ImportError: if pyarrow is not installed.
    """

    def __init__(self, file: BinaryIO | io.BufferedIOBase, columns: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = dict.fromkeys(_TEXT, pa.string()) | {"row": pa.int64(), "flagged": pa.bool_()}
        self._schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in columns])
        self._writer = pq.ParquetWriter(file, self._schema)
        self._waiting: list[Any] = []

    def write(self, table: Table) -> None:
        """Add the rows of `table`."""
        import pyarrow as pa

        valid = table | {name: [_valid(text) for text in table[name]] for name in _TEXT}
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


#: `write` adds the rows of a table, `close` what is left; the file stays open.
Writer = CsvWriter | JsonlWriter | ParquetWriter

#: Extension of a file -> what writes it.
WRITERS: dict[str, type[Writer]] = {
    ".csv": CsvWriter,
    ".jsonl": JsonlWriter,
    ".parquet": ParquetWriter,
}


def _valid(text: str | None) -> str | None:
    """Text that Parquet takes: a byte that is no UTF-8 becomes an escape."""
    return text if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_out(path: Path, *, overwrite: bool, inputs: Sequence[str] = ()) -> None:
    """Refuse a file that cannot be written, before the work.

    Raises:
        ValueError: if the extension is unknown, the folder is not there, the file is there already or is itself read.
    """
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"--out: got {path}, expected a name that ends in {', '.join(WRITERS)}")
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError("--out: Parquet needs pyarrow; pip install 'momatch[parquet]', or choose .csv or .jsonl")
    if path.exists() and any(os.path.exists(word) and os.path.samefile(path, word) for word in inputs):
        raise ValueError(f"--out: got {path}, which is one of the inputs; choose another name")
    check_target(path, overwrite=overwrite)


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
