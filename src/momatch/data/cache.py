"""Cache of decoded images: one raw uint8 file per dataset, memory-mapped, built once.

An entry is a directory ``KEY`` with ``images.bin`` (the rows) and ``meta.json`` (their shape, and a record of the decoding). It
is built as ``KEY.part`` under a lock and renamed when complete, so a partial entry is never read, and a second process waits
instead of building it too. The key is a digest of everything the pixels depend on. Entries may be deleted at any time; they are
rebuilt when needed.
"""

import errno
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import UInt8
from torch import Tensor

from momatch.console.progress import CountProgress
from momatch.data.locate import cache_root
from momatch.data.report import DataError
from momatch.storage.durable import json_bytes, rename_synced, sync_file, write_synced

#: Part of every key: change it when the same files would give different pixels.
FORMAT = "1"
IMAGES = "images.bin"
JOURNAL = "done.jsonl"
_SYNC_SECONDS = 5.0


@dataclass(frozen=True)
class CacheEntry:
    """A complete entry.

    Attributes:
        folder: its directory.
        images: memory-mapped images.
        meta: metadata from the builder.
    """

    folder: Path
    images: UInt8[Tensor, "N C H W"]
    meta: dict[str, Any]


def cache_key(*parts: object) -> str:
    """Digest of `parts`, which together determine the pixels."""
    return hashlib.sha256("\0".join([FORMAT, *map(str, parts)]).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def open_or_build(key: str, cache_dir: str | Path | None, build: Callable[[Path], dict[str, Any]]) -> CacheEntry:
    """Open the entry `key`, building it first if it does not exist.

    Args:
        key: from `cache_key`.
        cache_dir: see `LoadOptions`.
        build: writes ``images.bin`` into the given directory and returns the metadata, including ``shape``. The directory may
            hold the leftovers of an interrupted build; it is removed after a `DataError`.

    Raises:
        DataError: if the build rejects the data, or the entry is damaged.
    """
    root = cache_root(cache_dir) / "images"
    root.mkdir(parents=True, exist_ok=True)
    folder, part = root / key, root / f"{key}.part"
    with FileLock(root / f"{key}.lock"):
        if not folder.exists():
            part.mkdir(exist_ok=True)
            try:
                meta = build(part)
            except DataError:
                shutil.rmtree(part, ignore_errors=True)
                raise
            # Pixels first: once renamed, the directory counts as complete, even after a power failure.
            sync_file(part / IMAGES)
            write_synced(part / "meta.json", json_bytes(meta))
            rename_synced(part, folder)
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    shape = tuple(meta["shape"])
    path = folder / IMAGES
    if not path.exists() or path.stat().st_size != np.prod(shape, dtype=np.int64):
        raise DataError(f"the cache entry {folder} is damaged; delete that directory to have it rebuilt")
    return CacheEntry(folder, map_images(path, shape), meta)


def map_images(path: Path, shape: tuple[int, ...]) -> UInt8[Tensor, "N C H W"]:
    """The raw uint8 file at `path` as a memory-mapped tensor; see `map_tensor`."""
    return map_tensor(path, shape, np.dtype(np.uint8))


def map_tensor(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0) -> Tensor:
    """The raw numbers in the file at `path`, starting at byte `offset`, as a memory-mapped tensor.

    The mapping is copy-on-write, so an in-place operation never changes the file. Linux counts such a mapping against memory
    and refuses it for a file larger than memory; the mapping is read-only then.
    """
    try:
        array = np.memmap(path, dtype, mode="c", offset=offset, shape=shape)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        array = np.memmap(path, dtype, mode="r", offset=offset, shape=shape)
    with warnings.catch_warnings():
        # torch warns about read-only arrays; here that is intended.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)


def require_space(folder: Path, size: int) -> None:
    """Raise `DataError` if the disk of `folder` has less than `size` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise DataError(
            f"the cache needs {size / 1e9:.2f} GB in {folder.parent}, got {free / 1e9:.2f} GB free; "
            "free some space, or set $MOMATCH_CACHE to another directory"
        )


def write_rows(
    part: Path,
    chunks: Iterable[UInt8[np.ndarray, "_ C H W"]],
    shape: tuple[int, int, int, int],
    *,
    progress: bool,
) -> dict[str, Any]:
    """Write `chunks` of images as ``images.bin``, in bounded memory.

    Args:
        part: directory of the entry being built.
        chunks: blocks of images, N in total.
        shape: (N, C, H, W).
        progress: show a progress bar.

    Returns:
        The metadata, with the shape.

    Raises:
        DataError: if there is too little disk space, or the chunks do not add up to `shape`.
    """
    require_space(part, int(np.prod(shape, dtype=np.int64)))
    rows = 0
    with (
        open(part / IMAGES, "wb") as out,
        CountProgress(shape[0], label="cache", enabled=progress) as bar,
    ):
        for chunk in chunks:
            if chunk.shape[1:] != shape[1:]:
                raise DataError(f"got an image of shape {chunk.shape[1:]}, expected {shape[1:]} like the first")
            out.write(np.ascontiguousarray(chunk).tobytes())
            rows += len(chunk)
            bar.add(len(chunk))
    if rows != shape[0]:
        raise DataError(f"got {rows} images, expected {shape[0]}")
    return {"shape": list(shape)}


class Journal:
    """Journal of finished chunks, written after their rows have reached the disk, at most every few seconds.

    Args:
        part: directory of the entry being built.
        written: files in it that hold the rows.
    """

    def __init__(self, part: Path, written: Sequence[str] = (IMAGES,)) -> None:
        self.part = part
        self.written = tuple(written)
        self.waiting: list[dict[str, Any]] = []
        self.last = time.monotonic()

    def add(self, record: dict[str, Any]) -> None:
        """Record a finished chunk."""
        self.waiting.append(record)
        if time.monotonic() - self.last > _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Sync the rows, then the records, so that no record refers to rows lost in a power failure."""
        for name in self.written:
            sync_file(self.part / name)
        with open(self.part / JOURNAL, "a+b") as journal:
            # Drop a line torn by a crash: appending to it would make an unreadable line.
            journal.seek(0)
            journal.truncate(_whole_lines(journal.read()))
            journal.writelines(json.dumps(record).encode() + b"\n" for record in self.waiting)
            journal.flush()
            os.fsync(journal.fileno())
        self.waiting = []
        self.last = time.monotonic()


def read_journal(part: Path) -> list[dict[str, Any]]:
    """The journal's complete lines; a torn last line is ignored."""
    content = (part / JOURNAL).read_bytes()
    return [json.loads(line) for line in content[: _whole_lines(content)].splitlines()]


def _whole_lines(content: bytes) -> int:
    """Length of the complete lines."""
    return content.rfind(b"\n") + 1
