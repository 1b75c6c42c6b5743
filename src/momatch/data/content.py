"""Digests of images by content: of a file's bytes, or of an image's pixels. They tell which images are already known.

Digests of files are cached by inode, size and modification time, so that a second pass reads no file, not even one that was
moved to another folder.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from momatch.data.cache import cache_key
from momatch.data.locate import cache_root
from momatch.data.rows import Rows
from momatch.storage.durable import json_bytes, replace_files

#: Length of a digest.
DIGEST_BYTES = 16
#: A file that was changed more recently may change again within the resolution of its modification time: it is not cached.
_SETTLED_SECONDS = 2.0
_BLOCK = 1 << 20

#: A digest per image.
Digests = UInt8[np.ndarray, "N 16"]


def file_digests(root: str, paths: Sequence[str], cache_dir: str | Path | None = None) -> Digests:
    """Digests of the bytes of files; all zeros for a file that cannot be read.

    Args:
        root: directory that `paths` are relative to.
        paths: the files.
        cache_dir: see `LoadOptions`.
    """
    cache = cache_root(cache_dir) / "digests" / f"{cache_key('digests', os.path.realpath(root))}.json"
    known = _read_cache(cache)
    now, kept = time.time(), {}
    digests = np.zeros((len(paths), DIGEST_BYTES), np.uint8)
    for row, path in enumerate(paths):
        try:
            stat = os.stat(os.path.join(root, path))
            key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
            digest = known.get(key) or _of_file(os.path.join(root, path))
        except (OSError, ValueError):
            continue
        if now - stat.st_mtime > _SETTLED_SECONDS:
            kept[key] = digest
        digests[row] = np.frombuffer(bytes.fromhex(digest), np.uint8)
    if not kept.keys() <= known.keys():
        # Files of other splits are kept, those that are long gone are not.
        _write_cache(cache, kept if len(known) > 4 * len(kept) + 10_000 else known | kept)
    return digests


def pixel_digests(images: Rows) -> Digests:
    """Digests of shape and pixels of images."""
    digests = np.empty((len(images), DIGEST_BYTES), np.uint8)
    start = 0
    prefix = repr((images.shape, str(images.dtype))).encode()
    for chunk in images.chunks():
        for row, image in enumerate(chunk.contiguous().numpy(), start):
            digest = hashlib.blake2b(prefix, digest_size=DIGEST_BYTES)
            digest.update(image)
            digests[row] = np.frombuffer(digest.digest(), np.uint8)
        start += len(chunk)
    return digests


def draw_keys(digests: Digests) -> Int64[Tensor, " N"]:
    """A number per image for drawing its views: the first eight bytes of its digest."""
    words = np.ascontiguousarray(digests[:, :8]).view("<i8").reshape(-1)
    return torch.from_numpy(words.astype(np.int64))


def as_bytes(digests: Digests) -> list[bytes]:
    """The digests as keys of a dict."""
    return [digest.tobytes() for digest in digests]


def _of_file(path: str) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read_cache(path: Path) -> dict[str, str]:
    """What is known; nothing if the cache is missing or damaged, because it can be made again."""
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    size = 2 * DIGEST_BYTES
    usable = isinstance(known, dict) and all(isinstance(value, str) and len(value) == size for value in known.values())
    return known if usable else {}


def _write_cache(path: Path, known: dict[str, str]) -> None:
    """Write the cache; on a full or read-only disk go without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_files({path: json_bytes(known, indent=None)})
    except OSError:
        return
