"""Frequencies of classes, of labels and of pools."""

import numpy as np
import pytest

from momatch.evidence.prior import is_balanced_draw, label_prior, pool_prior, reweighted


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([10, 10], True),
        ([11, 9], False),
        ([5, 5, 5], True),
        ([5, 5, 4], False),
        ([5, 5, 5, 2], True),  # a class of which there were only two
        ([9, 9, 2, 1], False),
        ([1, 1, 1], False),  # one of each says nothing
        ([40], False),
    ],
)
def test_draws(counts, expected):
    assert is_balanced_draw(np.array(counts), label_prior(np.array(counts, dtype=float))) is expected


@pytest.mark.parametrize(
    ("counts", "pool", "expected"),
    [
        ([20, 19], [0.94, 0.06], True),  # such labels would never be drawn at random
        ([20, 19], [0.6, 0.4], False),
        ([20, 10], [0.94, 0.06], False),  # nobody draws so
        ([4, 3], [0.98, 0.02], True),
        ([4, 3], [0.9, 0.1], False),  # seven labels say little
        ([10, 9], [0.8, 0.2], True),
        ([10, 9, 8], [1.0, 0.0, 0.0], True),
        ([5, 0], [0.5, 0.5], False),
    ],
)
def test_nearly_balanced_draws_contradict_the_pool(counts, pool, expected):
    assert is_balanced_draw(np.array(counts), np.array(pool)) is expected


def test_no_class_is_impossible():
    np.testing.assert_allclose(label_prior(np.array([3.0, 0.0])), [3.5 / 4, 0.5 / 4])


def gaussian_posterior(x, prior):
    """Of two unit Gaussians at -2 and 2."""
    amount = np.stack([prior[0] * np.exp(-0.5 * (x + 2) ** 2), prior[1] * np.exp(-0.5 * (x - 2) ** 2)], 1)
    return amount / amount.sum(1, keepdims=True)


def test_the_pool_shows_its_own_frequencies():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(4000) < 0.9, -2, 2) + rng.normal(size=4000)
    prior = np.array([0.5, 0.5])
    found = pool_prior(gaussian_posterior(x, prior), np.ones(4000), prior)
    # Drawn a little towards the labels' frequencies: posteriors are nearly certain.
    assert found[0] == pytest.approx(0.9, abs=0.03)
    weighted = pool_prior(gaussian_posterior(x, prior), np.where(x < 0, 1.0, 9.0), prior)
    assert weighted[0] == pytest.approx(0.5, abs=0.05)


def test_a_pool_that_shows_nothing_changes_nothing():
    prior = np.array([0.2, 0.8])
    np.testing.assert_allclose(pool_prior(np.tile(prior, (50, 1)), np.ones(50), prior), prior)


def test_reweighting_is_bayes_rule():
    x = np.linspace(-3, 3, 7)
    before, after = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    np.testing.assert_allclose(reweighted(gaussian_posterior(x, before), after / before), gaussian_posterior(x, after))
