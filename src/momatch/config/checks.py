"""What the settings of a run may be: types, ranges, and which of them contradict each other. Plain Python, as the config."""

import difflib
import math
from collections.abc import Mapping
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, get_args, get_origin


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that are out of range or contradict each other.

    Args:
        settings: every field of `momatch.config.TrainConfig`, each of its type.

    Raises:
        ValueError: naming the setting, what was got and what was expected.
    """
    for name in (
        "steps",
        "labeled_batch_size",
        "accumulate",
        "log_interval",
        "keep_checkpoints",
        "max_skipped_steps",
    ):
        _check_range(name, settings[name], 1)
    for name in (
        *("labels_per_class", "embedding_dim", "graph_neighbors", "outlier_refit_interval", "warmup_steps"),
        *("eval_interval", "checkpoint_interval", "unlabeled_batch_size", "strong_operations"),
        *("moment_weight", "unlabeled_weight", "fairness_weight", "weight_decay", "clip_norm"),
    ):
        _check_range(name, settings[name], 0)
    for name in ("cutoff", "cutout", "outlier_quantile", "ema_decay", "momentum", "test_fraction"):
        _check_range(name, settings[name], 0, 1)
    if settings["moment_order"] is not None:
        _check_range("moment_order", settings["moment_order"], 0, 4)
    _check_range("outlier_percentile", settings["outlier_percentile"], 0, 100)
    _check_range("seed", settings["seed"], 0, 2**63 - 1)
    if settings["calibration_fraction"] is not None:
        _check_range("calibration_fraction", settings["calibration_fraction"], 0, 0.9)
    if settings["image_size"] is not None:
        _check_range("image_size", settings["image_size"], 1)
    for name in ("lr", "head_lr_factor"):
        if not settings[name] > 0:
            raise ValueError(f"{name}: got {settings[name]}, expected a positive number")
    _check_combinations(settings)


def check_type(name: str, value: object, expected: Any) -> None:
    """Refuse a value that is not of its field's type.

    Args:
        name: of the field.
        value: that it was given.
        expected: its annotation: a type, a Literal or a union of them.

    Raises:
        ValueError: with a suggestion where a name is misspelt.
    """
    options = get_args(expected) if get_origin(expected) is UnionType else (expected,)
    literal = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    if literal:
        if value not in literal:
            close = difflib.get_close_matches(str(value), map(str, literal), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(map(repr, literal))}{hint}")
        return
    # bool is an int to Python, but not to a reader.
    if type(value) not in options and not (float in options and type(value) is int):
        names = " or ".join("None" if option is NoneType else option.__name__ for option in options)
        raise ValueError(f"{name}: got {value!r} of type {type(value).__name__}, expected {names}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}: got {value}, expected a finite number")


def _check_range(name: str, value: float | int, low: float | int, high: float | int = math.inf) -> None:
    if not low <= value <= high:
        bounds = f"at least {low}" if high == math.inf else f"{low} to {high}"
        raise ValueError(f"{name}: got {value}, expected {bounds}")


def _check_combinations(settings: Mapping[str, Any]) -> None:
    """Refuse settings that contradict each other; the message opens with the key that is to be changed."""
    given = SimpleNamespace(**settings)
    linear = given.head == "linear"
    published = given.moment_variant == "published"
    problems = {
        f"unlabeled_batch_size: got 0 with policy {given.policy!r}, expected at least 1; or take policy 'supervised'": (
            given.policy != "supervised" and given.unlabeled_batch_size == 0
        ),
        f"moment_order: got {given.moment_order} with head 'linear', expected 0: it has no centers to constrain": (
            linear and bool(given.moment_order)
        ),
        f"moment_variant: got 'published' with order {given.moment_order}, constraint {given.constraint!r}, moment_whiten "
        f"{given.moment_whiten}; expected order 1 or 2 of the constraint 'moments' without whitening": (
            published and ((given.moment_order or 1) > 2 or given.constraint != "moments" or given.moment_whiten)
        ),
        f"outlier_score: got {given.outlier_score!r} with head 'linear', expected 'density': it has no centers": (
            linear and given.outliers != "none" and given.outlier_score not in ("auto", "density")
        ),
        f"outliers: got 'chi2' with score {given.outlier_score!r} and head {given.head!r}, expected the score 'nearest' or "
        "'assigned' of a head with centers: only that distance follows the chi-square law": (
            given.outliers == "chi2" and (linear or given.outlier_score not in ("auto", "nearest", "assigned"))
        ),
        f"outlier_refit_interval: got {given.outlier_refit_interval} with head 'linear', expected 0: it has no mixture": (
            linear and given.outlier_refit_interval > 0
        ),
        f"constraint: got {given.constraint!r} with head 'linear', expected a head with centers": (
            linear and given.constraint != "moments"
        ),
        f"backbone_variant: got 'published' with backbone {given.backbone!r}, expected one of the Wide ResNets (wrn-...)": (
            given.backbone_variant == "published" and not given.backbone.startswith("wrn-")
        ),
        "ema_decay: got 1.0, expected less: the averaged model would never move": given.ema_decay == 1.0,
        "momentum: got 1.0, expected less: nothing would ever be forgotten": given.momentum == 1.0,
        "held_out_in_pool: got True without held_out_classes, expected some classes to hold out": (
            given.held_out_in_pool and not given.held_out_classes
        ),
        "resume and overwrite: got both, expected one of them: overwriting deletes what resume needs": (
            given.resume and given.overwrite
        ),
    }
    for message, is_wrong in problems.items():
        if is_wrong:
            raise ValueError(message)
