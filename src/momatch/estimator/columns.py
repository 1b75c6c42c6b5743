"""Columns of a table as numbers: categories as one column each, missing values as the median."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped
from sklearn.utils import check_array

from momatch.estimator.labels import is_missing
from momatch.estimator.scaling import weighted_quantile

#: More are refused: each is a column of its own, and an identifier would have as many as there are rows.
MOST_CATEGORIES = 255


def is_frame(X: Any) -> bool:
    """Whether it has columns of different types, as data frames of pandas and polars have."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def categorical_columns(X: Any) -> list[int]:
    """Positions of the columns of a data frame that hold categories or text; none in anything but a data frame.

    Raises:
        ValueError: if a column holds dates, times, or what is neither a number nor a category.
    """
    if not is_frame(X):
        return []
    found = []
    for position, name in enumerate(X.columns):
        column = _series(X, position)
        kind = str(column.dtype).lower()
        if kind.startswith(("date", "time", "duration", "period")):
            raise ValueError(
                f"X: got dates or times in column {name!r} ({column.dtype}), expected numbers or categories; convert it, for "
                "example to days since a date"
            )
        if kind.startswith(("complex", "list", "array", "struct", "binary")) or (
            kind == "object" and not all(map(_is_plain, np.asarray(column).tolist()))
        ):
            raise ValueError(
                f"X: got values that are neither numbers nor categories in column {name!r} ({column.dtype}), expected numbers, "
                "text or categories; convert or drop it"
            )
        if kind.startswith(("category", "categorical", "enum", "str", "string", "utf8")) or (
            kind == "object" and not _is_numeric(np.asarray(column))
        ):
            found.append(position)
    return found


@dataclass(frozen=True)
class Columns:
    """How the columns of the training data become numbers; can be pickled.

    Attributes:
        categories: column -> its categories, sorted. A missing or unknown one is none of them.
        numeric: the other columns.
        median: of each column of the result, for missing values.
    """

    categories: dict[int, Shaped[np.ndarray, " c"]]
    numeric: list[int]
    median: Float64[np.ndarray, " F"]

    @classmethod
    def of(cls, X: Any, weight: Float64[np.ndarray, " n"]) -> "Columns":
        """Of training data; `X` has as many rows as there are weights.

        Raises:
            ValueError: if a column has too many categories, or holds dates or times.
        """
        categories = {position: _known(_column(X, position)) for position in categorical_columns(X)}
        for position, names in categories.items():
            if len(names) > MOST_CATEGORIES:
                raise ValueError(
                    f"X: got {len(names):,} categories in column {X.columns[position]!r}, expected at most {MOST_CATEGORIES}; "
                    "drop the column if it only identifies rows, or group its categories"
                )
        numeric = [position for position in range(np.shape(X)[1]) if position not in categories]
        table = cls(categories, numeric, np.zeros(0))._numbers(X)
        of_values = np.broadcast_to(weight[:, None], table.shape)
        if (missing := np.isnan(table)).any():
            table, of_values = np.where(missing, 0.0, table), np.where(missing, 0.0, of_values)
        # A column without any value is constant.
        has_values = (of_values > 0).any(0)
        median = weighted_quantile(table, of_values, 0.5)
        return cls(categories, numeric, np.where(has_values, median, 0.0))

    def __call__(self, X: Any) -> Float64[np.ndarray, "n F"]:
        """The numbers of `X`, which has the columns of the training data.

        Raises:
            ValueError: if it has no columns of categories but the training data had, a column that was numeric or of categories
                is not, or a value is infinite.
        """
        if self.categories and not is_frame(X):
            raise ValueError(
                f"X: got numbers alone, expected a data frame with categories in {len(self.categories)} columns, as in the fit"
            )
        table = self._numbers(X)
        missing = np.isnan(table)
        return np.where(missing, self.median, table) if missing.any() else table

    def _numbers(self, X: Any) -> Float64[np.ndarray, "n F"]:
        if not self.categories:
            table: np.ndarray[Any, Any] = check_array(
                X, dtype=np.float64, ensure_all_finite="allow-nan", input_name="X"
            )
            return table
        parts = []
        for position, names in self.categories.items():
            column = _column(X, position)
            if column.dtype.kind == "f" and not np.isnan(column).all() and not _is_numeric(names):
                raise ValueError(
                    f"X: got numbers in {X.columns[position]!r}, expected categories as in the fit, such as {names[0]!r}"
                )
            parts.append(np.asarray([column == name for name in names], dtype=np.float64).reshape(len(names), len(X)).T)
        if self.numeric:
            columns = [_column(X, position) for position in self.numeric]
            for position, column in zip(self.numeric, columns, strict=True):
                if column.dtype.kind != "f":
                    odd = next(value for value in column.tolist() if not _is_number(value) and value is not None)
                    raise ValueError(
                        f"X: got {odd!r} in column {X.columns[position]!r}, expected numbers, as in the fit"
                    )
            given = np.stack(columns, 1)
            parts.insert(0, check_array(given, dtype=np.float64, ensure_all_finite="allow-nan", input_name="X"))
        return np.concatenate(parts, 1)


def _series(X: Any, position: int) -> Any:
    """A column of a data frame; pandas allows several of one name."""
    return X.iloc[:, position] if hasattr(X, "iloc") else X[X.columns[position]]


def _column(X: Any, position: int) -> Shaped[np.ndarray, " n"]:
    """A column of a data frame; missing values of any kind as NaN, if it is numeric, or None."""
    values = np.array(_series(X, position), dtype=object)
    missing = np.array([is_missing(value) for value in values], dtype=bool)
    if _is_numeric(values[~missing]):
        values[missing] = np.nan
        return values.astype(np.float64)
    values[missing] = None
    return values


def _is_plain(value: Any) -> bool:
    """Whether a value can be a number or a category; lists, for example, cannot."""
    return isinstance(value, Hashable) and not isinstance(value, complex)


def _known(values: Shaped[np.ndarray, " n"]) -> Shaped[np.ndarray, " c"]:
    known = {value for value in values.tolist() if not is_missing(value)}
    return np.array(sorted(known, key=lambda value: (str(type(value)), value)), dtype=object)


def _is_numeric(values: Shaped[np.ndarray, " n"]) -> bool:
    return all(_is_number(value) or is_missing(value) for value in values.tolist())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number)
