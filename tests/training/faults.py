"""Disks that fail and processes that die at a chosen moment, for the tests of what a run leaves on disk."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

#: Calls that need space on the disk.
WRITING = ("write", "fsync", "mkdir", "rename", "replace")
#: Calls that change what is on the disk.
CHANGING = (*WRITING, "unlink", "rmdir", "ftruncate")


class Killed(BaseException):
    """Stands for the end of the process: no handler of errors sees it."""


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failing(
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    number: int,
    error: Callable[[], BaseException],
    for_good: bool,
) -> list[str]:
    """Let the `number`-th of the calls `names` of os fail, and all later ones if `for_good`; a write does half of its work.

    Returns:
        What was called and failed; empty as long as nothing has failed.
    """
    calls, failed = [0], []

    def patch(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] < number or (calls[0] > number and not for_good):
                return real(*args, **options)
            if name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            failed.append(name)
            raise error()

        monkeypatch.setattr(os, name, call)

    for name in names:
        patch(name)
    return failed


def every_moment(
    names: tuple[str, ...], error: Callable[[], BaseException], for_good: bool
) -> Iterator[Callable[[Callable[[], object]], BaseException | None]]:
    """One attempt for each call of `names` that an operation makes, until it makes no more.

    Each item runs the operation with that call failing and returns what it raised.
    """
    number, done = 1, False
    while not done:

        def attempt(operation: Callable[[], object], number: int = number) -> BaseException | None:
            nonlocal done
            with pytest.MonkeyPatch.context() as monkeypatch:
                failed = failing(monkeypatch, names, number, error, for_good)
                try:
                    operation()
                except (OSError, Killed) as raised:
                    return raised
                finally:
                    done = not failed
            return None

        yield attempt
        number += 1
        assert number < 200, "the operation never ends"


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of one megabyte, mounted below `place`; the test is skipped where that is not allowed."""
    disk = place / "small-disk"
    disk.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Write to `disk` until nothing more fits.

    Returns:
        The file to delete for space.
    """
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))
    assert shutil.disk_usage(disk).free == 0
    return ballast
