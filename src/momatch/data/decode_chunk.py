"""What a decoding process does. Kept apart, so that such a process loads Pillow and numpy and not torch."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from momatch.data.decode import ColorFound, WrongSizeError, decode


@dataclass(frozen=True)
class Task:
    """A chunk of files: rows `first` onwards of the file at `out`."""

    first: int
    root: str
    paths: Sequence[str]
    out: str
    shape: tuple[int, int, int]
    size: int | None


def decode_chunk(task: Task) -> dict[str, Any]:
    """Decode the files of `task` and write their rows; runs in a process of its own.

    Returns:
        What goes to the journal: ``first``, ``skipped`` (row, reason), ``conversions``; or ``color`` / ``wrong_size`` with the
        row of a file that stops the build.
    """
    rows = np.zeros((len(task.paths), *task.shape), np.uint8)
    skipped: list[tuple[int, str]] = []
    conversions: Counter[str] = Counter()
    for i, path in enumerate(task.paths):
        try:
            rows[i], done = decode(os.path.join(task.root, path), task.shape, task.size)
            conversions.update(done)
        except ColorFound:
            return {"first": task.first, "color": task.first + i}
        except WrongSizeError as error:
            return {"first": task.first, "wrong_size": task.first + i, "reason": str(error)}
        except Exception as error:
            # A broken image file can raise almost anything inside a decoder.
            skipped.append((task.first + i, f"{type(error).__name__}: {error}"))
    with open(task.out, "r+b") as out:
        out.seek(task.first * rows[0].size)
        out.write(rows.data)
    return {"first": task.first, "skipped": skipped, "conversions": dict(conversions)}
