"""Files that are whole or not there, whatever kills the process, and JSON that every reader understands.

A file is written beside its place, brought to the disk and renamed. Until the rename the old one stands, after it the new one.
Text files that the user may edit are signed: a mark at their end tells whether the file is still ours to replace.
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

#: What a name ends in while its file or folder is not whole.
PART = ".part"
_MARK = re.compile(r"<!-- written by momatch; edit it and it stays as it is \(sha256 ([0-9a-f]{64})\) -->\n\Z")


def write_synced(path: Path, data: bytes) -> None:
    """Write `data` to `path` and bring it to the disk.

    Raises:
        OSError: if the disk is full, for example; `path` may then hold a part of the data.
    """
    with open(path, "wb", buffering=0) as file:
        write_all(file.fileno(), data)
        os.fsync(file.fileno())


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`: one call may write less than it was given, when the disk is nearly full for example.

    Raises:
        OSError: as the system says.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(path: Path) -> None:
    """Bring what was written to the file at `path` to the disk.

    Raises:
        OSError: if that fails.
    """
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def rename_synced(path: Path, target: Path) -> None:
    """Give a file or folder whose content is on the disk its final name; the name is on the disk when this returns.

    Raises:
        OSError: if it cannot be.
    """
    if path.is_dir():
        sync_folder(path)
    os.replace(path, target)
    sync_folder(target.absolute().parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to the disk, where the system can do that."""
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
    """Refuse to write a file where that cannot or must not be done, before any work.

    Raises:
        ValueError: if the path is a directory, its directory does not exist, or a file is there and not to be replaced.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: expected a file, not a directory, in a directory that exists")
    if path.exists() and not overwrite:
        raise ValueError(f"{path}: the file exists; choose another name, or pass --overwrite to replace it")


def part_of(path: Path) -> Path:
    """Where `path` is written before it is renamed; hidden, and of no name that a user would take."""
    return path.with_name(f".{path.name}{PART}")


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write files of one folder; each is its old self or its new self at any moment.

    All are written before the first is renamed, so a full disk leaves every old one as it was.

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
    """Remove a file as well as it goes: used where another error is on its way."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def json_bytes(value: object, *, indent: int | None = 2) -> bytes:
    """Strict JSON in UTF-8 with a newline at its end; floats come back exactly.

    Raises:
        ValueError: if there is a NaN or an infinity in it.
        TypeError: if there is something that JSON does not know.
    """
    try:
        return (json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except UnicodeEncodeError:  # a file name that was no UTF-8; escaped, it survives
        return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def parse_json(data: bytes) -> Any:
    """The value of strict JSON.

    Raises:
        ValueError: if `data` is anything else.
    """
    try:
        return json.loads(data.decode(), parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("got brackets nested too deeply") from error


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
    raise ValueError(f"got {constant}, which is no JSON")


def finite(value: Any) -> Any:
    """`value` with None in place of each NaN and infinity, also inside of lists and dicts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def sign(text: str) -> str:
    """The text with the mark, which is a comment in Markdown and HTML."""
    digest = hashlib.sha256(_bytes(text)).hexdigest()
    return f"{text}<!-- written by momatch; edit it and it stays as it is (sha256 {digest}) -->\n"


def may_replace(path: Path) -> bool:
    """True if there is no file, or one that is as momatch wrote it.

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
