"""An unfinished embedding: rows on disk and a journal of how many are done, so that it can be resumed after a crash.

The directory ``features.npz.part`` next to ``features.npz`` holds ``plan.json`` (the settings), ``backbone.safetensors``, .npy
files of features, statistics of stages and pictures of each split, and ``done.jsonl``. Rows are written to the files, not
through a memory map: on a full disk a memory map kills the process with a signal.
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
#: The arrays of each split.
KINDS = ("features", "stages", "pictures")


class Part:
    """The directory of an unfinished embedding.

    Args:
        out: the final features file.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(out.name + PART)

    def path(self, name: str) -> Path:
        """Path of a file in the directory."""
        return self.folder / name

    def is_begun(self, plan: Mapping[str, Any]) -> bool:
        """Whether the directory has finished rows of this embedding; if not, nothing is lost by starting over.

        Args:
            plan: everything the rows depend on, as plain values.

        Raises:
            ValueError: if it has rows of a different embedding.
        """
        found, plan = read_object(self.path(_PLAN)), parse_json(json_bytes(dict(plan)))
        if found is None or not self.done():
            return False
        for key in (*plan, *found):
            if found.get(key) != plan.get(key):
                raise ValueError(
                    f"{self.folder}: it holds an unfinished embedding with {key} {found.get(key)!r}, got {plan.get(key)!r}; "
                    "run the original command to resume it, delete the directory to start over, or choose another --out"
                )
        return True

    def begin(
        self,
        plan: Mapping[str, Any],
        arrays: Mapping[str, tuple[str, tuple[int, ...]]],
        final: Mapping[str, tuple[str, tuple[int, ...]]],
    ) -> None:
        """Create the files of an embedding, unless it is being resumed.

        Args:
            plan: see `is_begun`.
            arrays: file name -> dtype and shape.
            final: the same for the finished file, which also has rows that were kept.

        Raises:
            ValueError: see `is_begun`.
            OSError: if there is too little space, or a file cannot be written.
        """
        if self.is_begun(plan):
            return
        self._require_space(*(sum(_size(*array) for array in each.values()) for each in (arrays, final)))
        for name, (dtype, shape) in arrays.items():
            with open(self.path(name), "wb") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
                file.truncate(file.tell() + _size(dtype, shape))
        self.path(JOURNAL).write_bytes(b"")
        # Last, because a plan without its files would look like an embedding to resume.
        replace_files({self.path(_PLAN): json_bytes(plan)})

    def done(self) -> dict[str, int]:
        """Number of finished rows of each split."""
        if not self.path(JOURNAL).exists():
            return {}
        return {record["split"]: record["rows"] for record in read_journal(self.folder)}

    def clear(self) -> None:
        """Remove the leftovers of an embedding without finished rows; its weights may be the reason it failed.

        Raises:
            OSError: if a file cannot be removed.
        """
        # First, because a plan without its files would look like an embedding to resume.
        self.path(_PLAN).unlink(missing_ok=True)
        for entry in list(self.folder.iterdir()):
            if entry.name != _LOCK:
                entry.unlink()

    def finish(self, written: Path) -> None:
        """Move the finished file into place and remove the directory.

        Raises:
            OSError: if either fails.
        """
        sync_file(written)
        rename_synced(written, self.out)
        shutil.rmtree(self.folder)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Lock the directory for this process; an `OSError` inside is re-raised with what was kept and how to resume.

        Raises:
            ValueError: if another process holds the lock.
            OSError: with the original errno.
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
            remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "fix the problem"
            explained = OSError(
                f"{self.folder}: embedding failed: {error.strerror or error}; "
                f"{'finished rows are kept' if kept else 'nothing was done yet'}; {remedy}, then run the same command again"
            )
            explained.errno = error.errno
            raise explained from error

    def _require_space(self, work: int, final: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < work + final:
            raise OSError(
                errno.ENOSPC,
                f"needs {(work + final) / 1e9:.2f} GB while it works and {final / 1e9:.2f} GB afterwards, got "
                f"{free / 1e9:.2f} GB free",
            )


class RowWriter:
    """Writes the rows of one split in order and journals them.

    Args:
        part: the embedding, after `Part.begin`.
        split: "train" or "test".
        journal: the journal of `part`.
    """

    def __init__(self, part: Part, split: str, journal: Journal) -> None:
        self._split, self._journal = split, journal
        self._files = {kind: part.path(f"{split}_{kind}.npy") for kind in KINDS}

    def write(self, first: int, **arrays: np.ndarray) -> None:
        """Write `features`, `stages` and `pictures` starting at row `first`.

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
