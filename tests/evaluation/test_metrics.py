"""Metrics against naive versions in plain Python, and in their invariants."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from momatch.evaluation.metrics import (
    alignment,
    auroc,
    calibration,
    compactness,
    confusion_matrix,
    fpr95,
    log_doubt,
    negative_log_likelihood,
)

#: Few values, so that ties are the rule; and the values that break arithmetic.
SCORES = st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0, math.inf]), min_size=1, max_size=30)


def softmax(row):
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


def naive_ece(log_joint, labels, bins=15):
    members = [[] for _ in range(bins)]
    for row, label in zip(log_joint.double().tolist(), labels.tolist(), strict=True):
        posterior = softmax(row)
        confidence = max(posterior)
        b = next(b for b in range(bins) if confidence <= (b + 1) / bins)
        members[b].append((confidence, posterior.index(confidence) == label))
    error = 0.0
    for group in filter(None, members):
        gap = sum(right for _, right in group) / len(group) - sum(c for c, _ in group) / len(group)
        error += len(group) / len(labels) * abs(gap)
    return error


def naive_auroc(inliers, outliers):
    wins = sum((o > i) + 0.5 * (o == i) for o in outliers for i in inliers)
    return wins / (len(inliers) * len(outliers))


def naive_fpr95(inliers, outliers):
    thresholds = [t for t in inliers if 100 * sum(i <= t for i in inliers) >= 95 * len(inliers)]
    return sum(o <= min(thresholds) for o in outliers) / len(outliers)


def scores(values):
    return torch.tensor(values, dtype=torch.float64)


# --- Calibration ---


@pytest.mark.parametrize(("n", "K", "scale"), [(200, 4, 3.0), (50, 10, 0.1), (7, 2, 100.0), (1, 3, 1.0)])
def test_calibration_error_is_the_naive_one(n, K, scale):
    log_joint, labels = scale * torch.randn(n, K), torch.randint(0, K, (n,))
    assert calibration(log_joint, labels).error == pytest.approx(naive_ece(log_joint, labels), abs=1e-12)


def test_calibration_error_ignores_the_order_of_samples_and_the_scale_of_the_density():
    log_joint, labels, order = torch.randn(90, 5).double(), torch.randint(0, 5, (90,)), torch.randperm(90)
    error = calibration(log_joint, labels).error
    assert calibration(log_joint[order], labels[order]).error == pytest.approx(error, abs=1e-12)
    assert calibration(log_joint + torch.randn(90, 1), labels).error == pytest.approx(error, abs=1e-12)


def test_calibration_bins_are_open_below_and_closed_above():
    # Posteriors 0.5 and 1 lie exactly on edges of two bins; both belong to the lower one.
    log_joint = torch.tensor([[0.0, 0.0], [0.0, -math.inf]])
    assert calibration(log_joint, torch.tensor([0, 0]), bins=2).count.tolist() == [1, 1]


def test_a_sure_model_is_perfect_or_hopeless():
    log_joint = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    assert calibration(log_joint, torch.tensor([0, 1])).error == 0.0
    assert calibration(log_joint, torch.tensor([1, 0])).error == 1.0


def test_one_class_is_always_right():
    log_joint, labels = torch.randn(5, 1), torch.zeros(5, dtype=torch.long)
    assert calibration(log_joint, labels).error == 0.0
    assert negative_log_likelihood(log_joint, labels) == 0.0


# --- Likelihood, confusion, compactness ---


def test_negative_log_likelihood_is_the_naive_one():
    log_joint, labels = torch.randn(40, 3), torch.randint(0, 3, (40,))
    rows = zip(log_joint.double().tolist(), labels.tolist(), strict=True)
    naive = sum(-math.log(softmax(row)[label]) for row, label in rows) / 40
    assert negative_log_likelihood(log_joint, labels) == pytest.approx(naive, rel=1e-12)


def test_an_impossible_truth_has_infinite_negative_log_likelihood():
    assert negative_log_likelihood(torch.tensor([[0.0, -math.inf]]), torch.tensor([1])) == math.inf


def test_confusion_rows_are_the_truth():
    predicted, labels = torch.tensor([0, 2, 2, 1]), torch.tensor([0, 0, 2, 2])
    assert confusion_matrix(predicted, labels, 3).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 1]]


def test_alignment_is_the_naive_one_and_does_not_depend_on_scale():
    z, centers = torch.randn(60, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    labels = torch.arange(60) % 4  # nothing is of class 4
    means = [z[labels == k].mean(0) for k in range(4)]

    def size(vectors):
        return (sum(float(v @ v) for v in vectors) / len(vectors)) ** 0.5

    middle, middle_of_means = centers[:4].mean(0), sum(means) / 4
    spread = size([center - middle for center in centers[:4]]) / size([mean - middle_of_means for mean in means])
    within = size([z[i] - means[labels[i]] for i in range(60)])
    offset = size([means[k] - centers[k] for k in range(4)]) / within
    assert alignment(z, centers, labels) == pytest.approx((spread, offset), rel=1e-12)
    assert alignment(5 * z - 2, 5 * centers - 2, labels) == pytest.approx((spread, offset), rel=1e-9)
    assert alignment(z, torch.zeros(5, 3, dtype=torch.float64), labels)[0] == 0.0
    assert alignment(z, torch.stack([*means, means[0]]), labels) == pytest.approx((1.0, 0.0))
    assert alignment(z[:1], centers, labels[:1]) == (None, None)


def test_compactness_is_the_naive_one_and_moves_with_the_space():
    z, centers, assignment = torch.randn(30, 3), torch.randn(4, 3), torch.randint(0, 4, (30,))
    naive = sum(math.dist(z[i].tolist(), centers[assignment[i]].tolist()) for i in range(30)) / 30
    assert compactness(z, centers, assignment) == pytest.approx(naive, rel=1e-12)
    z, centers = z.double(), centers.double()
    assert compactness(3 * z + 7, 3 * centers + 7, assignment) == pytest.approx(3 * naive, rel=1e-6)
    assert compactness(centers[assignment], centers, assignment) == 0.0


# --- Doubt ---


def test_log_doubt_is_the_naive_one():
    log_joint = torch.randn(50, 4)
    naive = [math.log(1 - max(softmax(row))) for row in log_joint.double().tolist()]
    assert log_doubt(log_joint).tolist() == pytest.approx(naive, rel=1e-9)


def test_log_doubt_tells_sure_samples_apart():
    # The largest posterior of each rounds to exactly 1, even in float64.
    doubt = log_doubt(torch.tensor([[0.0, -100.0], [0.0, -1000.0], [0.0, -5000.0]]))
    assert doubt.tolist() == pytest.approx([-100.0, -1000.0, -5000.0])


def test_log_doubt_of_ties_and_of_one_class():
    assert log_doubt(torch.zeros(1, 4)).tolist() == pytest.approx([math.log(3 / 4)])
    assert log_doubt(torch.randn(3, 1)).tolist() == [-math.inf] * 3


# --- Separation ---


@settings(deadline=None)
@given(SCORES, SCORES)
def test_auroc_and_fpr95_are_the_naive_ones(inliers, outliers):
    assert auroc(scores(inliers), scores(outliers)) == pytest.approx(naive_auroc(inliers, outliers), abs=1e-12)
    assert fpr95(scores(inliers), scores(outliers)) == pytest.approx(naive_fpr95(inliers, outliers), abs=1e-12)


def test_constant_scores_are_chance():
    assert auroc(torch.ones(5), torch.ones(3)) == 0.5
    assert auroc(torch.full((5,), -math.inf), torch.full((3,), -math.inf)) == 0.5
    assert fpr95(torch.ones(5), torch.ones(3)) == 1.0


def test_perfect_and_reversed_scores():
    low, high = torch.arange(20.0), torch.arange(100.0, 110.0)
    assert (auroc(low, high), fpr95(low, high)) == (1.0, 0.0)
    assert (auroc(high, low), fpr95(high, low)) == (0.0, 1.0)


def test_fpr95_accepts_exactly_95_of_100_inliers():
    inliers = torch.arange(100.0)  # the threshold is 94
    assert fpr95(inliers, torch.tensor([94.0])) == 1.0
    assert fpr95(inliers, torch.tensor([94.5])) == 0.0


def test_only_the_order_of_scores_matters():
    inliers, outliers = torch.randn(40).double(), torch.randn(30).double() + 1
    assert auroc(inliers.exp(), outliers.exp()) == auroc(inliers, outliers)
    assert fpr95(inliers.exp(), outliers.exp()) == fpr95(inliers, outliers)
    assert auroc(inliers.flip(0), outliers[torch.randperm(30)]) == auroc(inliers, outliers)


def test_what_is_not_a_number_counts_as_most_outlying():
    assert auroc(torch.tensor([0.0, 1.0]), torch.tensor([math.nan])) == 1.0
    assert auroc(torch.tensor([math.inf]), torch.tensor([math.nan])) == 0.5


@pytest.mark.parametrize("metric", [auroc, fpr95])
def test_no_scores_are_refused(metric):
    with pytest.raises(ValueError, match="inliers: got shape"):
        metric(torch.empty(0), torch.ones(2))
    with pytest.raises(ValueError, match="outliers: got shape"):
        metric(torch.ones(2), torch.empty(0))
