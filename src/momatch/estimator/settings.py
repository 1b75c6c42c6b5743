"""From the estimator's parameters to the settings of a training; checked at fit, as scikit-learn wants it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from momatch.config import TrainConfig
from momatch.estimator.encoder import ENCODERS, Encoder
from momatch.estimator.scaling import SCALES, Scale
from momatch.estimator.views import View
from momatch.numerics.checks import check_positive_int

#: Of all that `momatch.OutlierDetector` can rank, what the estimator offers.
_OUTLIER_SCORES = ("auto", "nearest", "density")


@dataclass(frozen=True)
class Settings:
    """What a fit needs to know beside the data.

    Attributes:
        config: losses, batches, optimiser and schedule, resolved.
        encoder: "mlp" or "none".
        hidden_sizes: of the perceptron.
        scale: of the features.
        weak: how far a weak view goes.
        strong: how far a strong view goes.
        neighbors: how many neighbours a view chooses from.
        graph_neighbors: of the graph over which labels spread; 0 for no graph.
        calibration_fraction: share of samples kept out for p-values.
        outlier_score: what p-values rank.
        verbose: show progress.
    """

    config: TrainConfig
    encoder: Encoder
    hidden_sizes: tuple[int, ...]
    scale: Scale
    weak: View
    strong: View
    neighbors: int
    graph_neighbors: int
    calibration_fraction: float
    outlier_score: Literal["nearest", "density"]
    verbose: bool


def read_settings(parameters: Mapping[str, Any]) -> Settings:
    """Check all parameters of the estimator.

    Raises:
        ValueError: naming the first one that cannot be used.
    """
    # Grids of parameters are often numpy arrays; their elements are not Python's numbers.
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}
    for name, choices in {"encoder": ENCODERS, "scale": SCALES, "outlier_score": _OUTLIER_SCORES}.items():
        if given[name] not in choices:
            raise ValueError(f"{name}: got {given[name]!r}, expected one of {', '.join(map(repr, choices))}")
    known = {field.name for field in fields(TrainConfig)}
    chosen = {name: value for name, value in given.items() if name in known}
    config = TrainConfig(optimizer="adamw", refit=True).updated(chosen).resolved()
    if config.outlier_score not in ("nearest", "density") or (config.head, config.outlier_score) == (
        "linear",
        "nearest",
    ):
        raise ValueError(
            f"outlier_score: got {given['outlier_score']!r} with head {config.head!r}, expected 'auto', 'density' or, "
            "for a head with centers, 'nearest'"
        )
    if config.calibration_fraction is None:
        raise ValueError(
            "calibration_fraction: got None, expected a number from 0 to 0.9; 0 keeps no sample out of training"
        )
    check_positive_int("embedding_dim", config.embedding_dim)
    return Settings(
        config=config,
        encoder=given["encoder"],
        hidden_sizes=_sizes(given["hidden_sizes"]),
        scale=given["scale"],
        weak=View(move=_amount("weak_move", given, largest=1.0), noise=_amount("weak_noise", given)),
        strong=View(
            move=_amount("strong_move", given, largest=1.0),
            noise=_amount("strong_noise", given),
            mask=_amount("mask", given, largest=1.0),
        ),
        neighbors=_count("neighbors", given),
        graph_neighbors=_count("graph_neighbors", given),
        calibration_fraction=float(config.calibration_fraction),
        outlier_score=config.outlier_score,
        verbose=bool(given["verbose"]),
    )


def _sizes(given: Any) -> tuple[int, ...]:
    sizes = tuple(given) if isinstance(given, tuple | list | np.ndarray) else (given,)
    return tuple(check_positive_int("hidden_sizes", size) for size in sizes)


def _count(name: str, given: Mapping[str, Any]) -> int:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: got {value!r}, expected an integer of at least 0; 0 for none")
    return value


def _amount(name: str, given: Mapping[str, Any], largest: float = 1e6) -> float:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= largest:
        raise ValueError(f"{name}: got {value!r}, expected a number from 0 to {largest:g}")
    return float(value)
