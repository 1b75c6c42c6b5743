"""Labels as people have them: any type, an unlabelled marker among them, and what a rejected sample is called."""

import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Shaped
from sklearn.utils import assert_all_finite, column_or_1d

#: What a rejected sample is called where the user does not say, by whether classes are numbers or names.
REJECTED_NUMBER, REJECTED_NAME = -1, "rejected"


def split_labels(y: Any, unlabeled: Any) -> tuple[Bool[np.ndarray, " n"], Shaped[np.ndarray, " m"]]:
    """Which samples are labelled, and their labels in an array of one kind.

    Args:
        y: one label a sample: numbers, booleans or strings, `unlabeled` among them.
        unlabeled: the marker. None or NaN mean missing values: None, NaN, pandas' NA. Among strings the marker may have become
            one: numpy makes "-1" of the -1 in ``np.array(["cat", -1])``, and so does a file of comma-separated values.

    Returns:
        True for labelled samples, (n,), and the labels of those, (m,).

    Raises:
        ValueError: if `y` is not one label a sample, mixes names and numbers, or has labels that are no classes.
    """
    y = np.asarray(column_or_1d(y, warn=True))
    if y.dtype.kind == "T":  # numpy's strings of any length, which may hold missing values
        y = y.astype(object)
    known = ~_marked(y, unlabeled)
    labels = y[known]
    if labels.dtype.kind == "O":
        labels = _of_one_kind(labels)
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
        if np.any(labels != np.floor(labels)):
            raise ValueError(
                f"Unknown label type: continuous. y: got {labels[labels != np.floor(labels)][0]}, expected classes: "
                "integers, booleans or strings; this is a classifier, not a regressor"
            )
    if labels.dtype.kind == "S":
        raise ValueError(
            f"Unknown label type: bytes. y: got {labels[0]!r}, expected integers, booleans or strings; decode them, for "
            "instance with np.char.decode(y)"
        )
    if labels.dtype.kind not in "iufbUO":
        raise ValueError(f"Unknown label type: {labels.dtype}. y: expected integers, booleans or strings")
    return known, labels


def encode_labels(
    known: Bool[np.ndarray, " n"], labels: Shaped[np.ndarray, " m"]
) -> tuple[Shaped[np.ndarray, " K"], Int64[np.ndarray, " n"]]:
    """The classes, sorted, and each sample's class number, -1 where it is unlabelled.

    Raises:
        ValueError: if no sample is labelled.
    """
    if not len(labels):
        raise ValueError(
            f"y: got {len(known)} unlabelled samples, expected at least one of each class with a label; the class of a sample "
            "goes into y, and only samples whose class is not known carry the unlabelled marker"
        )
    classes, numbers = np.unique(labels, return_inverse=True)
    codes = np.full(len(known), -1, dtype=np.int64)
    codes[known] = numbers
    return classes, codes


def mark_rejected(
    predicted: Shaped[np.ndarray, " n"],
    rejected: Bool[np.ndarray, " n"],
    classes: Shaped[np.ndarray, " K"],
    label: Any,
) -> Shaped[np.ndarray, " n"]:
    """The predicted labels with those of rejected samples replaced.

    Args:
        predicted: labels.
        rejected: which to replace.
        classes: all classes, which the label must not be among.
        label: what to put there; None for -1 among numbers and "rejected" among names.

    Raises:
        ValueError: if `label` is one of the classes.
    """
    numeric = classes.dtype.kind in "iufb"
    if isinstance(label, np.generic):
        label = label.item()
    if label is None:
        label = REJECTED_NUMBER if numeric else REJECTED_NAME
    if label in classes.tolist():
        raise ValueError(
            f"rejected_label: got {label!r}, which is one of the classes, expected a label that tells outliers from them; "
            "pass another one as rejected_label"
        )
    same_kind = (numeric and classes.dtype.kind != "b" and isinstance(label, int | float)) or (
        classes.dtype.kind == "U" and isinstance(label, str)
    )
    # Where names and numbers (or truth values and numbers) would have to share an array, each keeps its own type.
    dtype = np.result_type(predicted.dtype, np.asarray(label).dtype) if same_kind else np.dtype(object)
    marked = predicted.astype(dtype)
    marked[rejected] = label
    return marked


def _marked(y: Shaped[np.ndarray, " n"], unlabeled: Any) -> Bool[np.ndarray, " n"]:
    """Where the unlabelled marker stands."""
    values = y.tolist()
    marker = unlabeled.item() if isinstance(unlabeled, np.generic) else unlabeled
    if _is_missing(marker):
        return np.array([_is_missing(value) for value in values], dtype=bool)
    # False is no 0: truth values are marked by one of their own alone.
    marked = [_same(value, marker) for value in values]
    if all(isinstance(value, str) for value, found in zip(values, marked, strict=True) if not found):
        marked = [found or value == str(marker) for value, found in zip(values, marked, strict=True)]
    return np.array(marked, dtype=bool)


def _same(value: Any, marker: Any) -> bool:
    of_one_kind = isinstance(value, bool | np.bool_) == isinstance(marker, bool)
    return of_one_kind and not _is_missing(value) and bool(value == marker)


def _of_one_kind(labels: Shaped[np.ndarray, " m"]) -> Shaped[np.ndarray, " m"]:
    """Labels out of an array of objects: strings stay objects, numbers become an array of numbers."""
    values = labels.tolist()
    if all(isinstance(value, str) for value in values):
        return labels
    if any(isinstance(value, str) for value in values) or any(_is_missing(value) for value in values):
        odd = next(value for value in values if not isinstance(value, str))
        raise ValueError(
            f"y: got labels of different kinds, {odd!r} and {next(value for value in values if value is not odd)!r}, expected "
            "all names or all numbers; if one of them marks unlabelled samples, pass it as unlabeled "
            "(None for missing values)"
        )
    return np.array(values)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")
