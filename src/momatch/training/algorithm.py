"""From the settings to an algorithm: one of ours by name, or the user's own from package.module:Name."""

import inspect
from dataclasses import fields
from typing import get_args, get_type_hints

from momatch.algorithms import ALGORITHMS, Algorithm, Sizes, Wants
from momatch.config import LossSettings
from momatch.config.algorithms import OWN_SETTINGS, is_custom
from momatch.models.backbones.custom import check_trusted, import_factory


def build_algorithm(settings: LossSettings, sizes: Sizes, *, trust_code: bool | str = False) -> Algorithm:
    """Build the algorithm with the settings that its constructor names and that are not None.

    Args:
        settings: resolved by `LossSettings.for_head`.
        sizes: of the data.
        trust_code: allow importing an algorithm of the user's own.

    Raises:
        UntrustedCodeError: if it must be imported and `trust_code` is not set.
        ValueError: if it cannot be imported, is not an algorithm, or does not have a setting that is set.
    """
    kind = _class_of(settings.algorithm, trust_code=trust_code)
    signature = inspect.signature(kind)
    _check_signature(settings, signature)
    known = [field.name for field in fields(LossSettings)]
    given = {name: getattr(settings, name) for name in known if name in signature.parameters}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        signature.bind(sizes, **given)
    except TypeError as error:
        raise ValueError(
            f"algorithm {settings.algorithm!r}: its constructor {signature} cannot be called: {error}; expected sizes first, "
            "then settings of TrainConfig by keyword, each with a default unless it is always set"
        ) from error
    algorithm = kind(sizes, **given)
    _check_wants(settings.algorithm, algorithm.wants)
    if settings.moment_assignment == "prediction" and not algorithm.wants.labeled:
        raise ValueError(
            f"moment_assignment: got 'prediction' with algorithm {settings.algorithm!r}, expected 'label': its labelled images "
            "pass mixed with others only, and count in the constraint by their mixed labels"
        )
    return algorithm


def _class_of(name: str, *, trust_code: bool | str) -> type[Algorithm]:
    if not is_custom(name):
        return ALGORITHMS[name]
    check_trusted(name, "the config", trust_code=trust_code, kind="algorithm")
    kind = import_factory(name, kind="algorithm")
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ValueError(f"algorithm: got {name!r}, which is {kind!r}, expected a subclass of momatch.Algorithm")
    return kind


def _check_signature(settings: LossSettings, signature: inspect.Signature) -> None:
    """Reject a constructor that does not say what it takes, and settings that it does not take."""
    name = settings.algorithm
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        raise ValueError(
            f"algorithm {name!r}: its constructor {signature} takes any setting, expected the settings that it has by name: "
            "it is given those"
        )
    if not is_custom(name):
        return  # What the known algorithms have is checked with the other settings.
    for key in sorted(OWN_SETTINGS - {*signature.parameters}):
        if (value := getattr(settings, key)) not in (None, "none"):
            raise ValueError(f"{key}: got {value!r}, which the constructor of {name!r} does not take: {signature}")


def _check_wants(name: str, wants: Wants) -> None:
    """Reject wishes that contradict each other, in terms of the class that has them."""
    known = get_args(get_type_hints(Wants)["guess"])
    if wants.guess not in known:
        raise ValueError(f"algorithm {name!r}: wants guess {wants.guess!r}, expected one of {', '.join(known)}")
    if wants.guess == "trained" and not set(wants.guessed) <= set(wants.trained):
        raise ValueError(
            f"algorithm {name!r}: wants pseudo-labels of the views {', '.join(wants.guessed)} from the pass with gradient, "
            f"which has {', '.join(wants.trained) or 'none'}; add them to `trained`, or set guess to 'first' or 'teacher'"
        )
    if wants.mixed and wants.guess == "trained":
        raise ValueError(
            f"algorithm {name!r}: wants mixed views with guess 'trained', but their targets are needed before they are mixed; "
            "set guess to 'first' or 'teacher'"
        )
    if wants.mixed and not wants.guessed:
        raise ValueError(
            f"algorithm {name!r}: wants mixed views without pseudo-labels, which are their targets; name the views that these "
            "come from in `guessed`"
        )
    for view in (*wants.trained, *wants.guessed, *wants.mixed, *([wants.rotated] if wants.rotated else [])):
        kind, _, number = view.partition("_")
        is_number = number.isascii() and number.isdecimal() and not number.startswith("0")
        if kind not in ("weak", "strong") or not (is_number or view == kind):
            raise ValueError(
                f"algorithm {name!r}: wants the view {view!r}, expected weak, weak_1, ..., strong, strong_1, ..."
            )
