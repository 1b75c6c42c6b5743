"""The algorithms by name, with their published values (docs/algorithms.md names the sources). Does not import torch."""

import difflib
from collections.abc import Mapping
from typing import Any

#: Values of CoMatch and SimMatch that are the same.
_CONTRAST: dict[str, Any] = {"unlabeled_weight": 1.0, "smoothing": 0.9, "alignment_steps": 32, "contrast_weight": 1.0}

#: Name -> the settings it has besides `cutoff` and `fairness_weight`, with their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "pseudolabel": {"unlabeled_weight": 1.0, "ramp_up": 0.4},
    "meanteacher": {"unlabeled_weight": 50.0, "ramp_up": 0.4},
    "uda": {"unlabeled_weight": 1.0, "temperature": 0.4, "signal_annealing": "none"},
    "mixmatch": {"unlabeled_weight": 75.0, "ramp_up": 0.4, "temperature": 0.5, "mix_alpha": 0.75},
    "remixmatch": {
        "unlabeled_weight": 1.5,
        "ramp_up": 1 / 64,
        "temperature": 0.5,
        "mix_alpha": 0.75,
        "anchor_weight": 0.5,
        "rotation_weight": 0.5,
    },
    "fixmatch": {"unlabeled_weight": 1.0},
    "flexmatch": {"unlabeled_weight": 1.0},
    "freematch": {"unlabeled_weight": 1.0},
    "softmatch": {"unlabeled_weight": 1.0},
    "comatch": _CONTRAST
    | {"memory_size": 2560, "contrast_dim": 64, "contrast_temperature": 0.2, "contrast_cutoff": 0.8},
    "simmatch": _CONTRAST | {"contrast_dim": 128, "contrast_temperature": 0.1},
    "simmatchv2": {
        "unlabeled_weight": 1.0,
        "smoothing": 0.9,
        "memory_size": 2560,
        "contrast_dim": 128,
        "contrast_temperature": 0.1,
        "contrast_weight": 1.0,
    },
}

#: Every setting that only some algorithms have.
OWN_SETTINGS = frozenset(key for options in OPTIONS.values() for key in options) - {"unlabeled_weight"}

#: Preset -> algorithm -> what its published protocol has otherwise.
_EQUAL_BATCHES: dict[str, Any] = {"unlabeled_batch_size": 64}
PROTOCOLS: dict[str, dict[str, dict[str, Any]]] = {
    "paper-cifar10": {
        "pseudolabel": _EQUAL_BATCHES,
        "meanteacher": _EQUAL_BATCHES,
        "uda": {"cutoff": 0.8},
        "mixmatch": _EQUAL_BATCHES | {"ramp_up": 1 / 64},
        "remixmatch": _EQUAL_BATCHES | {"rotation_weight": 2.0, "ramp_up": 1 / 8},
    },
    "paper-stl10": {
        "pseudolabel": _EQUAL_BATCHES,
        "meanteacher": _EQUAL_BATCHES,
        "uda": {"cutoff": 0.8},
        "mixmatch": _EQUAL_BATCHES | {"unlabeled_weight": 50.0, "ramp_up": 1 / 64},
        "remixmatch": _EQUAL_BATCHES,
        "comatch": {"contrast_weight": 5.0},
    },
}

#: The former name of the setting `algorithm`.
FORMER_NAME = "policy"


def protocol_settings(preset: object, algorithm: object) -> dict[str, Any]:
    """What the published protocol of an algorithm changes in a preset; nothing for most."""
    return PROTOCOLS.get(str(preset), {}).get(str(algorithm), {})


def is_custom(algorithm: str) -> bool:
    """Whether it is an algorithm of the user's own, package.module:Name."""
    return ":" in algorithm


def check_algorithm(algorithm: str) -> None:
    """Reject a name that is not known.

    Raises:
        ValueError: with a suggestion.
    """
    if algorithm in OPTIONS or is_custom(algorithm):
        return
    close = difflib.get_close_matches(algorithm, OPTIONS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"algorithm: got {algorithm!r}, expected one of {', '.join(map(repr, OPTIONS))}, or package.module:Name{hint}"
    )


def check_options(algorithm: str, given: Mapping[str, Any]) -> None:
    """Reject settings that the algorithm does not have.

    Args:
        algorithm: its name.
        given: setting -> value; None or "none" if not set.

    Raises:
        ValueError: naming the setting.
    """
    if is_custom(algorithm):
        return
    for key, value in given.items():
        if value not in (None, "none") and key not in OPTIONS[algorithm]:
            others = [name for name, options in OPTIONS.items() if key in options]
            raise ValueError(
                f"{key}: got {value!r} with algorithm {algorithm!r}, expected it not to be set: it is a setting of "
                f"{', '.join(others)}"
            )


def renamed(values: Mapping[str, Any], source: str = "config") -> dict[str, Any]:
    """Settings with `policy`, as it was called before, as `algorithm`.

    Raises:
        ValueError: if both are given and differ.
    """
    settings = dict(values)
    if FORMER_NAME in settings:
        algorithm = settings.pop(FORMER_NAME)
        if settings.setdefault("algorithm", algorithm) != algorithm:
            raise ValueError(
                f"{source}: got algorithm {settings['algorithm']!r} and policy {algorithm!r}, which is its former name; "
                "expected algorithm alone"
            )
    return settings
