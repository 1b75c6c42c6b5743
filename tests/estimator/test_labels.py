"""Labels of every kind, the unlabelled marker, the rejected label."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from momatch.estimator.labels import encode_labels, mark_rejected, split_labels

NAMES = ["cat", "dog", -1, "cat"]


@pytest.mark.parametrize(
    ("y", "unlabeled"),
    [
        (np.array(["cat", "dog", -1, "cat"], dtype=object), -1),
        (NAMES, -1),  # a list, of which numpy makes strings
        (np.array(["cat", "dog", -1, "cat"]), -1),
        (pd.Series(NAMES), -1),
        (pd.Series(["cat", "dog", "-1", "cat"]), -1),  # out of a file
        (pd.Series(["cat", "dog", "-1", "cat"], dtype="category"), -1),
        (pd.Series(["cat", "dog", "-1", "cat"], dtype="string"), np.int64(-1)),
        (np.array(["cat", "dog", "-1", "cat"], dtype=object), -1),
        (pl.Series(["cat", "dog", "-1", "cat"], dtype=pl.Categorical), -1),
        (pd.Series(["cat", "dog", None, "cat"]), None),
        (pd.Series(["cat", "dog", pd.NA, "cat"], dtype="string"), None),
        (pd.Series(["cat", "dog", None, "cat"], dtype="category"), float("nan")),
        (pl.Series(["cat", "dog", None, "cat"]), None),
        (["cat", "dog", "?", "cat"], "?"),
        (np.array(["cat", "dog", "", "cat"], dtype=object), ""),
    ],
)
def test_names_with_a_marker(y, unlabeled):
    classes, codes = encode_labels(*split_labels(y, unlabeled))
    assert classes.tolist() == ["cat", "dog"]
    assert codes.tolist() == [0, 1, -1, 0]


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 2")
def test_strings_of_any_length():
    for marker, dtype in (("-1", np.dtypes.StringDType()), (None, np.dtypes.StringDType(na_object=None))):
        y = np.array(["cat", "dog", marker, "cat"], dtype=dtype)
        classes, codes = encode_labels(*split_labels(y, -1 if marker else None))
        assert classes.tolist() == ["cat", "dog"]
        assert codes.tolist() == [0, 1, -1, 0]


@pytest.mark.parametrize(
    ("y", "unlabeled", "classes", "codes"),
    [
        ([3, -1, 7, 3], -1, [3, 7], [0, -1, 1, 0]),
        ([3.0, -1.0, 7.0, 3.0], -1, [3.0, 7.0], [0, -1, 1, 0]),
        (np.array([3, -1, 7, 3], dtype=object), -1, [3, 7], [0, -1, 1, 0]),
        ([3, 0, 7, 3], 0, [3, 7], [0, -1, 1, 0]),
        ([1, -1, 1, -1], None, [-1, 1], [1, 0, 1, 0]),
        ([3.0, float("nan"), 7.0, 3.0], None, [3.0, 7.0], [0, -1, 1, 0]),
        (pd.Series([3, pd.NA, 7, 3], dtype="Int64"), None, [3, 7], [0, -1, 1, 0]),
        (np.array([True, False, True, True]), -1, [False, True], [1, 0, 1, 1]),
        (np.array([True, -1, False, True], dtype=object), -1, [False, True], [1, -1, 0, 1]),
        (np.array([True, False, True, True]), 0, [False, True], [1, 0, 1, 1]),  # False is no 0
        (np.array([True, 0, False, True], dtype=object), 0, [False, True], [1, -1, 0, 1]),
        ([1, 0, 1, 1], False, [0, 1], [1, 0, 1, 1]),
        (np.array([True, False, True, True]), False, [True], [0, -1, 0, 0]),
    ],
)
def test_numbers_with_a_marker(y, unlabeled, classes, codes):
    found, numbers = encode_labels(*split_labels(y, unlabeled))
    assert found.tolist() == classes
    assert found.dtype.kind in "ifb"
    assert numbers.tolist() == codes


@pytest.mark.parametrize(
    ("y", "unlabeled", "match"),
    [
        ([0.5, 1.5, 2.0], -1, "Unknown label type"),
        ([0.0, np.inf, -1.0], -1, "infinity"),
        ([0.0, np.nan, -1.0], -1, "Input y contains NaN.*marked by -1; pass unlabeled=None"),
        (pd.Series([3, pd.NA, 7], dtype="Int64"), -1, "different types.*None for missing"),
        (np.array(["cat", 3, -1], dtype=object), -1, "different types.*unlabeled"),
        (np.array(["cat", None, "dog"], dtype=object), -1, "different types.*None for missing"),
        (np.array([0, 1], dtype="M8[D]"), -1, "Unknown label type"),
        (np.array([b"cat", b"-1"]), -1, "bytes.*np.char.decode"),
        (np.array([b"cat", -1], dtype=object), -1, "bytes.*np.char.decode"),
        (pd.Series(["cat", pd.NA, "dog"], dtype="string"), -1, "different types.*None for missing"),
        ([[0, 1], [1, 0]], -1, "1d array"),
    ],
)
def test_what_are_no_classes(y, unlabeled, match):
    with pytest.raises(ValueError, match=match):
        split_labels(y, unlabeled)


@pytest.mark.parametrize("column", [pd.Series([3, pd.NA, 7], dtype="Int64"), pl.Series([3, None, 7])])
def test_whole_numbers_stay_whole_beside_missing_values(column):
    classes, _ = encode_labels(*split_labels(column, None))
    assert classes.dtype.kind == "i"
    assert classes.tolist() == [3, 7]


def test_labels_are_needed():
    with pytest.raises(ValueError, match="got 3 samples that are all unlabelled or of weight 0"):
        encode_labels(*split_labels([-1, -1, -1], -1))


@pytest.mark.parametrize(
    ("classes", "label", "expected", "kind"),
    [
        (np.array([0, 1]), None, [0, -1, 1], "i"),
        (np.array([0, 1], dtype=np.uint8), None, [0, -1, 1], "i"),
        (np.array([0.0, 1.0]), None, [0.0, -1.0, 1.0], "f"),
        (np.array([False, True]), None, [False, -1, True], "O"),
        (np.array(["a", "b"]), None, ["a", "rejected", "b"], "U"),
        (np.array(["a", "b"], dtype=object), None, ["a", "rejected", "b"], "O"),
        (np.array(["a", "b"]), "something else", ["a", "something else", "b"], "U"),
        (np.array(["a", "b"]), -1, ["a", -1, "b"], "O"),
        (np.array([0, 1]), "odd", [0, "odd", 1], "O"),
        (np.array([0, 1]), np.int64(-1), [0, -1, 1], "i"),
        (np.array([0.0, 1.0]), np.float32(9.0), [0.0, 9.0, 1.0], "f"),
    ],
)
def test_rejected_samples_carry_their_label(classes, label, expected, kind):
    marked = mark_rejected(classes[[0, 1, 1]], np.array([False, True, False]), classes, label)
    assert marked.tolist() == expected
    assert marked.dtype.kind == kind


def test_rejected_label_is_no_class():
    with pytest.raises(ValueError, match="rejected_label: got -1, which is one of the classes"):
        mark_rejected(np.array([1]), np.array([True]), np.array([-1, 1]), None)
