"""Labels of any type: splitting off the unlabelled marker, encoding classes, and marking rejected samples."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped
from sklearn.utils import assert_all_finite, column_or_1d

#: Default labels of rejected samples, for numeric and for string classes.
REJECTED_NUMBER, REJECTED_NAME = -1, "rejected"


def split_labels(y: Any, unlabeled: Any) -> tuple[Bool[np.ndarray, " n"], Shaped[np.ndarray, " m"]]:
    """Find the labelled samples, and their labels in an array of one type.

    Args:
        y: one label per sample: numbers, booleans or strings, or `unlabeled`.
        unlabeled: the marker. None or NaN means missing values: None, NaN and pandas' NA. If `y` holds strings, the marker's
            string form matches too: ``np.array(["cat", -1])`` turns -1 into "-1", and so does a CSV file.

    Returns:
        Mask of the labelled samples, (n,), and their labels, (m,).

    Raises:
        ValueError: if `y` is not 1-D, mixes strings and numbers, or has labels that cannot be classes.
    """
    y = np.asarray(column_or_1d(_whole_numbers(y), warn=True))
    if y.dtype.kind == "T":  # numpy's variable-length strings, which may hold missing values
        y = y.astype(object)
    known = ~_marked(y, unlabeled)
    labels = y[known]
    if labels.dtype.kind == "O":
        labels = _of_one_kind(labels)
    if labels.dtype.kind == "f":
        if np.isnan(labels).any():
            raise ValueError(
                f"Input y contains NaN, and unlabelled samples are marked by {unlabeled!r}; pass unlabeled=None if missing "
                "values mark them"
            )
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
    """The sorted classes, and each sample's class number (-1 if unlabelled).

    Raises:
        ValueError: if no sample is labelled.
    """
    if not len(labels):
        raise ValueError(
            f"y: got {len(known)} samples that are all unlabelled or of weight 0, expected at least one labelled sample of "
            "each class; use the unlabelled marker only for samples whose class is unknown"
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
    """Replace the predicted labels of rejected samples.

    Args:
        predicted: predicted labels.
        rejected: mask of the rejected samples.
        classes: all classes.
        label: replacement; None means -1 for numeric classes and "rejected" for strings.

    Raises:
        ValueError: if `label` is one of the classes.
    """
    numeric = classes.dtype.kind in "iufb"
    if isinstance(label, np.generic):
        label = label.item()
    if label is None:
        label = REJECTED_NUMBER if numeric else REJECTED_NAME
    check_rejected_label(label, classes)
    same_kind = (numeric and classes.dtype.kind != "b" and isinstance(label, int | float)) or (
        classes.dtype.kind == "U" and isinstance(label, str)
    )
    # Mixed types (strings or booleans with numbers) need an object array to keep their own type.
    dtype = np.result_type(predicted.dtype, np.asarray(label).dtype) if same_kind else np.dtype(object)
    marked = predicted.astype(dtype)
    marked[rejected] = label
    return marked


def check_rejected_label(label: Any, classes: Shaped[np.ndarray, " K"]) -> None:
    """Check that predictions would tell a rejected sample from one of a class; None, the default label, is not checked.

    Raises:
        ValueError: if it is one of the classes.
    """
    if label is not None and label in classes.tolist():
        raise ValueError(
            f"rejected_label: got {label!r}, which is one of the classes, expected a label that is not a class; pass another "
            "rejected_label"
        )


def _whole_numbers(y: Any) -> Any:
    """Integers of a data frame's column, some of them missing, as objects: numpy would make them floats."""
    kind = str(getattr(y, "dtype", "")).lower()
    if hasattr(y, "to_list") and kind.startswith(("int", "uint")):
        values = y.to_list()
        if any(map(is_missing, values)):
            return np.array(values, dtype=object)
    return y


def _marked(y: Shaped[np.ndarray, " n"], unlabeled: Any) -> Bool[np.ndarray, " n"]:
    """Mask of the samples that carry the unlabelled marker."""
    values = y.tolist()
    marker = unlabeled.item() if isinstance(unlabeled, np.generic) else unlabeled
    if is_missing(marker):
        return np.array([is_missing(value) for value in values], dtype=bool)
    # False is not 0: only a boolean marker matches booleans.
    marked = [_same(value, marker) for value in values]
    if all(isinstance(value, str) for value, found in zip(values, marked, strict=True) if not found):
        marked = [found or value == str(marker) for value, found in zip(values, marked, strict=True)]
    return np.array(marked, dtype=bool)


def _same(value: Any, marker: Any) -> bool:
    of_one_kind = isinstance(value, bool | np.bool_) == isinstance(marker, bool)
    return of_one_kind and not is_missing(value) and bool(value == marker)


def _of_one_kind(labels: Shaped[np.ndarray, " m"]) -> Shaped[np.ndarray, " m"]:
    """Convert an object array of labels: strings stay objects, numbers become a numeric array."""
    values = labels.tolist()
    if all(isinstance(value, str) for value in values):
        return labels
    if any(isinstance(value, str) for value in values) or any(is_missing(value) for value in values):
        odd = next(value for value in values if not isinstance(value, str))
        raise ValueError(
            f"y: got labels of different types, {odd!r} and {next(value for value in values if value is not odd)!r}, expected "
            "all strings or all numbers; if one of them marks unlabelled samples, pass it as unlabeled "
            "(None for missing values)"
        )
    return np.array(values)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or pandas' NA."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def check_class_weight(class_weight: Any) -> None:
    """Validate the parameter; `check_weighted_classes` checks its classes.

    Raises:
        ValueError: if it is neither None, "balanced" nor a dict of finite weights above 0.
    """
    if class_weight is None or (isinstance(class_weight, str) and class_weight == "balanced"):
        return
    if not isinstance(class_weight, Mapping):
        raise ValueError(f"class_weight: got {class_weight!r}, expected None, 'balanced' or a dict of class to weight")
    for name, weight in class_weight.items():
        if not (isinstance(weight, int | float | np.number) and 0 < weight < np.inf):
            raise ValueError(f"class_weight: got {weight!r} for class {name!r}, expected a number above 0")


def check_weighted_classes(class_weight: Any, classes: Shaped[np.ndarray, " K"]) -> None:
    """Check that the classes of a dict exist.

    Raises:
        ValueError: if one does not.
    """
    named = class_weight if isinstance(class_weight, Mapping) else {}
    unknown = [name for name in named if name not in classes.tolist()]
    if unknown:
        raise ValueError(
            f"class_weight: got a weight for {unknown[0]!r}, which is no class, expected some of {classes.tolist()}"
        )


def class_ratio(
    class_weight: Any, classes: Shaped[np.ndarray, " K"], prior: Float64[np.ndarray, " K"]
) -> Float64[np.ndarray, " K"]:
    """How many times as frequent each class counts as it is, up to a common factor."""
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str):
        return 1.0 / prior
    ratio = np.array([float(class_weight.get(name, 1.0)) for name in classes.tolist()])
    bounded: np.ndarray[Any, Any] = np.maximum(ratio / ratio.max(), np.finfo(float).eps)
    return bounded
