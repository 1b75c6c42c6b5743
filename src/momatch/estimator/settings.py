"""Validates the estimator's parameters; done in `fit`, as scikit-learn requires."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from momatch.config import LossSettings, OptimizerSettings
from momatch.config.checks import check_type
from momatch.config.settings import WITHOUT_CENTERS, Head
from momatch.estimator.encoder import ENCODERS, Encoder
from momatch.estimator.scaling import SCALES, Scale
from momatch.estimator.views import Strength
from momatch.numerics.checks import check_positive_int

#: The scores of `momatch.OutlierDetector` that the estimator offers.
_OUTLIER_SCORES = ("auto", "judge", "nearest", "density")


@dataclass(frozen=True)
class Settings:
    """The settings of a fit.

    Attributes:
        loss: loss settings, resolved for the head.
        optimizer: steps, batches, optimiser and schedule.
        weak: strength of weak augmentation.
        strong: strength of strong augmentation.

    The other attributes are parameters of `MoMatchClassifier`.
    """

    loss: LossSettings
    optimizer: OptimizerSettings
    head: Head
    encoder: Encoder
    hidden_sizes: tuple[int, ...]
    embedding_dim: int
    scale: Scale
    weak: Strength
    strong: Strength
    neighbors: int
    calibration_fraction: float
    outlier_score: Literal["judge", "nearest", "density"]
    verbose: bool


def read_settings(parameters: Mapping[str, Any]) -> Settings:
    """Validate all parameters of the estimator.

    Raises:
        ValueError: naming the first invalid one.
    """
    # Parameter grids are often numpy arrays, whose elements are numpy scalars.
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}
    if given.get("policy") is not None:
        warnings.warn("the parameter policy of NetworkOptions is now called algorithm", FutureWarning, stacklevel=2)
        given["algorithm"] = given["policy"]
    for name, choices in {"encoder": ENCODERS, "scale": SCALES, "outlier_score": _OUTLIER_SCORES}.items():
        if given[name] not in choices:
            raise ValueError(f"{name}: got {given[name]!r}, expected one of {', '.join(map(repr, choices))}")
    check_type("head", given["head"], Head)
    # Rows of a table cannot be turned, so nothing can be learned from it.
    unturned = {"rotation_weight": 0.0} if given["algorithm"] == "remixmatch" else {}
    loss = LossSettings(**_of_group(LossSettings, {**given, "outlier_score": "auto", **unturned})).for_head(
        given["head"]
    )
    optimizer = OptimizerSettings(optimizer="adamw", **_of_group(OptimizerSettings, given)).for_algorithm(
        loss.algorithm
    )
    if given["outlier_score"] == "nearest" and given["head"] in WITHOUT_CENTERS:
        raise ValueError(
            f"outlier_score: got 'nearest' with head {given['head']!r}, expected 'auto', 'judge' or 'density'"
        )
    return Settings(
        loss=loss,
        optimizer=optimizer,
        head=given["head"],
        encoder=given["encoder"],
        hidden_sizes=_sizes(given["hidden_sizes"]),
        embedding_dim=check_positive_int("embedding_dim", given["embedding_dim"]),
        scale=given["scale"],
        weak=Strength(move=_amount("weak_move", given, largest=1.0), noise=_amount("weak_noise", given)),
        strong=Strength(
            move=_amount("strong_move", given, largest=1.0),
            noise=_amount("strong_noise", given),
            mask=_amount("mask", given, largest=1.0),
        ),
        neighbors=_count("neighbors", given),
        calibration_fraction=_amount("calibration_fraction", given, largest=0.9),
        outlier_score="judge" if given["outlier_score"] == "auto" else given["outlier_score"],
        verbose=_is_verbose(given["verbose"]),
    )


def _of_group(group: type[LossSettings] | type[OptimizerSettings], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are also settings of `group`."""
    return {setting.name: given[setting.name] for setting in fields(group) if setting.name in given}


def _sizes(given: Any) -> tuple[int, ...]:
    sizes = tuple(given) if isinstance(given, tuple | list | np.ndarray) else (given,)
    return tuple(check_positive_int("hidden_sizes", size) for size in sizes)


def _is_verbose(given: Any) -> bool:
    if not isinstance(given, int) or given < 0:
        raise ValueError(f"verbose: got {given!r}, expected 0 or 1")
    return given > 0


def _count(name: str, given: Mapping[str, Any]) -> int:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: got {value!r}, expected an integer of at least 0; 0 disables it")
    return value


def _amount(name: str, given: Mapping[str, Any], largest: float = 1e6) -> float:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= largest:
        raise ValueError(f"{name}: got {value!r}, expected a number from 0 to {largest:g}")
    return float(value)
