"""Tables to CSV, JSON lines or Parquet, batch by batch."""

import csv
import io
from collections.abc import Sequence
from typing import Any, BinaryIO

from momatch.inference.predict.table import Table
from momatch.storage.durable import json_bytes

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
