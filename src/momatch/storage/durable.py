"""Atomic file writes, even if the process is killed, and strict JSON.

A file is written under a temporary name, synced and renamed, so readers see the old or the new version, never a part. Text
files that users may edit are signed: a mark at the end shows whether the file is unchanged and may be replaced.
"""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

#: Suffix of incomplete files and folders.
PART = ".part"
#: Any wording of the mark: older releases used another one.
_MARK = re.compile(r"<!-- written by momatch; [^\n(]*\(sha256 ([0-9a-f]{64})\) -->\n\Z")


def write_synced(path: Path, data: bytes) -> None:
    """Write `data` to `path` and sync it to disk.

    Raises:
        OSError: if that fails, e.g. on a full disk; `path` may then hold part of the data.
    """
    with open(path, "wb", buffering=0) as file:
        write_all(file.fileno(), data)
        os.fsync(file.fileno())


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; a single `os.write` may write less, e.g. when the disk is nearly full.

    Raises:
        OSError: if the write fails.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(path: Path) -> None:
    """Sync the file at `path` to disk.

    Raises:
        OSError: if that fails.
    """
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def rename_synced(path: Path, target: Path) -> None:
    """Rename a synced file or folder to its final name, and sync the rename to disk.

    Raises:
        OSError: if that fails.
    """
    if path.is_dir():
        sync_folder(path)
    os.replace(path, target)
    sync_folder(target.absolute().parent)


def sync_folder(folder: Path) -> None:
    """Sync the directory entries of `folder` to disk, if the system supports it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync files only.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def check_target(path: Path, *, overwrite: bool) -> None:
    """Check that a file may be written to `path`, before any work is done.

    Raises:
        ValueError: if `path` is a directory, its parent does not exist, or the file exists and `overwrite` is False.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: expected a file, not a directory, in a directory that exists")
    if path.exists() and not overwrite:
        raise ValueError(f"{path}: the file exists; choose another name, or pass --overwrite to replace it")


def part_of(path: Path) -> Path:
    """The temporary name under which `path` is written; a hidden file."""
    return path.with_name(f".{path.name}{PART}")


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write files of one folder, each atomically.

    All are written before the first is renamed, so a full disk leaves the old ones unchanged.

    Raises:
        OSError: if one cannot be written.
    """
    try:
        for path, data in contents.items():
            write_synced(part_of(path), data)
        for path in contents:
            os.replace(part_of(path), path)
            sync_folder(path.parent)
    except OSError:
        for path in contents:
            remove_file(part_of(path))
        raise


def remove_file(path: Path) -> None:
    """Remove a file and ignore errors, for cleaning up while another error is raised."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def json_bytes(value: object, *, indent: int | None = 2) -> bytes:
    """Strict JSON in UTF-8 with a trailing newline; floats round-trip exactly.

    Raises:
        ValueError: if `value` contains NaN or an infinity.
        TypeError: if it contains a type that JSON does not support.
    """
    try:
        return (json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except UnicodeEncodeError:  # a file name that is not valid UTF-8 survives if escaped
        return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def parse_json(data: bytes) -> Any:
    """Parse strict JSON.

    Raises:
        ValueError: if `data` is not strict JSON.
    """
    try:
        return json.loads(data.decode(), parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("got JSON that is nested too deeply") from error


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no file.

    Raises:
        ValueError: if the file holds anything else.
        OSError: if it cannot be read.
    """
    try:
        content = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(f"{path}: {error}; the file is damaged") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: got a {type(content).__name__}, expected a JSON object; the file is damaged")
    return content


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"got {constant}, which is not valid JSON")


def finite(value: Any) -> Any:
    """`value` with each NaN and infinity replaced by None, also inside lists and dicts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def sign(text: str) -> str:
    """The text with the mark appended: a comment in Markdown and HTML."""
    digest = hashlib.sha256(_bytes(text)).hexdigest()
    return f"{text}<!-- written by momatch; once edited, it is never overwritten (sha256 {digest}) -->\n"


def may_replace(path: Path) -> bool:
    """True if there is no file, or an unchanged one that momatch wrote.

    Raises:
        OSError: if it cannot be read.
    """
    try:
        text = path.read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        return True
    mark = _MARK.search(text)
    return mark is not None and hashlib.sha256(_bytes(text[: mark.start()])).hexdigest() == mark[1]


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
