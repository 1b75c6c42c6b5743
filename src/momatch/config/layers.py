"""Combine settings from several sources into one config: defaults < preset < config file < flags.

A layer holds only the settings that were given, so a flag set to its default value still overrides the config file. Does not
import torch.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.config.algorithms import FORMER_NAME, OPTIONS, protocol_settings, renamed
from momatch.config.presets import preset_settings


class FlagError(ValueError):
    """A flag has an invalid value; the command exits with the code for wrong arguments."""

    exit_code = 2


@dataclass(frozen=True)
class Layer:
    """Settings from one source.

    Attributes:
        values: config key -> value, only those that were given; one that was renamed has its present name.
        source: name of the source in messages; None for flags.
        note: for the user, if a name was not the present one; None if there is nothing to say.
    """

    values: Mapping[str, Any]
    source: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if FORMER_NAME in self.values:
            where = self.source or "flags"
            object.__setattr__(self, "values", renamed(self.values, where))
            object.__setattr__(self, "note", f"note: {where}: policy is now called algorithm; the old name still works")


def read_config_file(path: Path) -> dict[str, Any]:
    """Read settings from a .toml or .json file; from a run's config.json, without run_dir, resume and overwrite.

    Raises:
        ValueError: if the file does not exist, has another suffix or is not valid.
    """
    if path.suffix.lower() not in (".toml", ".json"):
        raise ValueError(f"{path}: got suffix {path.suffix!r}, expected a config file that ends in .toml or .json")
    if not path.is_file():
        raise ValueError(f"{path}: file not found, expected a .toml or .json config file")
    try:
        # -sig: some editors write a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(
            f'{path}: got a {type(values).__name__}, expected an object of settings: {{"steps": 600, ...}}'
        )
    if values.get("format") == "momatch run" and isinstance(values.get("config"), dict):
        return {key: value for key, value in values["config"].items() if key not in ("run_dir", "resume", "overwrite")}
    return values


def combine(layers: Sequence[Layer], fixed: Layer | None = None) -> TrainConfig:
    """Resolve the defaults overridden by each layer in turn.

    Args:
        layers: in order of increasing precedence.
        fixed: settings determined by the data, which no layer may change; None if there are none.

    Raises:
        ValueError: naming key and source, if a key is unknown, or a value has the wrong type, is out of range or contradicts
            `fixed`; a `FlagError` if it came from a flag.
    """
    if fixed is not None:
        _check_fixed(layers, fixed)
        layers = [*layers, fixed]
    layers = _with_protocol(_without_former_defaults(layers))
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
    """The config for resuming a run: its stored settings, with the layers' runtime settings (`RUNTIME_KEYS`).

    Args:
        layers: as for `combine`.
        wanted: the config that `combine` made of them.
        stored: the config the run was started with.

    Raises:
        ValueError: if a layer sets anything that would change the run's result.
    """
    stored = stored.resolved()
    given = merged(layers)
    for key in sorted(given.keys() - RUNTIME_KEYS):
        # Compare resolved values: the stored config has numbers where None was given.
        then, now = getattr(stored, key), getattr(wanted, key)
        if then != now:
            raise error_at(
                layers,
                f"{key}: got {now!r}, expected {then!r}, as when the run in {wanted.run_dir} was started; "
                "omit it to resume that run, or set another run_dir to start a new one",
            )
    runtime = {key: given[key] for key in given.keys() & RUNTIME_KEYS}
    # Resuming a run that was started with --overwrite must not delete it.
    return replace(stored, **{"overwrite": False, **runtime, "resume": True, "run_dir": wanted.run_dir})


def _without_former_defaults(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, without the defaults of an algorithm that a later layer replaces: a printed config has them as values."""
    algorithm = merged(layers).get("algorithm")
    found = []
    for layer in layers:
        former = layer.values.get("algorithm", algorithm)
        own = {} if former == algorithm else OPTIONS.get(str(former), {})
        kept = {key: value for key, value in layer.values.items() if key not in own or value != own[key]}
        found.append(replace(layer, values=kept))
    return found


def _with_protocol(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, with what the algorithm's published protocol changes in the preset just above it."""
    given = merged(layers)
    preset, algorithm = given.get("preset_name"), given.get("algorithm")
    protocol = Layer(protocol_settings(preset, algorithm), f"preset {preset!r} with algorithm {algorithm!r}")
    # A run's config.json names its preset as well, but has every setting already.
    places = [place for place, layer in enumerate(layers, 1) if protocol.values and layer == preset_layer(str(preset))]
    return [*layers[: places[-1]], protocol, *layers[places[-1] :]] if places else list(layers)


def _check_fixed(layers: Sequence[Layer], fixed: Layer) -> None:
    given = merged(layers)
    for key, value in fixed.values.items():
        if given.get(key, value) != value:
            raise error_at(
                layers,
                f"{key}: got {given[key]!r}, expected {value!r}, as in {fixed.source}; omit it, or recreate the file with "
                "momatch embed",
            )


def preset_layer(name: str) -> Layer:
    """A preset as a layer.

    Raises:
        FlagError: if the preset is unknown; suggests a close match.
    """
    try:
        return Layer(preset_settings(name), f"preset {name!r}")
    except ValueError as error:
        raise FlagError(f"--{error}") from None


def merged(layers: Sequence[Layer]) -> dict[str, Any]:
    """All settings given in any layer, by config key; later layers win."""
    return {key: value for layer in layers for key, value in layer.values.items()}


def error_at(layers: Sequence[Layer], message: str) -> ValueError:
    """Make an error that names the source of the setting. `message` starts with "key:" or "key and key:"."""
    subject, _, complaint = message.partition(":")
    keys = subject.split(" and ")
    origin = next((layer for layer in reversed(layers) if keys[0] in layer.values), None)
    if origin is None:
        return ValueError(message)
    if origin.source is None:
        return FlagError(" and ".join(f"--{key.replace('_', '-')}" for key in keys) + f":{complaint}")
    return ValueError(f"{origin.source}: {message}")


def code_named_in(settings: Mapping[str, Any]) -> str | bool:
    """The backbone and the algorithm of some settings, as `trust_code`: who types a name may import it. False for none."""
    settings = renamed(settings)
    named = [str(settings[key]) for key in ("backbone", "algorithm") if key in settings]
    return ",".join(named) if named else False
