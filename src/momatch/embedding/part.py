"""An embedding under way: rows on disk, and a journal of how many are there, so that a killed one goes on where it was.

Beside ``features.npz`` lies ``features.npz.part`` with ``plan.json`` (what is being made), ``backbone.safetensors``, one .npy
file for features and pictures of each split, and ``done.jsonl``. Rows are written through the file and not through a mapping: a
mapping answers a full disk with a signal that kills the process.
"""

import errno
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from momatch.data.cache import JOURNAL, Journal, read_journal
from momatch.storage.durable import (
    PART,
    json_bytes,
    parse_json,
    read_object,
    rename_synced,
    replace_files,
    sync_file,
    write_all,
)

_PLAN = "plan.json"
_LOCK = "lock"


class Part:
    """The folder of an embedding under way.

    Args:
        out: the features file that it becomes.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(out.name + PART)

    def path(self, name: str) -> Path:
        """A file of the folder."""
        return self.folder / name

    def is_begun(self, plan: Mapping[str, Any]) -> bool:
        """Whether rows of this embedding were made before; where none were, nothing is lost by beginning anew.

        Args:
            plan: everything that the rows depend on, as plain values.

        Raises:
            ValueError: if another one was begun there.
        """
        found, plan = read_object(self.path(_PLAN)), parse_json(json_bytes(dict(plan)))
        if found is None or not self.done():
            return False
        for key in (*plan, *found):
            if found.get(key) != plan.get(key):
                raise ValueError(
                    f"{self.folder}: an embedding was begun there with {key} {found.get(key)!r}, got {plan.get(key)!r}; give "
                    "the same command as then to go on with it, delete the folder to begin anew, or take another --out"
                )
        return True

    def begin(self, plan: Mapping[str, Any], arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Make the files of an embedding, unless rows of it were made before.

        Args:
            plan: as for `is_begun`.
            arrays: file name -> dtype and shape.

        Raises:
            ValueError: as `is_begun`.
            OSError: if there is too little space, or they cannot be written.
        """
        if self.is_begun(plan):
            return
        self._require_space(2 * sum(_size(*array) for array in arrays.values()))
        for name, (dtype, shape) in arrays.items():
            with open(self.path(name), "wb") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
                file.truncate(file.tell() + _size(dtype, shape))
        self.path(JOURNAL).write_bytes(b"")
        # Last, because a plan without its files would be taken for an embedding that was begun.
        replace_files({self.path(_PLAN): json_bytes(plan)})

    def done(self) -> dict[str, int]:
        """How many rows of each split are on the disk."""
        if not self.path(JOURNAL).exists():
            return {}
        return {record["split"]: record["rows"] for record in read_journal(self.folder)}

    def clear(self) -> None:
        """Remove what an embedding left of which no row was made, its weights above all: they may be what made it fail.

        Raises:
            OSError: if it cannot be.
        """
        # First, because a plan without its files would be taken for an embedding that was begun.
        self.path(_PLAN).unlink(missing_ok=True)
        for entry in list(self.folder.iterdir()):
            if entry.name != _LOCK:
                entry.unlink()

    def finish(self, written: Path) -> None:
        """Put the finished file in its place and remove the folder.

        Raises:
            OSError: if it cannot be.
        """
        sync_file(written)
        rename_synced(written, self.out)
        shutil.rmtree(self.folder)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The folder for this process alone; an `OSError` inside says what is left and how to go on.

        Raises:
            ValueError: if another process works there.
            OSError: with the number of the first one.
        """
        from filelock import FileLock, Timeout

        kept = False
        try:
            self.folder.mkdir(exist_ok=True)
            with FileLock(self.path(_LOCK), timeout=0):
                try:
                    yield
                finally:
                    kept = self.path(_PLAN).exists() and bool(self.done())
                    if not kept:
                        shutil.rmtree(self.folder, ignore_errors=True)
        except Timeout as error:
            raise ValueError(f"{self.folder}: another process is making {self.out.name}; wait for it") from error
        except OSError as error:
            remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "put that right"
            explained = OSError(
                f"{self.folder}: embedding failed: {error.strerror or error}; "
                f"{'what is done is kept' if kept else 'nothing was done yet'}; {remedy}, then give the same command again"
            )
            explained.errno = error.errno
            raise explained from error

    def _require_space(self, size: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < size:
            raise OSError(
                errno.ENOSPC,
                f"it needs {size / 1e9:.2f} GB there while it works, half of it at the end, got {free / 1e9:.2f} GB free",
            )


class RowWriter:
    """Writes rows of one split, in order, and notes them.

    Args:
        part: begun.
        split: "train" or "test".
        journal: of the part.
    """

    def __init__(self, part: Part, split: str, journal: Journal) -> None:
        self._split, self._journal = split, journal
        self._files = {kind: part.path(f"{split}_{kind}.npy") for kind in ("features", "pictures")}

    def write(self, first: int, **arrays: np.ndarray) -> None:
        """Write `features` and `pictures` from row `first` on.

        Raises:
            OSError: if they cannot be written.
        """
        for kind, rows in arrays.items():
            with open(self._files[kind], "r+b", buffering=0) as file:
                np.lib.format.read_magic(file)
                np.lib.format.read_array_header_1_0(file)
                file.seek(first * rows[0].nbytes, os.SEEK_CUR)
                write_all(file.fileno(), np.ascontiguousarray(rows).tobytes())
        self._journal.add({"split": self._split, "rows": first + len(rows)})


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
