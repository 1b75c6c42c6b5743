"""Checkpoints: the whole state of a run at a step, on disk so that neither a kill nor a full disk loses the last good one.

    checkpoints/step-00001234/state.safetensors, state.json

A checkpoint is written as ``step-00001234.part``, brought to the disk and renamed. Reading verifies checksums and falls back to
the checkpoint before. Where a step is saved again, the good checkpoint that is there already stands as ``step-00001234.old``
until the new one is in its place.
"""

import errno
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momatch.storage.durable import PART, sync_folder, write_synced
from momatch.storage.run_config import CONFIG
from momatch.storage.tensor_files import decode, encode, read_verified

if TYPE_CHECKING:
    from torch import Tensor

#: The folder of a run that holds its checkpoints.
FOLDER = "checkpoints"
_KIND = "momatch checkpoint"
_OLD = ".old"
_NAME = re.compile(r"step-(\d{8,})(\.old)?")
_LEFTOVER = re.compile(r"step-\d{8,}(\.old)?(\.deleted)?\.part")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified.

    Attributes:
        step: at which it was saved.
        tensors: by name, on the CPU, contiguous.
        facts: what else was saved.
        path: its folder.
        rejected: newer checkpoints that could not be used, and why, one line each.
    """

    step: int
    tensors: "dict[str, Tensor]"
    facts: dict[str, Any]
    path: Path
    rejected: tuple[str, ...]


def save_checkpoint(folder: Path, step: int, tensors: "Mapping[str, Tensor]", facts: Mapping[str, Any]) -> Path:
    """Save the state of a run.

    Args:
        folder: ``checkpoints`` in the run's directory; made if it is not there.
        step: how many steps are done.
        tensors: of any device, layout and dtype that safetensors knows; they may share memory.
        facts: what else is to be saved: strict JSON, so numbers must be finite, tuples come back as lists and keys as strings.

    Returns:
        The folder of the checkpoint.

    Raises:
        ValueError: if `step` is negative, or something cannot be saved.
        OSError: if it cannot be written; it says what is left and how to go on, and all other checkpoints are intact.
    """
    if step < 0:
        raise ValueError(f"step: got {step}, expected at least 0")
    data, description = encode(_KIND, tensors, {"step": step, "facts": facts})
    target = folder / f"step-{step:08d}"
    part = target.with_name(target.name + PART)
    with explain_write_errors(f"saving the checkpoint of step {step}", folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if part.exists():
                shutil.rmtree(part)
            part.mkdir()
            write_synced(part / "state.safetensors", data)
            write_synced(part / "state.json", description)
            sync_folder(part)
            _make_room(target)
            os.rename(part, target)
            sync_folder(folder)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return target


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; it is read into memory and verified. Nothing on disk is changed.

    Returns:
        None if there is no checkpoint at all.

    Raises:
        ValueError: if there are checkpoints and none can be used.
    """
    rejected: list[str] = []
    for path in _newest_first(folder):
        try:
            content, data = _read(path)
            tensors = decode(data)
        except (ValueError, OSError) as error:
            rejected.append(str(error))
            continue
        return Checkpoint(content["step"], tensors, content["facts"], path, tuple(rejected))
    if rejected:
        raise ValueError(
            f"{folder}: got {len(rejected)} checkpoints, expected one that is whole: {'; '.join(rejected)}. "
            "The run cannot go on; start it again in another run_dir, or with overwrite in this one"
        )
    return None


def last_good(folder: Path) -> Path | None:
    """Where the newest checkpoint lies that is whole."""
    for path in _newest_first(folder):
        if _is_good(path):
            return path
    return None


def prune(folder: Path, keep: int, *, saved: Path | None = None) -> None:
    """Delete all but the newest `keep` checkpoints, and what interrupted savings left.

    Counting begins at the newest checkpoint whose checksums hold; newer ones, and all if there is none, are left alone.

    Args:
        folder: of the checkpoints.
        keep: how many stay.
        saved: the checkpoint that was just saved: it is known to be whole and counting begins there, so that nothing is read.

    Raises:
        ValueError: if `keep` is less than 1.
        OSError: if one cannot be deleted.
    """
    if keep < 1:
        raise ValueError(f"keep: got {keep}, expected at least 1")
    with explain_write_errors("removing old checkpoints", folder.parent):
        for path in _entries(folder, _LEFTOVER):
            shutil.rmtree(path)
        good = last_good(folder) if saved is None else saved
        if good is None:
            return
        paths = _newest_first(folder)
        older = paths[paths.index(good) + 1 :]
        kept = [path for path in older if path.suffix != _OLD][: keep - 1]
        for path in older:
            if path not in kept:
                _delete(path)


def delete_checkpoints(folder: Path) -> None:
    """Delete every checkpoint, and the folder itself if nothing else is in it.

    Raises:
        OSError: if one cannot be deleted.
    """
    for path in _newest_first(folder):
        _delete(path)
    for path in _entries(folder, _LEFTOVER):
        shutil.rmtree(path)
    # Not empty: what is left is not ours.
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def explain_write_errors(what: str, run_dir: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into one that says what failed, what is left and how to go on.

    Args:
        what: was being done.
        run_dir: the run's directory.

    Raises:
        OSError: with the number of the first one.
    """
    try:
        yield
    except OSError as error:
        left = _what_is_left(run_dir / FOLDER)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space" if full else "put that right"
        resume = f"go on with: momatch train --resume --run-dir {shlex.quote(str(run_dir))}"
        explained = OSError(
            f"{run_dir}: {what} failed: {error.strerror or error}; {left}; "
            f"{remedy}, then {resume if (run_dir / CONFIG).exists() else 'start again'}"
        )
        explained.errno = error.errno
        raise explained from error


def _what_is_left(folder: Path) -> str:
    try:
        good = last_good(folder)
    except OSError as error:
        return f"the checkpoints cannot be listed either ({error})"
    return "there is no checkpoint yet" if good is None else f"the last good checkpoint is {good.name}"


def _entries(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Folders whose names fit; the user's own things have other names, and links are not followed."""
    try:
        found = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def _newest_first(folder: Path) -> list[Path]:
    return sorted(_entries(folder, _NAME), key=_age, reverse=True)


def _age(path: Path) -> tuple[int, bool]:
    match = _NAME.fullmatch(path.name)
    assert match is not None, "_entries chose it by this pattern"
    return int(match[1]), match[2] is None


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    content, data = read_verified(_KIND, path / "state.json", path / "state.safetensors")
    if content["step"] != _age(path)[0]:
        raise ValueError(f"{path}: got the state of step {content['step']}; the folder was renamed")
    return content, data


def _is_good(path: Path) -> bool:
    try:
        _read(path)
    except (ValueError, OSError):
        return False
    return True


def _make_room(target: Path) -> None:
    """Move the checkpoint of the same step out of the way: a good one stays readable, a damaged one goes."""
    if not target.exists():
        return
    if _is_good(target):
        old = target.with_name(target.name + _OLD)
        _delete(old)
        os.rename(target, old)
    else:
        _delete(target)


def _delete(path: Path) -> None:
    """Delete a folder. It gets the name of a leftover first: half a checkpoint must not look like one."""
    if not path.exists():
        return
    gone = path.with_name(path.name + ".deleted" + PART)
    if gone.exists():
        shutil.rmtree(gone)
    os.rename(path, gone)
    shutil.rmtree(gone)
