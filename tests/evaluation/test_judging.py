"""The judge of a classifier's outputs: whom it trusts, what it does with few labels, and its scores."""

import pytest
import torch

from momatch.evaluation import judging
from momatch.evaluation.judging import fit_judge, judge_scores
from momatch.evaluation.pool_judging import InspectedPool, judge_pool
from momatch.heads import AAGMM
from momatch.models.outputs import Outputs
from momatch.models.scorer import Scorer
from momatch.outliers import Judge
from momatch.outliers.contamination import inlier_component
from tests.evaluation.made_up_outputs import F, K, made, split
from tests.models.test_scorer import mixture


def assert_same(found, expected):
    """The same model of the stages; that of the answers is fitted to as many samples."""
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-4, atol=1e-4, msg=name)
    assert found.answers.of_class.count == expected.count


@pytest.mark.parametrize("outliers", [5, 40, 60])
def test_far_outliers_of_the_pool_are_left_out_however_sure_the_classifier_is(outliers):
    truth, known = split(outliers=outliers)
    outputs = made(truth)
    judge = fit_judge(outputs, known, cutoff=0.95, stage_names=("a", "b")).judge
    assert judge.stage_names == ("a", "b")
    # Inliers at the edge may be left out as well, but few.
    assert 0.9 * (len(truth) - outliers) <= int(judge.count) <= len(truth) - outliers
    scores = judge_scores(judge, made(truth, seed=1))["nearest"]
    assert scores[truth == -2].min() > 3 * scores[truth >= 0].max()


@pytest.mark.parametrize("seed", range(5))
def test_all_of_a_clean_pool_is_used(seed):
    truth, known = split(per_class=15)
    outputs = made(truth, seed=seed)
    found = fit_judge(outputs, known, cutoff=0.95)
    assert found.components is None
    assert torch.equal(found.p_inlier, torch.ones(len(truth), dtype=torch.float64))
    posterior = outputs.log_joint.to(outputs.stages).softmax(1)
    assert_same(found.judge, Judge(F, K, judges_answers=True).fit([(outputs.stages, truth, posterior)]))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_outside_a_fit_of_few_samples_is_no_outlier(seed):
    """Of far more statistics than samples, those in the fit are nearer than all others."""
    truth, known = split(per_class=4, pool=60)
    found = fit_judge(made(truth, F=300, seed=seed), known, cutoff=0.95)
    assert found.components is None
    assert (found.p_inlier > 0.5).all()


def test_junk_that_passes_for_ordinary_at_first_is_found():
    """The judge of the ordinary half sees the rest; the next ones are fitted to what it takes for inliers."""
    truth, known = split(per_class=10, pool=400, outliers=80)
    generator = torch.Generator().manual_seed(3)
    outputs = made(truth, F=20)
    is_junk = truth == -2
    # Near enough to hide one behind the other: 15 deviations from the classes, and much alike.
    outputs.stages[is_junk] -= 40.0
    outputs.stages[is_junk, 0] += 15.0 + 0.1 * torch.randn(80, generator=generator)
    found = fit_judge(outputs, known, cutoff=0.95)
    assert (found.p_inlier[is_junk] < 0.5).all()
    assert (found.p_inlier[known >= 0] == 1).all()
    assert (found.p_inlier[~is_junk] > 0.5).double().mean() > 0.9
    assert int(found.judge.count) <= int((~is_junk).sum())


def test_the_judge_is_fitted_to_what_the_one_before_trusted(monkeypatch):
    """By hand: each judge is one of the samples with P(inlier) of at least 0.95 by the distances of all before.

    What the first look at the pool takes for an outlier, here some inliers too, is in none but the first.
    """
    truth, known = split(outliers=40)
    outputs = made(truth)
    is_pool = known < 0
    trusted, expected = ~is_pool, None
    trusted[is_pool.nonzero().flatten()[:40]] = True
    p_inlier = torch.where(truth == -2, 0.4, 1.0).double()
    p_inlier[is_pool.nonzero().flatten()[60:70]] = 0.4
    allowed = p_inlier >= 0.5
    assert int(allowed.sum()) < int((truth >= 0).sum())
    inspected = InspectedPool(p_inlier, trusted)
    monkeypatch.setattr(judging, "inspect_pool", lambda *given: inspected)
    for _ in range(3):
        classes = truth.clamp_min(0)[trusted]
        judge = Judge(F, K).fit([(outputs.stages[trusted], classes)])
        distance, nearest = judge.mahalanobis(outputs.stages).double().min(1)
        left_out = judge.leave_one_out(
            distance,
            int(trusted.sum()),
            shrinkage=float(judge.shrinkage),
            class_count=torch.bincount(classes, minlength=K).double()[nearest],
        )
        log_distance = torch.where(trusted, left_out, distance).log()
        components = inlier_component(log_distance[is_pool], log_distance[~is_pool], known[~is_pool])
        expected = torch.where(is_pool, components.lower(log_distance), 1.0)
        trusted = allowed = allowed & (expected >= 0.95)
    found = fit_judge(outputs, known, cutoff=0.95)
    assert found.components == components
    assert torch.equal(found.p_inlier, expected)
    assert_same(found.judge, judge)


def test_what_the_judge_alone_sees_is_no_evidence(monkeypatch):
    truth, known = split(outliers=40)
    outputs = made(truth)
    trusted = (known >= 0) | (torch.arange(len(truth)) % 2 == 0)
    inspected = InspectedPool(torch.ones(len(truth), dtype=torch.float64), trusted)
    monkeypatch.setattr(judging, "inspect_pool", lambda *given: inspected)
    found = fit_judge(outputs, known, cutoff=0.95)
    assert found.components is None
    assert (found.p_inlier == 1).all()
    assert int(found.judge.count) == len(truth)


def test_what_the_classifier_is_unsure_of_is_left_out():
    truth, known = split()
    outputs = made(truth, sure=False)
    judge = fit_judge(outputs, known, cutoff=0.95).judge
    labeled = known >= 0
    assert int(judge.count) == int(labeled.sum())
    assert_same(judge, Judge(F, K).fit([(outputs.stages[labeled], known[labeled])]))


def test_of_an_unsure_classifier_the_labelled_samples_tell_the_outliers():
    truth, known = split(outliers=40)
    outputs = made(truth, sure=False)
    found = fit_judge(outputs, known, cutoff=0.95)
    assert torch.equal(found.p_inlier, judge_pool(outputs, known))
    assert (found.p_inlier[truth == -2] < 0.5).all()
    assert found.components is None
    assert int(found.judge.count) == int((known >= 0).sum())


def test_labels_beat_predictions():
    truth, known = split(pool=0)
    outputs = made(truth)
    shifted = (known + 1) % K
    assert_same(fit_judge(outputs, shifted, cutoff=0.95).judge, Judge(F, K).fit([(outputs.stages, shifted)]))


def test_without_two_labels_of_a_class_the_confident_ones_are_taken_as_they_come():
    truth, known = split(per_class=1, outliers=40)
    assert int(fit_judge(made(truth), known, cutoff=0.95).judge.count) == len(truth)


def test_without_labels_there_must_be_confident_predictions():
    truth, known = split(per_class=0)
    assert int(fit_judge(made(truth), known, cutoff=0.95).judge.count) == len(truth)
    with pytest.raises(ValueError, match="batches: got no samples, expected at least one"):
        fit_judge(made(truth, sure=False), known, cutoff=0.95)


def test_without_a_pool_the_labelled_samples_are_used():
    truth, known = split(pool=0)
    outputs = made(truth)
    assert_same(fit_judge(outputs, known, cutoff=0.95).judge, Judge(F, K).fit([(outputs.stages, known)]))


@pytest.mark.parametrize("in_pool", [False, True])
def test_a_class_without_labels(in_pool):
    """Its samples in the pool are far from all labelled ones, so they are taken for outliers."""
    truth, known = split(per_class=10, pool=90)
    keep = (truth != 2) | ((known < 0) & in_pool)
    truth, known = truth[keep], known[keep]
    outputs = made(truth)
    judge = fit_judge(outputs, known, cutoff=0.95).judge
    assert judge.log_prior[2] == -torch.inf
    distance = judge.mahalanobis(outputs.stages)
    assert (distance[:, 2] == torch.inf).all()
    assert distance[:, :2].isfinite().all()
    for score in judge_scores(judge, outputs).values():
        assert score.isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_statistics_that_are_not_finite(value):
    truth, known = split()
    outputs = made(truth)
    outputs.stages[3, 2] = value
    with pytest.raises(ValueError, match=r"x: got 1 of \d+ samples with features that are not finite, expected none"):
        fit_judge(outputs, known, cutoff=0.95)
    # In the pool they are outliers.
    outputs = made(truth)
    outputs.stages[-1, 2] = value
    judge = fit_judge(outputs, known, cutoff=0.95).judge
    assert int(judge.count) == len(truth) - 1
    assert judge.centers.isfinite().all()
    one_each = torch.where(torch.arange(len(known)) < K, known, -1)
    with pytest.raises(ValueError, match="features that are not finite"):
        fit_judge(outputs, one_each, cutoff=0.95)


@pytest.mark.parametrize(("features", "pool"), [(50, 12), (200, 1), (200, 30)])
def test_a_pool_smaller_than_the_number_of_features(features, pool):
    truth, known = split(per_class=4, pool=pool)
    outputs = made(truth, F=features)
    judge = fit_judge(outputs, known, cutoff=0.95).judge
    assert 0 < float(judge.shrinkage) <= 1
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
    judge = fit_judge(outputs, known, cutoff=0.95).judge
    scores = judge_scores(judge, outputs)
    monkeypatch.setattr("momatch.evaluation.judging._BATCH", 7)
    assert_same(fit_judge(outputs, known, cutoff=0.95).judge, judge)
    for name, score in judge_scores(judge, outputs).items():
        torch.testing.assert_close(score, scores[name])


def test_scores_are_those_of_a_scorer():
    truth, known = split(outliers=10)
    outputs = made(truth, dtype=torch.float64)
    judge = fit_judge(outputs, known, cutoff=0.95).judge
    assert judge.scale.dtype == torch.float64
    head = mixture(AAGMM, K, 4)
    joint = Outputs(outputs.z.double(), head(outputs.z.double()).detach(), outputs.stages)
    found, expected = judge_scores(judge, joint), Scorer(head, judge=judge)(joint.z, joint.stages)
    assert list(found) == ["judge", "nearest", "density"]
    torch.testing.assert_close(found["judge"], expected.outlier_score)
    torch.testing.assert_close(found["nearest"], expected.distance)
    torch.testing.assert_close(found["density"], -expected.log_density)


def test_scores_of_no_samples():
    """A report asks for those of the mistakes, of which there may be none."""
    truth, known = split()
    outputs = made(truth)
    judge = fit_judge(outputs, known, cutoff=0.95).judge
    scores = judge_scores(judge, outputs.select(torch.arange(0)))
    assert {name: score.shape for name, score in scores.items()} == dict.fromkeys(("judge", "nearest", "density"), (0,))


def test_scores_of_damaged_samples_are_infinite():
    truth, known = split()
    outputs = made(truth)
    judge = fit_judge(outputs, known, cutoff=0.95).judge
    outputs.stages[0, 0] = torch.nan
    for score in judge_scores(judge, outputs).values():
        assert score[0] == torch.inf
        assert score[1:].isfinite().all()
