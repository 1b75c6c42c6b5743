"""The rows of one batch of predictions, as columns of plain values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from momatch.models.scorer import Scores

#: Column -> values, one per row; None for a missing value.
Table = dict[str, list[Any]]
#: Column -> type of its values; posterior columns are floats. Every output format reads the types here.
COLUMN_TYPES: dict[str, type] = {
    "path": str,
    "row": int,
    "label": str,
    "confidence": float,
    "log_density": float,
    "distance": float,
    "outlier_score": float,
    "p_value": float,
    "flagged": bool,
    "error": str,
}


def posterior_columns(class_names: Sequence[str]) -> list[str]:
    """Names of the posterior columns."""
    return [f"posterior_{name}" for name in class_names]


def columns(posterior_of: Sequence[str] = ()) -> list[str]:
    """All columns in order.

    Args:
        posterior_of: classes that get a posterior column.
    """
    return [*COLUMN_TYPES, *posterior_columns(posterior_of)]


def make_table(
    paths: Sequence[str],
    rows: Sequence[int | None],
    reasons: dict[int, str],
    scores: Scores | None,
    *,
    class_names: Sequence[str],
    calibration_size: int,
    posterior: bool = False,
) -> Table:
    """The rows of one batch, not flagged yet.

    Args:
        paths: one per row.
        rows: index inside an array; None for a file.
        reasons: row -> why it has no scores.
        scores: of the other rows, in order; None if there are none.
        class_names: of the model.
        calibration_size: m, the number of calibration scores; 0 for none.
        posterior: add a column per class.
    """
    n = len(paths)
    names = class_names if posterior else ()
    table: Table = {name: [None] * n for name in columns(names)}
    table["path"], table["row"] = list(paths), list(rows)
    table["error"] = [reasons.get(i) for i in range(n)]
    if scores is None:
        return table
    found: dict[str, list[Any]] = {
        "label": [class_names[k] for k in scores.labels.tolist()],
        "confidence": _numbers(scores.confidence),
        "log_density": _numbers(scores.log_density),
        "distance": _numbers(scores.distance),
        "outlier_score": _numbers(scores.outlier_score),
        "p_value": _p_values(scores.p_value, calibration_size),
    }
    for column, name in enumerate(posterior_columns(names)):
        found[name] = _numbers(scores.posterior[:, column])
    read = [i for i in range(n) if i not in reasons]
    for name, values in found.items():
        for i, value in zip(read, values, strict=True):
            table[name][i] = value
    return table


def flag(table: Table, cut: float) -> None:
    """Fill the column ``flagged``: whether the p-value is at most `cut`; None without a p-value."""
    table["flagged"] = [None if p is None else p <= cut for p in table["p_value"]]


def _numbers(values: Float[Tensor, " n"]) -> list[float | None]:
    """Python floats with the fewest digits that identify the float32; None if not finite."""
    array = values.cpu().numpy()
    return [float(text) if finite else None for text, finite in zip(array.astype(str), np.isfinite(array), strict=True)]


def _p_values(values: Float[Tensor, " n"], calibration_size: int) -> list[float | None]:
    """Exactly k / (m + 1), so that comparisons with a level are exact: 5/100 in float32 is above 0.05."""
    if not calibration_size:
        return [None] * len(values)
    steps = calibration_size + 1
    ranks: list[float] = (values.double() * steps).round().tolist()
    return [rank / steps for rank in ranks]
