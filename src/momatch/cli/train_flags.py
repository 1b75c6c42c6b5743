"""The flags of ``momatch train``: names, types, defaults, help and sections come from the groups in `momatch.config.settings`.

tyro parses them (docs/decisions/0003-command-line.md) as typed dicts rather than as `TrainConfig`: a typed dict contains only
the flags that were given, so defaults cannot be mistaken for flags.
"""

import re
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, make_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypedDict, cast, get_args

import tyro
from docstring_parser import parse

from momatch.config.algorithms import FORMER_NAME
from momatch.config.layers import code_named_in
from momatch.config.presets import DESCRIPTIONS
from momatch.config.settings import GROUPS

_DESCRIPTION = """\
Train an image classifier from a few labelled and many unlabelled images.

Without flags: scikit-learn's digits with 4 labels per class, under a minute.

Precedence: flags > --config file > --preset > defaults.
"""

#: Type -> its name in the help.
_METAVARS: dict[type, str] = {str: "TEXT", int: "INT", float: "NUMBER"}


#: --policy, as --algorithm was called before.
_FORMER_FLAG = re.compile(r"^--policy(=.*)?$", re.DOTALL)
_FLAG = re.compile(r"^--algorithm(=.*)?$", re.DOTALL)


@dataclass(frozen=True)
class Flags:
    """The parsed command line.

    Attributes:
        settings: config key -> value, only those that were given, by the name that was given.
        preset: name of the preset.
        config: path of the config file.
        print_config: print the settings instead of training.
        trust_code: allow importing a backbone's or algorithm's module that is named in a file.
    """

    settings: dict[str, Any]
    preset: str | None = None
    config: Path | None = None
    print_config: bool = False
    trust_code: bool = False

    @property
    def trusts(self) -> bool | str:
        """What may be imported: everything, or the backbone and algorithm named on the command line, or nothing."""
        return self.trust_code or code_named_in(self.settings)


def parse_flags(argv: Sequence[str]) -> Flags:
    """Parse the arguments of ``momatch train``.

    Raises:
        SystemExit: 0 after ``--help``; 2 if an argument is unknown or has the wrong type.
        ValueError: if the algorithm is given by both of its names.
    """
    present = [_FORMER_FLAG.sub(r"--algorithm\1", word) for word in argv]
    if present != list(argv) and any(_FLAG.match(word) for word in argv):
        raise ValueError(
            "momatch train: got both --algorithm and --policy, which is its former name; expected --algorithm alone"
        )
    given = tyro.cli(
        _command(),
        prog="momatch train",
        description=_DESCRIPTION,
        args=present,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    settings = {key: value for section in GROUPS for key, value in getattr(given, section).items()}
    if present != list(argv):
        settings[FORMER_NAME] = settings.pop("algorithm")
    return Flags(settings, given.preset, given.config, given.print_config, given.trust_code)


def _command() -> Any:
    presets = "\n".join(f"{name}: {text}" for name, text in DESCRIPTIONS.items())
    own = [
        ("preset", _flag(str | None, f"base settings, one of:\n{presets}", metavar="NAME"), None),
        (
            "config",
            _flag(Path | None, "config file, .toml or .json; keys are the flags with _ for -.", metavar="FILE"),
            None,
        ),
        (
            "print_config",
            _flag(tyro.conf.FlagCreatePairsOff[bool], "print the resolved settings as JSON and exit."),
            False,
        ),
        (
            "trust_code",
            _flag(
                tyro.conf.FlagCreatePairsOff[bool],
                "allow importing a backbone or algorithm of your own (package.module:name) that is named in a features file, "
                "config file or run to resume. Not needed for --backbone and --algorithm.",
            ),
            False,
        ),
    ]
    sections = [(title, _flag(_section(title), "")) for title in GROUPS]
    return make_dataclass("Train", [*own, *sections], kw_only=True)


def _section(title: str) -> Any:
    """One group of settings as a typed dict."""
    group = GROUPS[title]
    texts = {entry.arg_name: entry.description or "" for entry in parse(group.__doc__ or "").params}
    flags = {field.name: _setting(field, texts[field.name]) for field in fields(group)}
    # Type checkers reject a TypedDict with computed keys.
    return cast(Any, TypedDict)(title, flags, total=False)


def _setting(field: Field[Any], text: str) -> Any:
    default = {True: "on", False: "off"}[field.default] if isinstance(field.default, bool) else field.default
    hint = "" if default in (None, "") else f"(default: {default})"
    flag = _flag(field.type, " ".join(text.split()), hint)
    kinds = get_args(field.type) or (field.type,)
    if field.type == bool | Literal["auto"]:
        return Annotated[flag, _SWITCH_OR_AUTO]
    kind = next((kind for kind in _METAVARS if kind in kinds), None)
    return flag if kind is None else Annotated[flag, _reader(kind, NoneType in kinds)]


def _switch_or_auto(words: list[str]) -> bool | str:
    choices: dict[tuple[str, ...], bool | str] = {(): True, ("auto",): "auto", ("no",): False}
    if tuple(words) not in choices:
        raise ValueError(f"got {' '.join(words)!r}, expected nothing, 'auto' or 'no'")
    return choices[tuple(words)]


#: A flag with an optional value: --resume, --resume auto, --resume no.
_SWITCH_OR_AUTO = tyro.constructors.PrimitiveConstructorSpec(
    nargs=(0, 1),
    metavar="[auto|no]",
    instance_from_str=_switch_or_auto,
    is_instance=lambda value: value in (True, False, "auto"),
    str_from_instance=lambda value: ["auto"] if value == "auto" else [] if value else ["no"],
)


def _reader(kind: type, optional: bool) -> Any:
    """Parser for numbers and text: tyro's own shows {None}|INT in the help, and Python's error for a wrong number."""

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
