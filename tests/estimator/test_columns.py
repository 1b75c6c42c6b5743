"""Missing values and categories."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from momatch.estimator.columns import Columns, categorical_columns

NAN = float("nan")


def frame(kind=pd.DataFrame):
    colors = ["red", "blue", None, "red"]
    columns = {"size": [1.0, NAN, 3.0, 5.0], "color": colors, "count": [1, 2, 3, 4]}
    if kind is pl.DataFrame:
        return pl.DataFrame(columns).with_columns(pl.col("color").cast(pl.Categorical))
    return pd.DataFrame(columns).astype({"color": "category"})


def test_missing_values_become_the_weighted_median():
    X = np.array([[1.0, 7.0], [NAN, NAN], [3.0, 7.0], [100.0, 9.0]])
    columns = Columns.of(X, np.array([3.0, 1.0, 1.0, 1.0]))
    np.testing.assert_array_equal(columns(X)[1], [1.0, 7.0])
    np.testing.assert_array_equal(columns(X)[[0, 2, 3]], X[[0, 2, 3]])
    np.testing.assert_array_equal(
        Columns.of(np.full((2, 1), NAN), np.ones(2))(np.array([[NAN], [4.0]])), [[0.0], [4.0]]
    )


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_categories_are_columns_of_their_own(kind):
    X = frame(kind)
    assert categorical_columns(X) == [1]
    columns = pickle.loads(pickle.dumps(Columns.of(X, np.ones(4))))
    expected = [[1, 1, 0, 1], [3, 2, 1, 0], [3, 3, 0, 0], [5, 4, 0, 1]]  # size, count, blue, red
    np.testing.assert_array_equal(columns(X), expected)


def test_a_new_category_is_none_of_the_known():
    columns = Columns.of(frame(), np.ones(4))
    new = frame()
    new["color"] = ["green", "blue", "red", None]
    np.testing.assert_array_equal(columns(new)[:, 2:], [[0, 0], [1, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize("values", [["a", "b", "a", "b"], pd.Series(["a", "b", "a", None], dtype="string")])
def test_text_is_a_category_and_numbers_are_not(values):
    assert categorical_columns(pd.DataFrame({"x": values, "y": pd.array([1, None, 2, 3], dtype="Int64")})) == [0]
    assert categorical_columns(np.ones((2, 2))) == []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_model_of_categories_and_missing_values(quick, problem):
    X = pd.DataFrame(problem.X, columns=list("abcdef"))
    X.loc[::7, "a"] = NAN
    X["kind"] = pd.Categorical(np.where(problem.truth == 0, "first", "other"))
    model = quick.fit(X, problem.y)
    assert model.n_features_in_ == 7
    assert (model.predict(X) == problem.truth).mean() > 0.85
    with pytest.raises(ValueError, match="X: got numbers alone, expected a data frame with categories"):
        model.predict(X.assign(kind=0.0).to_numpy())
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X.drop(columns="kind"))


@pytest.mark.usefixtures("unchecked")
def test_infinite_values_and_sparse_tables_are_refused(quick, problem):
    X = problem.X.copy()
    X[3, 2] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        quick.fit(X, problem.y)
    with pytest.raises(TypeError, match="dense"):
        quick.fit(sparse.csr_array(problem.X), problem.y)


def test_object_columns_of_text_and_numbers():
    X = pd.DataFrame(
        {"n": pd.Series([1, None, 2.5, pd.NA], dtype=object), "c": pd.Series(["a", None, "b", "a"], dtype=object)}
    )
    assert categorical_columns(X) == [1]
    np.testing.assert_array_equal(Columns.of(X, np.ones(4))(X), [[1, 1, 0], [1, 0, 0], [2.5, 0, 1], [1, 1, 0]])


def test_columns_of_one_name():
    X = pd.DataFrame(np.arange(8.0).reshape(4, 2), columns=["a", "a"])
    assert categorical_columns(X) == []
    X.insert(2, "a", pd.Categorical(["x", "y", "x", "y"]), allow_duplicates=True)
    np.testing.assert_array_equal(Columns.of(X, np.ones(4))(X)[:, 2:], [[1, 0], [0, 1], [1, 0], [0, 1]])


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame({"a": [1.0, 2.0], "when": pd.to_datetime(["2020-01-01", "2020-01-02"])}),
        pl.DataFrame({"when": [1, 2]}).with_columns(pl.col("when").cast(pl.Datetime)),
        pd.DataFrame({"when": pd.to_timedelta([1, 2], unit="h")}),
    ],
)
def test_dates_are_refused(X):
    with pytest.raises(ValueError, match=r"got dates or times in column 'when'.*expected numbers or categories"):
        categorical_columns(X)


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame({"a": [1.0, 2.0], "odd": [[1], [2]]}),
        pd.DataFrame({"odd": [1j, 2j]}),
        pd.DataFrame({"odd": [{"x": 1}, "text"]}),
        pl.DataFrame({"odd": [[1], [2]]}),
    ],
)
def test_what_is_neither_number_nor_category_is_refused(X):
    with pytest.raises(ValueError, match=r"neither numbers nor categories in column 'odd'.*convert or drop it"):
        categorical_columns(X)


def test_columns_keep_their_kind():
    columns = Columns.of(frame(), np.ones(4))
    with pytest.raises(ValueError, match="got numbers in 'color', expected categories as in the fit, such as 'blue'"):
        columns(frame().assign(color=1.0))
    with pytest.raises(ValueError, match="got 'large' in column 'size', expected numbers, as in the fit"):
        columns(frame().assign(size="large"))


def test_identifiers_are_refused():
    X = pd.DataFrame({"id": [f"row {i}" for i in range(300)]})
    with pytest.raises(ValueError, match="got 300 categories in column 'id', expected at most 255; drop the column"):
        Columns.of(X, np.ones(300))


@pytest.mark.usefixtures("unchecked")
def test_categories_are_those_of_the_fit(quick, problem):
    X = pd.DataFrame(problem.X[:, :2], columns=["a", "b"])
    X["kind"] = np.where(problem.truth == 0, "first", "other")
    model = quick.fit(X, problem.y)
    for missing in (None, NAN):
        new = X.head(1).assign(kind=missing)
        assert np.isfinite(model.predict_proba(new)).all()
