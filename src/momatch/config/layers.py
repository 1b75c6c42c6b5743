"""Settings from several places made one config: defaults < preset < file < flags; a resumed run keeps its stored settings.

Plain Python, as `momatch.config`. A layer holds only what was given, so a flag that equals its default still beats a file.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.config.presets import preset_settings


class FlagError(ValueError):
    """A flag with a value that cannot be used: the fault of the command line, and the exit code of wrong arguments."""

    exit_code = 2


@dataclass(frozen=True)
class Layer:
    """Settings from one place.

    Attributes:
        values: what was given there, by config key.
        source: how messages name the place; None for flags.
    """

    values: Mapping[str, Any]
    source: str | None = None


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings in a .toml or .json file. A run's config.json gives the run's settings, but not its place.

    Raises:
        ValueError: if there is no such file, it is of another kind, or cannot be read as what its name says.
    """
    if path.suffix.lower() not in (".toml", ".json"):
        raise ValueError(f"{path}: got a config file of this name, expected one that ends in .toml or .json")
    if not path.is_file():
        raise ValueError(f"{path}: got no such file, expected a .toml or .json file of settings")
    try:
        # -sig: editors of some systems put a byte order mark in front.
        text = path.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(
            f'{path}: got a {type(values).__name__}, expected an object of settings: {{"steps": 600, ...}}'
        )
    if values.get("format") == "momatch run" and isinstance(values.get("config"), dict):
        return {key: value for key, value in values["config"].items() if key not in ("run_dir", "resume", "overwrite")}
    return values


def combine(layers: Sequence[Layer], fixed: Layer | None = None) -> TrainConfig:
    """The defaults with each layer in place of what came before it, resolved.

    Args:
        layers: from the weakest to the strongest.
        fixed: what the data have decided already, and a layer can only repeat; None where they have not.

    Raises:
        ValueError: naming key and place, if a key is unknown (with a suggestion), or a value has the wrong type, is out of
            range or not what is fixed; `FlagError` where a flag is at fault.
    """
    if fixed is not None:
        _refuse_others(layers, fixed)
        layers = [*layers, fixed]
    known = {field.name for field in fields(TrainConfig)}
    for layer in layers:
        unknown = {key: value for key, value in layer.values.items() if key not in known}
        if unknown:
            TrainConfig.from_dict(unknown, source=layer.source or "flags")
    try:
        return TrainConfig.from_dict(merged(layers)).resolved()
    except ValueError as error:
        raise error_at(layers, str(error)) from None


def combine_resumed(layers: Sequence[Layer], wanted: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """The config of a stored run, with the layers' settings of where and how it is carried out.

    Args:
        layers: as for `combine`.
        wanted: the resolved config that they give.
        stored: the config that the run was started with.

    Raises:
        ValueError: if a layer has a setting that would change the run's result, naming key, stored and given value.
    """
    stored = stored.resolved()
    given = merged(layers)
    for key in sorted(given.keys() - RUNTIME_KEYS):
        # As resolved: None may be given where the stored config has the number that it stood for.
        then, now = getattr(stored, key), getattr(wanted, key)
        if then != now:
            raise error_at(
                layers,
                f"{key}: got {now!r}, expected {then!r}, with which the run in {wanted.run_dir} was started; "
                "leave it out to go on with that run, or give another run_dir to start a new one",
            )
    runtime = {key: given[key] for key in given.keys() & RUNTIME_KEYS}
    # A run that was started with --overwrite is not to be deleted when it goes on.
    return replace(stored, **{"overwrite": False, **runtime, "resume": True, "run_dir": wanted.run_dir})


def _refuse_others(layers: Sequence[Layer], fixed: Layer) -> None:
    given = merged(layers)
    for key, value in fixed.values.items():
        if given.get(key, value) != value:
            raise error_at(
                layers,
                f"{key}: got {given[key]!r}, expected {value!r}, with which {fixed.source} was made; leave it out, or make "
                "the file again with momatch embed",
            )


def preset_layer(name: str) -> Layer:
    """The settings of a preset.

    Raises:
        FlagError: if there is no preset of that name, with a suggestion.
    """
    try:
        return Layer(preset_settings(name), f"preset {name!r}")
    except ValueError as error:
        raise FlagError(f"--{error}") from None


def merged(layers: Sequence[Layer]) -> dict[str, Any]:
    """What was given anywhere, by config key."""
    return {key: value for layer in layers for key, value in layer.values.items()}


def error_at(layers: Sequence[Layer], message: str) -> ValueError:
    """The error with the name of the layer that gave the setting. The message opens with "key:" or "key and key:"."""
    subject, _, complaint = message.partition(":")
    keys = subject.split(" and ")
    giver = next((layer for layer in reversed(layers) if keys[0] in layer.values), None)
    if giver is None:
        return ValueError(message)
    if giver.source is None:
        return FlagError(" and ".join(f"--{key.replace('_', '-')}" for key in keys) + f":{complaint}")
    return ValueError(f"{giver.source}: {message}")
