"""The journal of a build under way: which chunks are done, so that an interrupted build can go on."""

import json
import os
import time
from pathlib import Path
from typing import Any

from momatch.data.cache import IMAGES

JOURNAL = "done.jsonl"
_SYNC_SECONDS = 5.0


class Journal:
    """Finished chunks, written down once their rows are on the disk, at most every few seconds.

    Args:
        part: the folder of the entry under construction.
    """

    def __init__(self, part: Path) -> None:
        self.part = part
        self.waiting: list[dict[str, Any]] = []
        self.last = time.monotonic()

    def add(self, record: dict[str, Any]) -> None:
        """Note a finished chunk."""
        self.waiting.append(record)
        if time.monotonic() - self.last > _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring first the rows and then the notes to the disk, so that no note speaks of rows that a power cut took."""
        with open(self.part / IMAGES, "r+b") as images:
            os.fsync(images.fileno())
        with open(self.part / JOURNAL, "a", encoding="utf-8") as journal:
            journal.writelines(json.dumps(record) + "\n" for record in self.waiting)
            journal.flush()
            os.fsync(journal.fileno())
        self.waiting = []
        self.last = time.monotonic()


def read_journal(part: Path) -> list[dict[str, Any]]:
    """The journal's whole lines; the last one may have been cut off."""
    text = (part / JOURNAL).read_text("utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
