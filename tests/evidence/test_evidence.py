"""Evidence: the labels decide what is believed."""

import pickle

import numpy as np
import pytest

from momatch.data.graph import LabelGraph, nearest_neighbors
from momatch.evidence import Blend, Neighborhood, gather_evidence, views
from momatch.evidence.blend import _reproducing_share, _trust_in_network
from momatch.evidence.evidence import _folds


def gathered(x, codes, *, graph=True, is_blended=False, seed=0, weight=None):
    weight = np.ones(len(x)) if weight is None else weight
    spread = LabelGraph(*nearest_neighbors(x, 6), weight).spread if graph else None
    settings = {"num_classes": int(codes.max()) + 1, "spread": spread, "is_blended": is_blended, "seed": seed}
    return gather_evidence(x, codes, weight, **settings)


def some_labels(truth, per_class, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.full(len(truth), -1)
    for k in np.unique(truth):
        rows = rng.choice(np.flatnonzero(truth == k), per_class, replace=False)
        codes[rows] = k
    return codes


def rings(n=600, seed=0):
    """Two rings, one in the other: neighbours know, a line does not."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % 2
    angle = rng.uniform(0, 2 * np.pi, n)
    radius = 1.0 + 2.0 * truth + 0.1 * rng.normal(size=n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1), truth


def slope(n=600, seed=0):
    """One cloud, divided by a plane: a line knows, neighbours do not."""
    x = np.random.default_rng(seed).normal(size=(n, 12))
    return x, (x.sum(1) > 0).astype(np.int64)


def rare_class(n, features, *, share, distance):
    """Two Gaussians, of which the second has a small share."""
    rng = np.random.default_rng(0)
    truth = (rng.random(n) < share).astype(np.int64)
    return rng.normal(size=(n, features)) + distance * truth[:, None], truth


def test_where_classes_are_clusters_the_graph_is_believed():
    x, truth = rings()
    evidence, of_rows = gathered(x, some_labels(truth, 8))
    assert evidence.trust > 0.95
    assert of_rows.floor < 0.6
    assert (of_rows.guide.argmax(1) == truth).mean() > 0.95


def test_where_they_are_not_the_supervised_views_are():
    x, truth = slope()
    evidence, of_rows = gathered(x, some_labels(truth, 20))
    assert evidence.trust < 0.2
    assert of_rows.floor > 0.8
    alone = (evidence.supervised(x)[1].argmax(1) == truth).mean()
    assert (of_rows.posterior.argmax(1) == truth).mean() > alone - 0.03


def test_beside_the_supervised_views_a_network_is_taught_the_graph_as_far_as_it_beats_them():
    x, truth = rings()
    codes = some_labels(truth, 8)
    evidence, blended = gathered(x, codes, is_blended=True)
    _, alone = gathered(x, codes)
    np.testing.assert_array_equal(blended.posterior, alone.posterior)
    assert blended.floor == 1.0 - evidence.trust < alone.floor
    # Both lie on the line from the posterior to the graph.
    np.testing.assert_allclose(
        (blended.guide - blended.posterior) * (1.0 - alone.floor),
        (alone.guide - alone.posterior) * evidence.trust,
        atol=1e-12,
    )


def test_labels_stay_as_they_are():
    x, truth = rings()
    codes = some_labels(truth, 5)
    for values in (gathered(x, codes)[1].posterior, gathered(x, codes)[1].guide):
        np.testing.assert_array_equal(values[codes >= 0], np.eye(2)[codes[codes >= 0]])
        np.testing.assert_allclose(values.sum(1), 1)


def test_classes_are_as_frequent_as_the_evidence_says_on_average():
    x, truth = slope()
    codes, weight = some_labels(truth, 10), np.random.default_rng(0).uniform(0.5, 2, len(truth))
    evidence, of_rows = gather_evidence(x, codes, weight, num_classes=2, spread=None, is_blended=False, seed=0)
    expected = sum(w * row for w, row in zip(weight, of_rows.posterior, strict=True)) / weight.sum()
    np.testing.assert_allclose(evidence.frequencies, expected)


def test_balanced_labels_of_an_unbalanced_pool():
    x, truth = rare_class(1000, 4, share=0.1, distance=3.0)
    evidence, _ = gathered(x, some_labels(truth, 10))
    assert evidence.frequencies[1] < 0.3
    assert (evidence(x).argmax(1) == truth).mean() > 0.95
    drawn = np.full(1000, -1)
    drawn[:40] = truth[:40]
    np.testing.assert_array_equal(gathered(x, drawn)[0].prior_ratio, [1, 1])


@pytest.mark.parametrize("counts", [[1, 1], [1, 5], [2, 2], [30, 1]])
@pytest.mark.parametrize("graph", [True, False])
def test_few_labels(counts, graph):
    x, truth = rings()
    codes = np.full(len(x), -1)
    for k, count in enumerate(counts):
        codes[np.flatnonzero(truth == k)[:count]] = k
    evidence, of_rows = gathered(x, codes, graph=graph)
    assert np.isfinite(of_rows.posterior, of_rows.guide).all()
    assert np.isfinite(evidence(x)).all()
    assert 0 <= evidence.trust <= 1


def test_never_all_labels_of_a_class_are_hidden():
    labels = np.array([0] * 12 + [1] * 2 + [2])
    folds = _folds(labels, 100, np.random.default_rng(0))
    assert np.sum(folds, 0).tolist() == [1] * 14 + [0]
    for fold in folds:
        assert set(labels[~fold]) == {0, 1, 2}


def test_the_same_seed_gives_the_same_evidence():
    x, truth = rings()
    codes = some_labels(truth, 6)
    first, second = (gathered(x, codes, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first[1].posterior, second[1].posterior)
    np.testing.assert_array_equal(first[0](x), pickle.loads(pickle.dumps(second[0]))(x))
    np.testing.assert_array_equal(first[0](x[5:6]), first[0](x)[5:6])


def test_the_blend_follows_the_trust():
    x, truth = rings()
    evidence, of_rows = gathered(x, some_labels(truth, 8))
    network = np.eye(2)[truth] * 0.9 + 0.05
    blend = Blend.fit(evidence, x, network, of_rows.posterior, of_rows.guide)
    assert blend(x, network).max(1).mean() == pytest.approx(of_rows.posterior.max(1).mean(), abs=1e-3)
    assert (blend(x, network).argmax(1) == truth).all()
    shares = blend.shares()
    assert shares["network"] > 0.9
    assert sum(share for name, share in shares.items() if name != "trust") == pytest.approx(1)
    without = Blend.fit(
        gathered(x, some_labels(truth, 8), graph=False)[0], x, network, of_rows.posterior, of_rows.guide
    )
    assert without.evidence.trust == 0


def naive_neighborhood(x, table, taught, count):
    found = []
    for row in x:
        distance = np.sqrt(((row - table) ** 2).sum(1))
        near = np.argsort(distance)[:count]
        weight = np.exp(-((2 * distance[near] / distance[near[-1]]) ** 2))
        found.append((weight[:, None] * taught[near]).sum(0) / weight.sum())
    return np.array(found)


def test_neighbours_against_their_definition():
    rng = np.random.default_rng(0)
    table, x = rng.normal(size=(700, 5)) + 100, rng.normal(size=(600, 5)) + 100
    taught = rng.dirichlet(np.ones(3), 700)
    near = Neighborhood(table, taught, 6)
    np.testing.assert_allclose(near(x), naive_neighborhood(x, table, taught, 6))
    # A row of the pool has no say about itself.
    others = [
        naive_neighborhood(table[i : i + 1], np.delete(table, i, 0), np.delete(taught, i, 0), 6)[0] for i in (0, 9)
    ]
    np.testing.assert_allclose(near(table, np.arange(700))[[0, 9]], others)
    # What is said of a sample does not depend on the others.
    np.testing.assert_array_equal(near(x)[300:301], near(x[300:301]))
    assert near(x[:0]).shape == (0, 3)


@pytest.mark.parametrize("scale", [1e-60, 1e-6, 1.0, 1e150])
def test_neighbours_that_single_precision_cannot_tell_apart(scale):
    rng = np.random.default_rng(0)
    table, x = 1e-6 * rng.normal(size=(900, 4)), 1e-6 * rng.normal(size=(40, 4))
    table[0], x[0] = 1.0, 1e9  # the unit of what single precision can hold; far from everything
    taught = rng.dirichlet(np.ones(3), 900)
    near = Neighborhood(scale * table, taught, 6)
    np.testing.assert_allclose(near(scale * x[1:]), naive_neighborhood(x[1:], table, taught, 6), rtol=1e-5)
    assert np.isfinite(near(scale * x)).all()


@pytest.mark.parametrize("rows", [1, 2, 6, 7])
def test_few_neighbours_and_copies(rows):
    table, taught = np.zeros((rows, 2)), np.eye(2)[np.arange(rows) % 2]
    for own in (None, np.arange(rows)):
        found = Neighborhood(table, taught, 6)(table, own)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_allclose(Neighborhood(table[:1], taught[:1], 6)(table[:1], np.array([0])), 0.5)


def test_neighbours_speak_as_one_with_the_network():
    x, truth = rings()
    evidence, of_rows = gathered(x, some_labels(truth, 8))
    network, rows = np.full((len(x), 2), 0.5) + 0.01 * np.eye(2)[truth], np.arange(len(x))
    near = Neighborhood(x, of_rows.guide, 6)
    blend = Blend.fit(evidence, x, network, of_rows.posterior, of_rows.guide, neighborhood=near, rows=rows)
    new, known = rings(seed=1)
    unsure = np.full((len(x), 2), 0.5)
    assert (blend(new, unsure).argmax(1) == known).mean() > 0.95
    shares = blend.shares()
    assert shares["network"] == shares["neighbours"] > 0.4
    assert sum(share for name, share in shares.items() if name != "trust") == pytest.approx(1)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(blend))(new, unsure), blend(new, unsure))


def test_a_network_that_did_not_learn_the_evidence_is_not_believed():
    x, truth = rings()
    evidence, of_rows = gathered(x, some_labels(truth, 8))
    assert evidence.trust > 0.95
    wrong = np.eye(2)[1 - truth] * 0.9 + 0.05
    assert Blend.fit(evidence, x, wrong, of_rows.posterior, of_rows.guide).share < 0.01


@pytest.mark.parametrize(
    ("trust", "right", "expected"),
    [(0.0, 100, 0.0), (0.5, 100, 0.5), (1.0, 90, 1.0), (1.0, 0, 0.0), (0.8, 99, 4 * 0.99**60 / (1 + 4 * 0.99**60))],
)
def test_the_trust_in_a_network_falls_with_what_it_did_not_learn(trust, right, expected):
    taught = np.eye(2)[[0] * 100]
    network = np.eye(2)[[0] * right + [1] * (100 - right)]
    assert _trust_in_network(trust, network, taught) == pytest.approx(expected)


def test_the_share_is_the_one_that_reproduces_the_evidence():
    x, truth = slope()
    evidence, _ = gathered(x, some_labels(truth, 20))
    network = np.random.default_rng(0).dirichlet(np.ones(2), len(x))
    supervised = evidence(x)
    for share in (0.0, 0.3, 1.0):
        target = supervised ** (1 - share) * network**share
        target /= target.sum(1, keepdims=True)
        logarithm = np.log(np.stack([supervised, network]))
        assert _reproducing_share(logarithm, target) == pytest.approx(share, abs=1e-3)


def test_without_a_pool_the_supervised_views_answer():
    x, truth = slope()
    evidence, _ = gathered(x, truth)
    blend = Blend.fit(evidence, x[:0], *[np.empty((0, 2))] * 3)
    wrong = np.eye(2)[1 - truth]
    np.testing.assert_allclose(blend(x, wrong), evidence(x), atol=2e-3)


def test_enough_labels_are_hidden_in_large_tables():
    labels = np.repeat([0, 1], 100)
    for count, expected in ((10, 5), (50, 4), (200, 1)):
        folds = _folds(labels[np.linspace(0, 199, count).astype(int)], 50_000, np.random.default_rng(0))
        assert len(folds) == expected


def test_with_all_labels_the_confidence_is_that_in_hidden_ones():
    x, truth = slope()
    _, of_rows = gathered(x, truth)
    assert 0.5 < of_rows.confidence(np.empty(0, dtype=np.int64)) < 1
    _, of_rows = gathered(x[:2], np.array([0, 1]))
    assert of_rows.confidence(np.empty(0, dtype=np.int64)) is None


def test_a_rare_class_is_in_every_view(monkeypatch):
    monkeypatch.setattr(views, "_MOST_SAMPLES", 50)
    x, labels = np.random.default_rng(0).normal(size=(500, 3)), np.zeros(500, dtype=np.int64)
    labels[7] = 1
    fitted = views.SupervisedViews.fit(x, labels, np.ones(500), num_classes=2, seed=0)
    assert (fitted(x[7:8])[:, 0, 1] > 0).all()


def test_a_clear_rare_class_is_as_rare_as_it_is():
    x, truth = rare_class(2000, 3, share=0.02, distance=8.0)
    evidence, _ = gathered(x, some_labels(truth, 8))
    assert evidence.frequencies[1] < 0.1
