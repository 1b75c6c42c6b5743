"""The flags of ``momatch train``, made from `TrainConfig`: names, types, defaults and help stand there alone.

tyro parses them (docs/decisions/0003-command-line.md). It is shown typed dicts, of which it fills in only what was given,
rather than `TrainConfig` itself, which would come back with defaults that look as if they had been given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields, make_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypedDict, cast, get_args

import tyro
from docstring_parser import parse

from momatch.config import TrainConfig
from momatch.config.presets import DESCRIPTIONS

#: Section of the help -> the field it begins with; it holds the fields down to the next section's.
SECTIONS = {
    "data": "dataset",
    "network": "backbone",
    "constraint": "constraint",
    "pseudo_label": "policy",
    "outlier": "outliers",
    "batch": "steps",
    "optimiser": "optimizer",
    "computation": "seed",
    "record": "eval_interval",
    "run": "run_dir",
}

_DESCRIPTION = """\
Train a classifier with few labels and many unlabelled images.

Without flags: digits with 4 labels a class, in well under a minute.

Flags beat the config file, the file beats the preset.
"""

#: How the help names a type.
_METAVARS: dict[type, str] = {str: "TEXT", int: "INT", float: "NUMBER"}


@dataclass(frozen=True)
class Flags:
    """What the command line said.

    Attributes:
        settings: config key -> value, of what was given alone.
        preset: name of the preset.
        config: file of settings.
        print_config: print the settings instead of training.
    """

    settings: dict[str, Any]
    preset: str | None = None
    config: Path | None = None
    print_config: bool = False


def parse_flags(argv: Sequence[str]) -> Flags:
    """Read the arguments of ``momatch train``.

    Raises:
        SystemExit: 0 after ``--help``; 2 if an argument is unknown (with suggestions) or not of its type.
    """
    given = tyro.cli(
        _everything(),
        prog="momatch train",
        description=_DESCRIPTION,
        args=list(argv),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    settings = {key: value for section in SECTIONS for key, value in getattr(given, section).items()}
    return Flags(settings, given.preset, given.config, given.print_config)


def _everything() -> Any:
    presets = "\n".join(f"{name}: {text}" for name, text in DESCRIPTIONS.items())
    own = [
        ("preset", _flag(str | None, f"start from these settings.\n{presets}", metavar="NAME"), None),
        (
            "config",
            _flag(Path | None, "a .toml or .json file of settings: keys as the flags, _ for -.", metavar="FILE"),
            None,
        ),
        ("print_config", _flag(tyro.conf.FlagCreatePairsOff[bool], "print all settings as JSON and exit."), False),
    ]
    texts = {entry.arg_name: entry.description or "" for entry in parse(TrainConfig.__doc__ or "").params}
    sections = [(title, _flag(_section(title, texts), "")) for title in SECTIONS]
    return make_dataclass("Train", [*own, *sections], kw_only=True)


def _section(title: str, texts: Mapping[str, str]) -> Any:
    """The fields of one section as a typed dict."""
    settings = fields(TrainConfig)
    names = [field.name for field in settings]
    starts = [*(names.index(first) for first in SECTIONS.values()), len(names)]
    here = list(SECTIONS).index(title)
    flags = {
        field.name: _setting(field, texts[field.name])
        for field in settings[starts[here] : starts[here + 1]]
        if field.name != "preset_name"  # that flag is --preset
    }
    # Type checkers know typed dicts whose keys are written down; these are read from TrainConfig.
    return cast(Any, TypedDict)(title, flags, total=False)


def _setting(field: Field[Any], text: str) -> Any:
    default = {True: "on", False: "off"}[field.default] if isinstance(field.default, bool) else field.default
    hint = "" if default is None else f"(default: {default})"
    flag = _flag(field.type, " ".join(text.split()), hint)
    kinds = get_args(field.type) or (field.type,)
    kind = next((kind for kind in _METAVARS if kind in kinds), None)
    return flag if kind is None else Annotated[flag, _reader(kind, NoneType in kinds)]


def _reader(kind: type, optional: bool) -> Any:
    """How a number or text is read; tyro's own way shows {None}|INT in the help and Python's message for a wrong number."""

    def read(words: list[str]) -> Any:
        if optional and words[0] == "None":
            return None
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"got {words[0]!r}, expected {'an integer' if kind is int else 'a number'}") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=_METAVARS[kind],
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )


def _flag(kind: Any, text: str, hint: str = "", metavar: str | None = None) -> Any:
    return Annotated[kind, tyro.conf.arg(help=text, help_behavior_hint=hint, metavar=metavar)]
