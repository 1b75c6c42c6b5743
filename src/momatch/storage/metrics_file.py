"""metrics.jsonl: one strict JSON object per line, appended during a run. A kill may leave the last line incomplete."""

import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from momatch.storage.durable import finite, json_bytes, parse_json, replace_files, write_all

#: Bytes at the end of the file that are sure to contain a complete line; one with 1,000 thresholds has about 20,000.
_TAIL = 2**16


class MetricsFile:
    """Lines of metrics, each with a ``step``. A line without a newline is incomplete.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Append a line; NaN and infinities become null.

        Raises:
            ValueError: if there is no step.
            OSError: if writing fails; no part of the line is left then.
        """
        if not isinstance(metrics.get("step"), int):
            raise ValueError(f"metrics: got step {metrics.get('step')!r}, expected an integer")
        line = json_bytes(finite(metrics), indent=None)
        descriptor = self._open().fileno()
        size = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, line)
        except OSError:
            os.ftruncate(descriptor, size)
            raise

    def sync(self) -> None:
        """Sync the lines to disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All lines, without an incomplete last one.

        Raises:
            ValueError: if any other line is damaged.
        """
        lines = self._lines()
        if lines and lines[-1] is None:
            lines.pop()
        return self._whole(lines)

    def read_intact(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The intact lines and the numbers (from 1) of the damaged ones; an incomplete last line is ignored.

        Raises:
            OSError: if the file cannot be read; a missing file has no lines.
        """
        lines = [_parse(line) for line in self._split()[0]]
        damaged = [number for number, line in enumerate(lines, start=1) if line is None]
        return [line for line in lines if line is not None], damaged

    def truncate(self, last_step: int) -> None:
        """Drop the lines after `last_step` and an incomplete last line.

        Raises:
            ValueError: if one of the lines to keep is damaged.
            OSError: if writing fails.
        """
        lines = self._lines()
        stay = [index for index, line in enumerate(lines) if line is not None and line["step"] <= last_step]
        kept = [line for line in self._whole(lines[: max(stay, default=-1) + 1]) if line["step"] <= last_step]
        self.close()
        replace_files({self.path: b"".join(json_bytes(line, indent=None) for line in kept)})

    def last(self) -> dict[str, Any] | None:
        """The last complete line, read from the end of the file; None if there is none or it is damaged."""
        try:
            with open(self.path, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - _TAIL))
                *whole, _ = file.read().split(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _parse(whole[-1]) if whole else None

    def close(self) -> None:
        """Close the file; `append` reopens it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        if self._file is None:
            file = FileIO(self.path, "a+")
            # The next line must not be appended to an incomplete one.
            file.truncate(self.path.read_bytes().rfind(b"\n") + 1)
            self._file = file
        return self._file

    def _lines(self) -> list[dict[str, Any] | None]:
        """All lines; None for a damaged or incomplete one."""
        whole, torn = self._split()
        return [_parse(line) for line in whole] + ([None] if torn else [])

    def _split(self) -> tuple[list[bytes], bytes]:
        """The lines that end with a newline, and the rest."""
        try:
            *whole, torn = self.path.read_bytes().split(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return [], b""
        return whole, torn

    def _whole(self, lines: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
        for number, line in enumerate(lines, start=1):
            if line is None:
                raise ValueError(f"{self.path}: line {number} is damaged; delete that line")
        return [line for line in lines if line is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and type(value.get("step")) is int else None
