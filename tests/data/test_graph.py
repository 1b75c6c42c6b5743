"""Labels spread over the graph of neighbours."""

from itertools import product

import numpy as np
import pytest

from momatch.data import graph
from momatch.data.graph import LabelGraph, nearest_neighbors, reach


def naive_spread(x, k, codes, weight, prior, *, alpha, power=2):
    n, K = len(x), codes.max() + 1
    d = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    np.fill_diagonal(d, np.inf)
    near = np.argsort(d, axis=1)[:, :k]
    W = np.zeros((n, n))
    for i in range(n):
        for j in near[i]:
            W[i, j] = np.exp(-(d[i, j] ** 2) / (d[i, near[i, -1]] / 2 * d[j, near[j, -1]] / 2))
    W = (W + W.T) / 2
    S = W / np.sqrt(W.sum(1)[:, None] * W.sum(1)[None])
    Y = np.zeros((n, K))
    for i in range(n):
        if codes[i] >= 0:
            Y[i, codes[i]] = weight[i] / weight[codes == codes[i]].sum()
    F = Y
    for _ in range(200):
        F = alpha * S @ F + (1 - alpha) * Y
    F = (F / F.sum(0)) ** power
    for _ in range(5):
        F = F / F.sum(1, keepdims=True)
        for c in range(K):
            F[:, c] *= prior[c] * weight.sum() / (weight * F[:, c]).sum()
    F = F / F.sum(1, keepdims=True)
    for i in range(n):
        if codes[i] >= 0:
            F[i] = np.eye(K)[codes[i]]
    return F


@pytest.mark.parametrize(("settled", "tolerance"), [(0.0, 1e-6), (graph._SETTLED, 1e-3)])
def test_spread_against_its_definition(monkeypatch, settled, tolerance):
    monkeypatch.setattr(graph, "_SETTLED", settled)
    rng = np.random.default_rng(0)
    x, codes, weight = rng.normal(size=(60, 3)), np.full(60, -1), rng.random(60) + 0.5
    codes[:7] = [0, 1, 2, 0, 1, 0, 0]
    prior = np.array([0.5, 0.3, 0.2])
    found = list(LabelGraph(*nearest_neighbors(x, 6), weight).spread(codes, prior))
    expected = list(product((0.9, 0.99), (1, 2, 4, 8)))
    for spread, (alpha, power) in zip(found, expected, strict=True):
        naive = naive_spread(x, 6, codes, weight, prior, alpha=alpha, power=power)
        np.testing.assert_allclose(spread, naive, atol=tolerance * max(1, power / 2))
        assert 0.1 < spread[7:].max(1).min() < 0.9  # nothing here is a foregone conclusion


def test_a_label_fills_its_cluster_and_no_other():
    x = np.concatenate([np.linspace(0, 1, 20), np.linspace(5, 6, 20), np.linspace(90, 91, 20)])[:, None]
    codes = np.full(60, -1)
    codes[[0, 39]] = 1, 0
    found = LabelGraph(*nearest_neighbors(x, 3), np.ones(60)).spread(codes, np.full(2, 0.5))
    for spread, least in zip(found, 2 * (0.99, 0.999, 0.999, 0.999), strict=True):  # by power
        assert (spread[:20, 1] > least).all()
        assert (spread[20:40, 0] > least).all()
        np.testing.assert_allclose(spread[40:], 0.5)  # where no label reaches, nothing is known


def test_rows_in_one_place_and_rows_without_neighbors():
    x = np.repeat([[0.0], [1.0]], 10, axis=0)
    codes = np.full(20, -1)
    codes[[0, 10]] = 0, 1
    spread = np.stack([*LabelGraph(*nearest_neighbors(x, 4), np.ones(20)).spread(codes, np.full(2, 0.5))])
    assert np.isfinite(spread).all()
    np.testing.assert_allclose(spread.sum(2), 1.0)
    for alone in LabelGraph(*nearest_neighbors(x[:1], 4), np.ones(1)).spread(np.array([0]), np.ones(1)):
        assert alone.tolist() == [[1.0]]


def test_labels_reach_what_is_a_long_way_from_them():
    # A chain with one neighbour each way: what reaches its far end is 10^-37 of the largest.
    x = np.cumsum(np.linspace(1.0, 2.0, 150))[:, None]
    codes = np.full(150, -1)
    codes[[0, 1, 60]] = 0, 0, 1
    half = np.full(2, 0.5)
    _, near, _, _, *far = LabelGraph(*nearest_neighbors(x, 2), np.ones(150)).spread(codes, half)
    np.testing.assert_allclose(near, naive_spread(x, 2, codes, np.ones(150), half, alpha=0.9), atol=1e-4)
    for spread in far[1:]:
        assert (spread[100:, 1] > 0.9).all()


def test_neighbors_against_distances():
    x = np.random.default_rng(0).normal(size=(50, 8))
    d = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    np.fill_diagonal(d, np.inf)
    distance, rows = nearest_neighbors(x, 4)
    np.testing.assert_array_equal(rows, np.argsort(d, axis=1)[:, :4])
    np.testing.assert_allclose(distance, np.sort(d, axis=1)[:, :4])
    assert nearest_neighbors(x[:3], 10)[1].shape == (3, 2)
    assert nearest_neighbors(x[:1], 10)[1].shape == (1, 0)


def test_reach_is_the_distance_of_neighbors_in_the_spread_of_the_data():
    rng = np.random.default_rng(0)
    flat, wide = rng.normal(size=(400, 1)), rng.normal(size=(400, 100))
    for x in (flat, wide):
        d = np.sort(np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1)), axis=1)[:, 10]
        found = reach(nearest_neighbors(x, 10)[0], x)
        np.testing.assert_allclose(found, min(1.0, np.median(d) / np.sqrt((x**2).sum(1).mean())))
    assert reach(nearest_neighbors(flat, 10)[0], flat) < 0.1
    assert reach(nearest_neighbors(wide, 10)[0], wide) == 1.0
    assert reach(nearest_neighbors(flat[:1], 10)[0], flat[:1]) == 0.0
    assert reach(nearest_neighbors(0 * flat, 10)[0], 0 * flat) == 0.0


def test_the_index_of_a_large_table_finds_most_neighbours(monkeypatch):
    x = np.random.default_rng(0).normal(size=(2000, 8))
    exact = nearest_neighbors(x, 5)
    monkeypatch.setattr(graph, "_EXACT", 1000)
    monkeypatch.setattr(graph, "_SEARCHED_AT_ONCE", 300)
    distance, rows = nearest_neighbors(x, 5)
    found = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(exact[1], rows, strict=True)])
    assert found > 0.95
    assert (rows != np.arange(2000)[:, None]).all()
    assert (np.diff(distance, axis=1) >= 0).all()
    np.testing.assert_allclose(distance, np.linalg.norm(x[:, None] - x[rows], axis=2))
    again = nearest_neighbors(x, 5)
    np.testing.assert_array_equal(rows, again[1])


def test_the_index_survives_copies_of_one_row(monkeypatch):
    monkeypatch.setattr(graph, "_EXACT", 10)
    x = np.vstack([np.random.default_rng(0).normal(size=(100, 3)), np.zeros((500, 3))])
    distance, rows = nearest_neighbors(x, 4)
    assert distance.shape == rows.shape == (600, 4)
    assert np.isfinite(distance).all()
    assert (distance[150:] == 0).all()
