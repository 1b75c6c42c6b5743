"""How a result was produced: versions, processor, commit, command; without host names or local paths."""

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

from momatch._version import __version__


def versions() -> dict[str, str | None]:
    """The versions of the packages that affect numerical results."""
    return {
        "momatch": __version__,
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "python": platform.python_version(),
    }


def machine_facts(arguments: Sequence[str], *, packages: Sequence[str] = (), **further: Any) -> dict[str, Any]:
    """How and where results were produced.

    Args:
        arguments: the command line, including the command; absolute paths are cut to their last part.
        packages: report the versions of these packages too.
        further: entries to add.

    Returns:
        command, date (UTC), commit (None if momatch does not run from its repository), cpu, cores, system, versions (None if
        not installed), and `further`.
    """
    return {
        "command": shlex.join(_without_place(argument) for argument in arguments),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(Path(__file__).parents[1]),
        "cpu": _cpu(),
        "cores": _cores(),
        "system": f"{platform.system()} {platform.machine()}".strip(),
        **versions(),
        **{name: _version(name) for name in packages},
        **further,
    }


def commit(folder: Path) -> str | None:
    """The commit of the repository that contains `folder`, with "(modified)" if the folder has changed since.

    None without git, or if the folder is not tracked: an installed package may be inside an unrelated repository.
    """
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    name = _git(folder, "rev-parse", "--short", "HEAD")
    if not name:
        return None
    return name + (" (modified)" if _git(folder, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of git; None if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, errors="replace", check=False, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _without_place(argument: str) -> str:
    """`--backbone=onnx:/home/me/net.onnx` as `--backbone=onnx:.../net.onnx`, to keep local paths out of records."""
    # A colon before a path, but not that of an address with its two slashes.
    pieces = re.split(r"([=,]|:(?=~|/(?!/)))", argument)
    paths = [PurePath(os.path.expanduser(piece)) for piece in pieces]
    return "".join(
        f".../{path.name}" if path.is_absolute() else piece for path, piece in zip(paths, pieces, strict=True)
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
