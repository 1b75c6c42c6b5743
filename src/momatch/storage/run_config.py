"""config.json: the resolved settings of a run. Its format marker is what makes a directory a run. No torch."""

from pathlib import Path
from typing import Any

from momatch._version import __version__
from momatch.config import TrainConfig
from momatch.storage.durable import json_bytes, read_object

CONFIG = "config.json"
_KIND = "momatch run"
_VERSION = 1


def encode_config(config: TrainConfig) -> bytes:
    """The bytes of config.json."""
    return json_bytes({"format": _KIND, "version": _VERSION, "momatch": __version__, "config": config.to_dict()})


def is_run(directory: Path) -> bool:
    """Whether `directory` holds a run, of this or another release.

    Raises:
        ValueError: if its config.json is damaged or of another kind.
        OSError: if it cannot be read.
    """
    return _read_marked(directory) is not None


def holds_run(directory: Path) -> bool:
    """Like `is_run`, but False if config.json is of another kind: other libraries write files of that name.

    Raises:
        OSError: if it cannot be read.
    """
    try:
        return is_run(directory)
    except ValueError:
        return False


def read_config(directory: Path) -> TrainConfig:
    """The settings of the run in `directory`.

    Raises:
        ValueError: if there is no run, or config.json is damaged or of another kind or version.
        OSError: if it cannot be read.
    """
    content = _read_marked(directory)
    if content is None:
        raise ValueError(f"{directory}: no {CONFIG}, expected a run directory")
    path = directory / CONFIG
    if content.get("version") != _VERSION:
        raise ValueError(
            f"{path}: got format version {content.get('version')!r}, expected {_VERSION}; "
            f"it was written by momatch {content.get('momatch')}: use that release"
        )
    settings = content.get("config")
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: got no settings under 'config'; the file is damaged")
    return TrainConfig.from_dict(settings, source=str(path))


def _read_marked(directory: Path) -> dict[str, Any] | None:
    content = read_object(directory / CONFIG)
    if content is not None and content.get("format") != _KIND:
        raise ValueError(f"{directory / CONFIG}: got a file of another kind, expected the config of a momatch run")
    return content
