"""The judge of a classifier's outputs: whom it trusts, what it does with few labels, and its scores."""

import math

import pytest
import torch

from momatch.evaluation.judging import fit_judge, judge_pool, judge_scores
from momatch.heads import AAGMM
from momatch.models.outputs import Outputs
from momatch.models.scorer import Scorer
from momatch.outliers import Judge
from tests.models.test_scorer import mixture

K, F = 3, 6


def made(labels, *, F=F, seed=0, spread=1.0, sure=True, dtype=torch.float32):
    """Outputs of samples of the given classes; class -2 is far from all of them in what the network saw.

    The classifier is sure of every sample, also of the outliers, which it takes for class 0.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.as_tensor(labels)
    means = 6 * torch.randn(K, F, generator=torch.Generator().manual_seed(99))
    stages = means[labels.clamp_min(0)] + spread * torch.randn(len(labels), F, generator=generator)
    stages[labels == -2] += 40.0
    z = torch.randn(len(labels), 4, generator=generator)
    joint = 100.0 * torch.nn.functional.one_hot(labels.clamp_min(0), K) if sure else torch.zeros(len(labels), K)
    return Outputs(z, joint.float(), stages.to(dtype))


def split(per_class=8, pool=120, outliers=0):
    """Classes of labelled samples, then of the pool, which ends with the outliers; and the labels that are known."""
    truth = torch.cat([torch.arange(K * per_class) % K, torch.arange(pool - outliers) % K, torch.full((outliers,), -2)])
    known = truth.clone()
    known[K * per_class :] = -1
    return truth, known


def assert_same(one, two):
    for (name, value), other in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("outliers", [5, 40, 100])
def test_far_outliers_of_the_pool_are_left_out_however_sure_the_classifier_is(outliers):
    truth, known = split(outliers=outliers)
    outputs = made(truth)
    judge = fit_judge(outputs, known, cutoff=0.95, stage_names=("a", "b"))
    assert judge.stage_names == ("a", "b")
    # Inliers at the edge may be left out as well, but few.
    assert 0.9 * (len(truth) - outliers) <= int(judge.count) <= len(truth) - outliers
    probability = judge_pool(outputs, known)
    assert (probability[truth == -2] < 0.05).all()
    assert probability[truth >= 0].mean() > 0.9
    scores = judge_scores(judge, made(truth, seed=1))["nearest"]
    assert scores[truth == -2].min() > 3 * scores[truth >= 0].max()


def test_a_clean_pool_is_used():
    truth, known = split(per_class=15)
    outputs = made(truth)
    judge = fit_judge(outputs, known, cutoff=0.95)
    assert int(judge.count) >= 0.95 * len(truth)
    trusted = judge_pool(outputs, known) >= 0.8
    assert_same(judge, Judge(F, K).fit([(outputs.stages[trusted], truth[trusted])]))


def test_what_the_classifier_is_unsure_of_is_left_out():
    truth, known = split()
    outputs = made(truth, sure=False)
    judge = fit_judge(outputs, known, cutoff=0.95)
    labeled = known >= 0
    assert int(judge.count) == int(labeled.sum())
    assert_same(judge, Judge(F, K).fit([(outputs.stages[labeled], known[labeled])]))


def test_labels_beat_predictions():
    truth, known = split(pool=0)
    outputs = made(truth)
    shifted = (known + 1) % K
    assert_same(fit_judge(outputs, shifted, cutoff=0.95), Judge(F, K).fit([(outputs.stages, shifted)]))


def test_p_inlier_of_a_pool_is_that_of_distances_each_left_out():
    truth, known = split(outliers=30)
    outputs = made(truth, dtype=torch.float64)
    labeled = (known >= 0).nonzero().flatten()
    probability = judge_pool(outputs, known)
    assert probability.dtype == torch.float64
    assert (probability[labeled] == 1).all()
    # By hand: a Gaussian of the labelled samples' log distances, in deviations of which the pool's are.
    left_out = []
    for sample in labeled.tolist():
        others = labeled[labeled != sample]
        judge = Judge(F, K).double().fit([(outputs.stages[others], known[others])])
        left_out.append(math.log(float(judge.mahalanobis(outputs.stages[[sample]])[0, known[sample]])))
    judge = Judge(F, K).double().fit([(outputs.stages[labeled], known[labeled])])
    pool = (known < 0).nonzero().flatten()
    score = judge.mahalanobis(outputs.stages[pool]).amin(1).log()
    center, deviation = sum(left_out) / len(left_out), torch.tensor(left_out).std()
    near, far = score < center - deviation / 2, score > center + 8 * deviation
    assert near.any()
    assert far.any()
    assert (probability[pool][near] == 1).all()
    assert (probability[pool][far] < 0.01).all()
    assert (probability[pool][score.argsort()].diff() <= 0).all()


def test_without_two_labels_of_a_class_all_are_inliers():
    truth, known = split(per_class=1, outliers=40)
    outputs = made(truth)
    assert torch.equal(judge_pool(outputs, known), torch.ones(len(truth), dtype=torch.float64))
    # So the confident ones are taken as they come, without an error.
    assert int(fit_judge(outputs, known, cutoff=0.95).count) == len(truth)


def test_without_labels_all_are_inliers():
    truth, known = split(per_class=0)
    outputs = made(truth)
    assert (judge_pool(outputs, known) == 1).all()
    assert int(fit_judge(outputs, known, cutoff=0.95).count) == len(truth)
    with pytest.raises(ValueError, match="batches: got no samples, expected at least one"):
        fit_judge(made(truth, sure=False), known, cutoff=0.95)


def test_without_a_pool_all_are_inliers():
    truth, known = split(pool=0)
    outputs = made(truth)
    assert (judge_pool(outputs, known) == 1).all()
    assert_same(fit_judge(outputs, known, cutoff=0.95), Judge(F, K).fit([(outputs.stages, known)]))


@pytest.mark.parametrize("in_pool", [False, True])
def test_a_class_without_labels(in_pool):
    """Its samples in the pool are far from all labelled ones, so they are taken for outliers."""
    truth, known = split(per_class=10, pool=90)
    keep = (truth != 2) | ((known < 0) & in_pool)
    truth, known = truth[keep], known[keep]
    outputs = made(truth)
    judge = fit_judge(outputs, known, cutoff=0.95)
    assert judge.log_prior[2] == -torch.inf
    distance = judge.mahalanobis(outputs.stages)
    assert (distance[:, 2] == torch.inf).all()
    assert distance[:, :2].isfinite().all()
    if in_pool:
        assert (judge_pool(outputs, known)[truth == 2] < 0.5).all()
    for score in judge_scores(judge, outputs).values():
        assert score.isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_statistics_that_are_not_finite(value):
    truth, known = split()
    outputs = made(truth)
    outputs.stages[3, 2] = value
    with pytest.raises(ValueError, match=r"x: got 1 of \d+ samples with features that are not finite, expected none"):
        fit_judge(outputs, known, cutoff=0.95)
    with pytest.raises(ValueError, match="features that are not finite"):
        judge_pool(outputs, known)
    # In the pool they are outliers.
    outputs = made(truth)
    outputs.stages[-1, 2] = value
    assert judge_pool(outputs, known)[-1] == 0
    assert fit_judge(outputs, known, cutoff=0.95).centers.isfinite().all()
    one_each = torch.where(torch.arange(len(known)) < K, known, -1)
    with pytest.raises(ValueError, match="features that are not finite"):
        fit_judge(outputs, one_each, cutoff=0.95)


@pytest.mark.parametrize(("features", "pool"), [(50, 12), (200, 1), (200, 30)])
def test_a_pool_smaller_than_the_number_of_features(features, pool):
    truth, known = split(per_class=4, pool=pool)
    outputs = made(truth, F=features)
    judge = fit_judge(outputs, known, cutoff=0.95)
    assert 0 < float(judge.shrinkage) <= 1
    probability = judge_pool(outputs, known)
    assert ((probability >= 0) & (probability <= 1)).all()
    scores = judge_scores(judge, made(torch.cat([truth, torch.full((9,), -2)]), F=features, seed=1))
    for score in scores.values():
        assert score.isfinite().all()
        assert score[-9:].min() > score[:-9].max()


def test_labels_that_do_not_fit():
    truth, known = split()
    outputs = made(truth)
    with pytest.raises(ValueError, match="labels: got shape"):
        fit_judge(outputs, known[:-1], cutoff=0.95)
    with pytest.raises(ValueError, match="labels"):
        fit_judge(outputs, torch.full_like(known, K), cutoff=0.95)
    with pytest.raises(ValueError, match="cutoff"):
        fit_judge(outputs, known, cutoff=1.5)


def test_batches_do_not_change_anything(monkeypatch):
    truth, known = split(outliers=30)
    outputs = made(truth)
    judge, probability = fit_judge(outputs, known, cutoff=0.95), judge_pool(outputs, known)
    scores = judge_scores(judge, outputs)
    monkeypatch.setattr("momatch.evaluation.judging._BATCH", 7)
    assert_same(fit_judge(outputs, known, cutoff=0.95), judge)
    torch.testing.assert_close(judge_pool(outputs, known), probability, rtol=1e-3, atol=1e-3)
    for name, score in judge_scores(judge, outputs).items():
        torch.testing.assert_close(score, scores[name])


def test_scores_are_those_of_a_scorer():
    truth, known = split(outliers=10)
    outputs = made(truth, dtype=torch.float64)
    judge = fit_judge(outputs, known, cutoff=0.95)
    assert judge.scale.dtype == torch.float64
    head = mixture(AAGMM, K, 4)
    joint = Outputs(outputs.z.double(), head(outputs.z.double()).detach(), outputs.stages)
    found, expected = judge_scores(judge, joint), Scorer(head, judge=judge)(joint.z, joint.stages)
    assert list(found) == ["judge", "nearest", "density"]
    torch.testing.assert_close(found["judge"], expected.outlier_score)
    torch.testing.assert_close(found["nearest"], expected.distance)
    torch.testing.assert_close(found["density"], -expected.log_density)


def test_scores_of_damaged_samples_are_infinite():
    truth, known = split()
    outputs = made(truth)
    judge = fit_judge(outputs, known, cutoff=0.95)
    outputs.stages[0, 0] = torch.nan
    for score in judge_scores(judge, outputs).values():
        assert score[0] == torch.inf
        assert score[1:].isfinite().all()
