"""Pooling of views, against plain loops and a general optimiser."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from momatch.evidence.pooling import log_likelihood, pooled, pooling_weights

K = 3


def made(views=2, m=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(K), (views, m)), rng.integers(K, size=m), rng.uniform(0.5, 2, m)


def naive(views, weights):
    rows = []
    for i in range(views.shape[1]):
        amounts = [
            math.prod((0.98 * view[i][k] + 0.02 / K) ** w for view, w in zip(views, weights, strict=True))
            for k in range(K)
        ]
        rows.append([amount / sum(amounts) for amount in amounts])
    return np.array(rows)


def test_the_posterior_is_that_of_a_plain_loop():
    views, _, _ = made()
    np.testing.assert_allclose(pooled(views, np.array([0.3, 1.7])), naive(views, [0.3, 1.7]), rtol=1e-12)


def test_the_likelihood_is_that_of_a_plain_loop():
    views, labels, weight = made()
    posterior = naive(views, [0.3, 1.7])
    expected = sum(w * math.log(row[y]) for row, y, w in zip(posterior, labels, weight, strict=True))
    assert log_likelihood(views, np.array([0.3, 1.7]), labels, weight) == pytest.approx(expected)


def test_the_weights_minimise_what_they_should():
    views, labels, weight = made(views=3, m=60)
    views[1, np.arange(60), labels] += 1.0  # a good view
    views[1] /= views[1].sum(1, keepdims=True)
    beginning = np.full(3, 1 / 3)

    def loss(w):
        return 3 * ((w - beginning) ** 2).sum() - log_likelihood(views, w, labels, weight)

    found = pooling_weights(views, labels, weight, beginning)
    for step in np.vstack([np.eye(3), -np.eye(3)]) * 1e-3:
        assert loss(found) <= loss(np.clip(found + step, 0.05 / 3, 4)) + 1e-9
    assert found[1] > 3 * found[[0, 2]].max()


def test_views_that_mislead_keep_a_little_weight():
    views, labels, weight = made()
    views[:] = np.eye(K)[(labels + 1) % K]
    beginning = np.array([0.5, 0.0])
    np.testing.assert_allclose(pooling_weights(views, labels, weight, beginning), [0.025, 0.0], atol=1e-9)


def test_without_labels_they_stay_where_they_begin():
    views, labels, weight = made(m=0)
    np.testing.assert_array_equal(pooling_weights(views, labels, weight, np.array([0.5, 0.2])), [0.5, 0.2])


@given(st.integers(0, 2**32 - 1))
def test_a_row_does_not_depend_on_the_others(seed):
    views, _, _ = made(views=4, m=9, seed=seed)
    weights = np.array([0.1, 2.0, 0.0, 1.0])
    np.testing.assert_array_equal(pooled(views, weights)[3:4], pooled(views[:, 3:4], weights))
