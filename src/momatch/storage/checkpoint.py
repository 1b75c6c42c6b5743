"""Checkpoints: the complete state of a run at a step. Neither a kill nor a full disk loses the last good one.

    checkpoints/step-00001234/state.safetensors, state.json

A checkpoint is written as ``step-00001234.part``, synced and renamed. Reading verifies checksums and falls back to the previous
checkpoint. If a step is saved again, the existing good checkpoint is kept as ``step-00001234.old`` until the new one is
complete.
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

#: The checkpoint folder in a run directory.
FOLDER = "checkpoints"
_KIND = "momatch checkpoint"
_OLD = ".old"
_NAME = re.compile(r"step-(\d{8,})(\.old)?")
_LEFTOVER = re.compile(r"step-\d{8,}(\.old)?(\.deleted)?\.part")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        step: number of steps done.
        tensors: by name, on the CPU, contiguous.
        facts: other saved values.
        path: its folder.
        rejected: newer checkpoints that could not be used, with the reason, one line each.
    """

    step: int
    tensors: "dict[str, Tensor]"
    facts: dict[str, Any]
    path: Path
    rejected: tuple[str, ...]


def save_checkpoint(folder: Path, step: int, tensors: "Mapping[str, Tensor]", facts: Mapping[str, Any]) -> Path:
    """Save the state of a run.

    Args:
        folder: ``checkpoints`` in the run directory; created if missing.
        step: number of steps done.
        tensors: on any device, of any dtype that safetensors supports; they may share memory.
        facts: other values to save; strict JSON: numbers must be finite, tuples come back as lists and keys as strings.

    Returns:
        The folder of the checkpoint.

    Raises:
        ValueError: if `step` is negative, or a value cannot be saved.
        OSError: if writing fails; the message says how to resume, and all other checkpoints are intact.
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
    """Load the newest intact checkpoint. Nothing on disk is changed.

    Returns:
        None if there are no checkpoints.

    Raises:
        ValueError: if there are checkpoints but none is usable.
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
            f"{folder}: got {len(rejected)} checkpoints, expected an intact one: {'; '.join(rejected)}. "
            "The run cannot be resumed; start it again in another run_dir, or in this one with overwrite"
        )
    return None


def last_good(folder: Path) -> Path | None:
    """The path of the newest intact checkpoint; None if there is none."""
    for path in _newest_first(folder):
        if _is_good(path):
            return path
    return None


def prune(folder: Path, keep: int, *, saved: Path | None = None) -> None:
    """Delete all but the newest `keep` checkpoints, and leftovers of interrupted saves.

    Counting starts at the newest intact checkpoint; newer ones are kept, and all of them if none is intact.

    Args:
        folder: the checkpoint folder.
        keep: how many to keep.
        saved: the checkpoint that was just saved and so is known to be intact: counting starts there, and none is read.

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
    """Delete all checkpoints, and the folder if it is then empty.

    Raises:
        OSError: if one cannot be deleted.
    """
    for path in _newest_first(folder):
        _delete(path)
    for path in _entries(folder, _LEFTOVER):
        shutil.rmtree(path)
    # If it is not empty, the rest is the user's.
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def explain_write_errors(what: str, run_dir: Path) -> Iterator[None]:
    """Turn an `OSError` into one that says what failed, which checkpoint is left and how to resume.

    Args:
        what: the operation, e.g. "saving the model".
        run_dir: the run directory.

    Raises:
        OSError: with the errno of the original.
    """
    try:
        yield
    except OSError as error:
        left = _what_is_left(run_dir / FOLDER)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space" if full else "fix that"
        resume = f"resume with: momatch train --resume --run-dir {shlex.quote(str(run_dir))}"
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
    """Subfolders whose names match, without symbolic links."""
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
    """Move an existing checkpoint of the same step away: an intact one is renamed, a damaged one deleted."""
    if not target.exists():
        return
    if _is_good(target):
        old = target.with_name(target.name + _OLD)
        _delete(old)
        os.rename(target, old)
    else:
        _delete(target)


def _delete(path: Path) -> None:
    """Rename a folder to a leftover, then delete it, so that a half-deleted checkpoint never looks complete."""
    if not path.exists():
        return
    gone = path.with_name(path.name + ".deleted" + PART)
    if gone.exists():
        shutil.rmtree(gone)
    os.rename(path, gone)
    shutil.rmtree(gone)
