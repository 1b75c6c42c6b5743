"""The weighted set of samples, what is kept out of it, and its scaling."""

import numpy as np
import pytest

from momatch.estimator.samples import MAX_CALIBRATION, hold_out, weighted_set


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_merging_against_a_dictionary(rng):
    x = rng.integers(0, 3, (200, 2)).astype(float) * np.array([1.0, -1.0])
    x[x == 0] = -0.0
    codes, weight = rng.integers(-1, 2, 200), rng.integers(0, 4, 200).astype(float)
    naive: dict[tuple[float, ...], float] = {}
    for row, code, w in zip(x.tolist(), codes.tolist(), weight.tolist(), strict=True):
        if w:
            key = (*row, code)
            naive[key] = naive.get(key, 0.0) + w
    merged = weighted_set(x, codes, weight)
    found = {(*row, code): w for row, code, w in zip(merged.x.tolist(), merged.codes, merged.weight, strict=True)}
    assert found == naive
    assert len(merged) == len(naive)
    assert (np.diff(merged.codes) >= 0).all()


def test_order_and_repetition_do_not_matter(rng):
    x, codes, weight = rng.normal(size=(30, 3)), rng.integers(-1, 3, 30), rng.integers(0, 4, 30)
    once = weighted_set(x, codes, weight.astype(float))
    order = rng.permutation(weight.sum())
    again = weighted_set(x.repeat(weight, 0)[order], codes.repeat(weight)[order], np.ones(weight.sum()))
    for name in ("x", "codes", "weight"):
        np.testing.assert_array_equal(getattr(once, name), getattr(again, name))


def test_sums_of_broken_weights_do_not_depend_on_the_order(rng):
    x, weight = np.zeros((50, 1)), rng.random(50)
    sums = {weighted_set(x, np.zeros(50, int), rng.permutation(weight)).weight.item() for _ in range(20)}
    assert len(sums) == 1


def test_held_out_samples_leave_with_their_copies_and_the_labelled_ones_alone(rng):
    x, codes = rng.normal(size=(100, 2)), np.repeat([-1, 0, 1], [80, 10, 10])
    samples = weighted_set(x.repeat(2, 0), codes.repeat(2), np.ones(200))
    training, held_out, source = hold_out(samples, 0.25, seed=3)
    assert source == "unlabeled"
    assert held_out.shape == (20, 2)
    assert not {*map(tuple, held_out)} & {*map(tuple, training.x)}
    assert training.weight.sum() == 160
    assert training.weight[training.codes >= 0].sum() == 40
    # Samples are conserved: what was held out and what is left make up the whole.
    whole = weighted_set(
        np.concatenate([training.x, held_out]),
        np.concatenate([training.codes, np.full(20, -1)]),
        np.concatenate([training.weight, np.full(20, 2.0)]),
    )
    np.testing.assert_array_equal(whole.x, samples.x)
    np.testing.assert_array_equal(whole.weight, samples.weight)
    assert not np.array_equal(held_out, hold_out(samples, 0.25, seed=4)[1])
    # Which ones leave is a matter of the samples: weights that are all alike say nothing.
    once = weighted_set(x, codes, np.ones(100))
    np.testing.assert_array_equal(held_out, hold_out(once, 0.25, seed=3)[1])


def test_a_sample_that_has_most_of_the_weight_stays(rng):
    x, weight = rng.normal(size=(100, 2)), np.ones(100)
    weight[7] = 1e6
    samples = weighted_set(x, np.full(100, -1), weight)
    for seed in range(20):
        training, held_out, _ = hold_out(samples, 0.1, seed=seed)
        assert tuple(x[7]) in {*map(tuple, training.x)}
        assert len(held_out) == 10
    # Of eight kinds none can be spared where a tenth is to go; of ten, one can.
    for kinds, source in ((8, "training"), (10, "unlabeled")):
        samples = weighted_set(np.repeat(x[:kinds], 30, 0), np.full(30 * kinds, -1), np.full(30 * kinds, 0.1))
        assert hold_out(samples, 0.1, seed=0)[2] == source


def test_a_sample_that_is_also_there_with_a_label_is_not_held_out(rng):
    x = rng.normal(size=(40, 2))
    samples = weighted_set(np.concatenate([x, x[:20]]), np.repeat([-1, 0], [40, 20]), np.ones(60))
    training, held_out, _ = hold_out(samples, 0.9, seed=0)
    assert len(held_out) == 18
    assert not {*map(tuple, held_out)} & {*map(tuple, training.x)}


def test_weights_that_are_no_counts_hold_out_whole_samples(rng):
    samples = weighted_set(rng.normal(size=(50, 2)), np.full(50, -1), rng.random(50) + 0.01)
    training, held_out, _ = hold_out(samples, 0.2, seed=0)
    assert len(held_out) == 10
    assert len(training) == 40
    assert not {*map(tuple, held_out)} & {*map(tuple, training.x)}


@pytest.mark.parametrize(("per_class", "source", "m"), [(60, "labeled", 12), (40, "training", 80)])
def test_labelled_samples_are_held_out_only_where_there_are_plenty(rng, per_class, source, m):
    codes = np.repeat([0, 1], per_class)
    samples = weighted_set(rng.normal(size=(len(codes), 2)), codes, np.ones(len(codes)))
    training, held_out, found = hold_out(samples, 0.1, seed=0)
    assert (found, len(held_out)) == (source, m)
    assert training.weight.sum() == len(codes) - (m if source == "labeled" else 0)


def test_no_class_loses_its_samples(rng):
    codes = np.repeat([0, 1], [400, 1])
    samples = weighted_set(rng.normal(size=(401, 2)), codes, np.ones(401))
    for seed in range(5):
        training, _, _ = hold_out(samples, 0.9, seed=seed)
        assert set(training.codes) == {0, 1}


def test_nothing_to_spare(rng):
    samples = weighted_set(rng.normal(size=(5, 2)), np.array([-1, -1, 0, 1, 1]), np.ones(5))
    assert hold_out(samples, 0.1, seed=0)[2] == "training"
    assert hold_out(samples, 0.0, seed=0)[2] == "training"


def test_calibration_is_bounded(rng):
    n = MAX_CALIBRATION + 1000
    samples = weighted_set(rng.normal(size=(n, 1)), np.full(n, -1), np.ones(n))
    assert len(hold_out(samples, 0.95, seed=0)[1]) == MAX_CALIBRATION
