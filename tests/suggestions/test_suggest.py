"""Which rows are suggested: against naive versions, and what must never happen."""

import numpy as np
import pytest

from momatch import suggest
from momatch.data.graph import nearest_neighbors
from momatch.suggestions import typical
from momatch.suggestions.choice import _need
from momatch.suggestions.neighborhood import NEAR, NEIGHBORS, Neighborhood
from momatch.suggestions.typical import most_typical

K = 4


def blobs(rng: np.random.Generator, sizes=(40, 40, 40, 40), dims=16, width=0.08):
    """Directions around K far directions, and the blob of each row."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    centers = np.eye(dims)[: len(sizes)]
    x = centers[truth] + width * rng.standard_normal((len(truth), dims))
    order = rng.permutation(len(truth))
    return x[order].astype(np.float32), truth[order]


def neighborhood(x: np.ndarray) -> Neighborhood:
    table = x.astype(np.float64)
    return Neighborhood(table, table, *nearest_neighbors(table, NEIGHBORS))


def directions(x: np.ndarray) -> np.ndarray:
    """What rows are compared by: the directions of their directions as seen from the mean."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    centered = unit - unit.mean(0)
    return centered / np.linalg.norm(centered, axis=1, keepdims=True)


def no_labels(x: np.ndarray) -> np.ndarray:
    return np.full(len(x), -1)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_from_nothing_each_cluster_gives_its_most_typical_row(rng):
    x, truth = blobs(rng, sizes=(60, 50, 40, 30))
    found = suggest(x, n=K)
    assert truth[found.rows].tolist() == [0, 1, 2, 3], "the largest cluster first"
    assert (found.guess == -1).all()
    assert np.isnan(found.confidence).all()
    unit = directions(x)
    for k, row in enumerate(found.rows):
        members = np.flatnonzero(truth == k)
        distance = np.linalg.norm(unit[members][:, None] - unit[members][None], axis=2)
        mean = np.sort(distance, axis=1)[:, 1 : NEIGHBORS + 1].mean(1)
        assert row == members[mean.argmin()]


@pytest.mark.parametrize("labeled", [0, 12])
def test_the_answer_depends_on_the_seed_alone(rng, labeled):
    x, truth = blobs(rng)
    labels = no_labels(x)
    labels[:labeled] = truth[:labeled]
    first, second = suggest(x, labels, n=10, seed=3), suggest(x, labels, n=10, seed=3)
    assert np.array_equal(first.rows, second.rows)
    assert len(set(first.rows.tolist())) == 10


def test_a_labelled_row_and_its_near_duplicates_are_never_suggested(rng):
    x, truth = blobs(rng)
    x = np.concatenate([x, x[:20] + 0.001])  # copies of the rows that are labelled
    labels = no_labels(x)
    labels[:20] = truth[:20]
    labels[20] = -2  # known to be of no class
    found = suggest(x, labels, n=len(x))
    assert not set(found.rows.tolist()) & {*range(21), *range(160, 180)}
    assert len(found.rows) > 50


def test_copies_in_another_file_format_are_near_duplicates(rng):
    """Their weak views differ, so they are some 0.3 of the usual distance apart."""
    x, shift = rng.standard_normal((100, 128)), rng.standard_normal((100, 128))
    x = np.concatenate([x, x + 0.3 * shift, x + 0.7 * shift])
    labels = no_labels(x)
    labels[:100] = 0
    found = set(suggest(x, labels, n=len(x)).rows.tolist())
    assert not found & set(range(200)), "labelled ones and their copies"
    assert len(found) == 100, "not what is merely similar"


def test_no_two_suggested_rows_are_near_duplicates(rng):
    x, _ = blobs(rng)
    x = np.concatenate([x, x, x + 0.001])
    for labels in (None, np.where(np.arange(len(x)) < 2, np.arange(len(x)), -1)):
        rows = suggest(x, labels, n=30).rows
        unit = directions(x)
        distance = np.linalg.norm(unit[rows][:, None] - unit[rows][None], axis=2) + 9.0 * np.eye(len(rows))
        every = np.sort(np.linalg.norm(unit[:, None] - unit[None], axis=2), axis=1)
        spread = np.sqrt(((unit - unit.mean(0)) ** 2).sum(1).mean())
        assert distance.min() > NEAR * min(spread, np.median(every[:, NEIGHBORS])) * (1 - 1e-6)


def test_likely_outliers_are_listed_apart(rng):
    x, truth = blobs(rng)
    p_inlier = np.ones(len(x))
    p_inlier[[7, 3, 5]] = (0.4, 0.1, 0.2)
    labels = no_labels(x)
    labels[[3, 10, 11]] = truth[[3, 10, 11]]
    found = suggest(x, labels, n=len(x), p_inlier=p_inlier)
    assert found.outliers.tolist() == [5, 7], "the most outlying first; a labelled one is none"
    assert not {5, 7} & set(found.rows.tolist())


def test_without_a_judge_a_row_far_from_all_others_is_an_outlier(rng):
    x, _ = blobs(rng, width=0.02)
    x[5] = -np.ones(16)
    found = suggest(x, n=10)
    assert found.outliers.tolist() == [5]
    assert 5 not in found.rows


def test_a_cluster_without_labels_comes_first(rng):
    x, truth = blobs(rng)
    labels = no_labels(x)
    for k in (0, 1, 2):
        labels[np.flatnonzero(truth == k)[:3]] = k
    assert truth[suggest(x, labels, n=1).rows].tolist() == [3]


def test_what_the_model_is_unsure_of_comes_first(rng):
    x, truth = blobs(rng)
    labels = no_labels(x)
    for k in range(K):
        labels[np.flatnonzero(truth == k)[:20]] = k  # with few labels the posterior counts little
    posterior = np.full((len(x), K), 0.01 / 3)
    posterior[np.arange(len(x)), truth] = 0.99
    posterior[truth == 2] = 0.25
    found = suggest(x, labels, n=1, posterior=posterior)
    assert truth[found.rows].tolist() == [2]
    assert found.confidence.tolist() == [0.25]


def test_a_class_that_is_short_of_labels_comes_first(rng):
    x, truth = blobs(rng)
    labels = no_labels(x)
    for k in range(K):
        labels[np.flatnonzero(truth == k)[: 4 if k == 1 else 24]] = k
    posterior = np.full((len(x), K), 0.1)
    posterior[np.arange(len(x)), truth] = 0.7
    assert truth[suggest(x, labels, n=1, posterior=posterior).rows].tolist() == [1]


def test_clusters_with_few_labels_and_much_need_come_first(rng):
    """Four far blobs are the four clusters, whatever the seed."""
    x, truth = blobs(rng, width=0.02)
    need = np.array([1.0, 3.0, 2.0, 9.0])[truth]
    labeled = np.flatnonzero(truth == 3)[:1]
    candidates = np.setdiff1d(np.arange(len(x)), labeled)
    found = most_typical(neighborhood(x), candidates, labeled, need, n=3, seed=0)
    assert truth[found].tolist() == [1, 2, 0]


def naive_clusters(table, weight, fixed, centers):
    """k-means with fixed centers, row by row, from a start."""
    for _ in range(100):
        own = []
        for row in table:
            distances = [((row - center) ** 2).sum() for center in (*centers, *fixed)]
            own.append(int(np.argmin(distances)))
        own = np.array(own)
        centers = np.array(
            [
                np.average(table[own == k], axis=0, weights=weight[own == k]) if (own == k).any() else center
                for k, center in enumerate(centers)
            ]
        )
    return own


def test_centers_of_labelled_rows_stand_amid_their_neighbours(rng):
    near = neighborhood(rng.normal(size=(200, 3)))
    labeled = np.array([3, 50, 120])
    for clusters, count in ((10, 5), (50, 1), (200, 0), (3, 17), (1, 20)):
        expected = [
            np.mean([near.table[row], *near.table[near.neighbors[row, :count]]], axis=0) for row in labeled.tolist()
        ]
        np.testing.assert_allclose(typical._labeled_centers(near, labeled, clusters=clusters), expected)


def test_what_a_label_covers_is_not_asked_for_again(rng):
    """A label at the edge of a blob covers it: the new centers stay in the others."""
    x, truth = blobs(rng)
    center = x[truth == 0].mean(0)
    edge = np.flatnonzero(truth == 0)[((x[truth == 0] - center) ** 2).sum(1).argmax()]
    labels = no_labels(x)
    labels[edge] = 0
    assert set(truth[suggest(x, labels, n=K - 1).rows].tolist()) == set(range(1, K))


def test_labelled_rows_are_centers_that_stay(rng):
    table, weight = rng.normal(size=(60, 3)), rng.random(60)
    fixed, start = table[:4] + 0.01, table[10:13]
    bound = ((table[:, None] - fixed[None]) ** 2).sum(2).min(1)
    own, squared = typical._moved(table, weight, bound, start)
    expected = naive_clusters(table, weight, fixed, start)
    is_new = squared < bound
    np.testing.assert_array_equal(is_new, expected < 3)
    np.testing.assert_array_equal(own[is_new], expected[is_new])


def test_more_rows_than_clusters_are_taken_from_each_in_turn(rng, monkeypatch):
    monkeypatch.setattr("momatch.suggestions.typical._MOST_CLUSTERS", K)
    x, truth = blobs(rng, width=0.1)
    found = most_typical(neighborhood(x), np.arange(len(x)), np.empty(0, np.int64), np.ones(len(x)), n=12, seed=0)
    assert np.bincount(truth[found]).tolist() == [3] * K
    assert sorted(truth[found[:K]].tolist()) == list(range(K))


def test_a_queue_begins_with_the_rows_that_would_be_chosen_alone(rng):
    x, truth = blobs(rng)
    given = (neighborhood(x), np.arange(len(x)), np.empty(0, np.int64), np.ones(len(x)))
    queue = most_typical(*given, n=3 * K, clusters=K, seed=0)
    np.testing.assert_array_equal(queue[:K], most_typical(*given, n=K, seed=0))
    assert [sorted(truth[queue[i : i + K]]) for i in range(0, 3 * K, K)] == [list(range(K))] * 3


def test_the_need_of_a_label_agrees_with_the_formula(rng):
    posterior, codes = rng.dirichlet(np.ones(3), 20), np.repeat([-1, 0, 1, -2], 5)
    trust = 10 / (10 + 10 * 3)
    expected = [
        (1 - trust * max(p)) * sum(p_k * (1 + m_k) ** (-trust / 2) for p_k, m_k in zip(p, (5, 5, 0), strict=True))
        for p in posterior
    ]
    np.testing.assert_allclose(_need(posterior, codes), expected)
    assert (_need(posterior, np.where(codes == 1, -1, codes)) == 1).all(), "of one class nothing is known"


def test_a_large_pool_is_thinned_and_keeps_the_labelled_rows(rng, monkeypatch):
    monkeypatch.setattr("momatch.suggestions.choice.MOST_ROWS", 50)
    x, truth = blobs(rng)
    labels = no_labels(x)
    labels[-8:] = truth[-8:]
    found = suggest(x, labels, n=5, seed=1)
    assert len(found.rows) == 5
    assert found.rows.max() < len(x) - 8
    assert not np.array_equal(found.rows, suggest(x, labels, n=5, seed=2).rows)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_tiny_pools(size):
    x = np.eye(8, dtype=np.float32)[:size]
    assert sorted(suggest(x, n=20).rows) == list(range(size))
    labels = no_labels(x)
    if size > 1:
        labels[0] = 0
        assert sorted(suggest(x, labels, n=20).rows) == list(range(1, size))


def test_copies_of_one_image_are_suggested_once():
    assert len(suggest(np.ones((30, 4), np.float32), n=5).rows) == 1
    nothing = np.empty(0, np.int64)
    assert len(most_typical(neighborhood(np.ones((30, 4))), nothing, nothing, np.ones(30), n=5, seed=0)) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n: got 0, expected an integer of at least 1"),
        ({"features": np.full((6, 3), np.nan)}, "NaN"),
        ({"labels": np.full(6, -3)}, "labels: got int64"),
        ({"labels": np.zeros(6, np.int64)}, "6 labelled images, expected some without a label"),
        ({"posterior": np.full((6, 2), 0.7)}, "that sum to 1"),
        ({"posterior": np.ones((6, 1)), "labels": np.array([1, -1, -1, -1, -1, -1])}, "K above every label"),
        ({"p_inlier": np.full(6, 1.5)}, "from 0 to 1"),
    ],
)
def test_bad_arguments_say_what_was_expected(changes, message):
    given = {"features": np.random.default_rng(0).random((6, 3)), "labels": np.full(6, -1), **changes}
    with pytest.raises(ValueError, match=message):
        suggest(**given)
