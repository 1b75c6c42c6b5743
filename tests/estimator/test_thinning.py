"""Which rows of a large table are trained on: by their contents alone."""

import numpy as np
import pytest

from momatch import MoMatchClassifier
from momatch.estimator import thinning
from momatch.estimator.thinning import blocks, rows_to_train_on


@pytest.fixture
def few(monkeypatch):
    """Tables above 200 rows are large."""
    monkeypatch.setattr(thinning, "MOST_ROWS", 200)
    monkeypatch.setattr(thinning, "_LEAST_OF_CLASS", 5)
    monkeypatch.setattr(thinning, "_BLOCK", 64)


def table(n=1_000, labeled=30):
    rng = np.random.default_rng(0)
    codes = np.full(n, -1)
    codes[:labeled] = np.arange(labeled) % 3
    x = rng.normal(size=(n, 4)) + 6.0 * np.eye(4)[rng.integers(3, size=n)]
    x[:labeled] = rng.normal(size=(labeled, 4)) + 6.0 * np.eye(4)[codes[:labeled]]
    return x, codes


def test_a_small_table_is_taken_as_it_is():
    x, codes = table()
    assert rows_to_train_on(x, codes, np.ones(len(x)))[0].tolist() == list(range(1_000))


def test_all_labelled_rows_and_as_many_others_as_allowed(few):
    x, codes = table()
    rows, _ = rows_to_train_on(x, codes, np.ones(len(x)))
    assert set(range(30)) <= set(rows.tolist())
    assert len(rows) == 230
    # An even draw: the mean is that of the table.
    np.testing.assert_allclose(x[rows].mean(0), x.mean(0), atol=0.6)


def test_the_choice_depends_on_contents_alone(few):
    x, codes = table()
    chosen = {tuple(row) for row in x[rows_to_train_on(x, codes, np.ones(len(x)))[0]]}
    order = np.random.default_rng(1).permutation(len(x))
    again = x[order][rows_to_train_on(x[order], codes[order], np.ones(len(x)))[0]]
    assert {tuple(row) for row in again} == chosen
    # Copies are kept or left out together, and rows without weight count for nothing.
    copied, copied_codes = np.concatenate([x, x, x + 100.0]), np.concatenate([codes, codes, codes])
    weight = np.repeat([1.0, 2.0, 0.0], len(x))
    rows, factor = rows_to_train_on(copied, copied_codes, weight)
    assert len(rows) == 2 * len(chosen)
    np.testing.assert_allclose((weight[rows] * factor)[copied_codes[rows] < 0].sum(), 3 * 970)
    assert {tuple(row) for row in copied[rows]} == chosen


def test_many_labels_are_thinned_class_by_class(few):
    x, _ = table()
    codes = np.where(np.arange(len(x)) < 8, 0, 1)
    rows, factor = rows_to_train_on(x, codes, np.ones(len(x)))
    assert np.bincount(codes[rows]).tolist() == [5, round(0.2 * 992)]
    # They stand for all of their class.
    np.testing.assert_allclose(np.bincount(codes[rows], factor), [8, 992])


def test_signs_of_zero_and_nan_do_not_matter(few):
    x = np.zeros((300, 2))
    x[::2] = -0.0
    x[:, 1] = np.nan
    assert len(np.unique(thinning._row_keys(x))) == 1
    x[1, 1] = 1.0
    assert len(np.unique(thinning._row_keys(x))) == 2


def test_keys_are_even_and_differ():
    keys = thinning._row_keys(np.arange(40_000.0).reshape(-1, 2))
    assert len(np.unique(keys)) == 20_000
    share = np.bincount((keys >> np.uint64(60)).astype(int), minlength=16) / 20_000
    np.testing.assert_allclose(share, 1 / 16, atol=0.01)


@pytest.mark.parametrize("rows", [0, 1, 65_536, 65_537])
def test_blocks_cover_all_rows(rows):
    covered = [np.arange(rows)[block] for block in blocks(rows)]
    assert np.concatenate(covered).tolist() == list(range(rows))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_mapped_table_is_read_in_parts(few, tmp_path, dtype):
    x, codes = table(3_000)
    mapped = np.memmap(tmp_path / "x", dtype=dtype, mode="w+", shape=x.shape)
    mapped[:] = x
    model = MoMatchClassifier(steps=20, random_state=0)
    expected = model.fit(np.array(mapped), codes).predict_proba(np.array(mapped))
    found = model.fit(mapped, codes).predict_proba(mapped)
    np.testing.assert_array_equal(found, expected)
    assert model.transform(mapped).shape == (3_000, 32)
    order = np.random.default_rng(1).permutation(len(x))
    np.testing.assert_array_equal(model.fit(mapped[order], codes[order]).predict_proba(mapped), expected)
