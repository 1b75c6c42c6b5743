"""The journal of a build under way: which chunks are done, so that an interrupted build can go on."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from momatch.data.cache import IMAGES

JOURNAL = "done.jsonl"
_SYNC_SECONDS = 5.0


class Journal:
    """Finished chunks, written down once their rows are on the disk, at most every few seconds.

    Args:
        part: the folder of the entry under construction.
        written: files in it that hold the rows.
    """

    def __init__(self, part: Path, written: Sequence[str] = (IMAGES,)) -> None:
        self.part = part
        self.written = tuple(written)
        self.waiting: list[dict[str, Any]] = []
        self.last = time.monotonic()

    def add(self, record: dict[str, Any]) -> None:
        """Note a finished chunk."""
        self.waiting.append(record)
        if time.monotonic() - self.last > _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring first the rows and then the notes to the disk, so that no note speaks of rows that a power cut took."""
        for name in self.written:
            with open(self.part / name, "r+b") as rows:
                os.fsync(rows.fileno())
        with open(self.part / JOURNAL, "a+b") as journal:
            # A note behind the torn one of a process that died while it wrote would make one line of both, which none can read.
            journal.seek(0)
            journal.truncate(_whole_lines(journal.read()))
            journal.writelines(json.dumps(record).encode() + b"\n" for record in self.waiting)
            journal.flush()
            os.fsync(journal.fileno())
        self.waiting = []
        self.last = time.monotonic()


def read_journal(part: Path) -> list[dict[str, Any]]:
    """The journal's whole lines; the last one may have been cut off."""
    content = (part / JOURNAL).read_bytes()
    return [json.loads(line) for line in content[: _whole_lines(content)].splitlines()]


def _whole_lines(content: bytes) -> int:
    """Length of the whole lines in it."""
    return content.rfind(b"\n") + 1
