"""P(inlier) of a pool: against a plain loop, of clean pools, with outliers, near-duplicates, and with little to go by."""

import math
import statistics
from dataclasses import replace

import pytest
import torch

from momatch.evaluation import pool_judging
from momatch.evaluation.pool_judging import judge_pool
from momatch.models.outputs import Outputs
from momatch.outliers import Judge
from momatch.outliers.contamination import two_gaussians
from tests.evaluation.made_up_outputs import F, K, made, split

#: The shape checks cost as much again; the tests of the judge have them on.
pytestmark = pytest.mark.usefixtures("unchecked")


def all_ones(n):
    return torch.ones(n, dtype=torch.float64)


def assert_told_apart(probability, truth, known, *, outliers=0.05, inliers=0.97):
    """Labelled samples are inliers for sure; of the pool, outliers are improbable and inliers probable."""
    assert probability.dtype == torch.float64
    assert probability.shape == truth.shape
    assert (probability[known >= 0] == 1).all()
    assert probability[truth == -2].mean() < outliers
    assert probability[(known < 0) & (truth >= 0)].mean() > inliers


# --- Against a plain loop ---


def distances(stages, classes, samples):
    """Log distance of each sample to the nearest class of a judge, and that class."""
    judge = Judge(stages.shape[1], K).double().fit([(stages, classes)])
    rows = [judge.mahalanobis(sample.unsqueeze(0))[0].tolist() for sample in samples]
    return [math.log(min(row)) for row in rows], [row.index(min(row)) for row in rows]


def less_the_median(values, of):
    median = statistics.median_low(of)
    return [value - median for value in values]


def means(rankings):
    return torch.tensor([statistics.mean(values) for values in zip(*rankings, strict=True)], dtype=torch.float64)


def naive(stages, known):
    """P(inlier) of the pool, for four labelled samples of a class or more; those of each class are left out in turn."""
    is_pool = known < 0
    labeled, classes, pool = stages[~is_pool], known[~is_pool], stages[is_pool]
    turn = [classes[:i].tolist().count(k) % 4 for i, k in enumerate(classes.tolist())]
    by_labeled, by_core, left_out = [], [], []
    for part in range(4):
        rest = torch.tensor([t != part for t in turn])
        score, nearest = distances(labeled[rest], classes[rest], pool)
        by_labeled.append(less_the_median(score, score))
        for _ in range(2):
            highest = sorted(score)[round(0.3 * len(pool)) - 1]
            # Samples of even rank are judged by a fit to those of odd rank, and the reverse.
            order = sorted(range(len(pool)), key=score.__getitem__)
            half = {i: rank % 2 for rank, i in enumerate(order)}
            fits, medians, both = [], [], []
            for which in (1, 0):
                core = [i for i in range(len(pool)) if score[i] <= highest and half[i] == which]
                of_core = torch.tensor([nearest[i] for i in core])
                fits.append((torch.cat([labeled[rest], pool[core]]), torch.cat([classes[rest], of_core])))
                both.append(distances(*fits[-1], pool)[0])
                medians.append(statistics.median_low([both[-1][i] for i in range(len(pool)) if half[i] != which]))
            score = [both[half[i]][i] - medians[half[i]] for i in range(len(pool))]
        by_core.append(less_the_median(score, score))
        by_both = [[d - m for d in distances(*fit, labeled[~rest])[0]] for fit, m in zip(fits, medians, strict=True)]
        left_out += less_the_median([statistics.mean(pair) for pair in zip(*by_both, strict=True)], score)
    of_labeled = torch.tensor(left_out, dtype=torch.float64)
    first, second = two_gaussians(means(by_labeled)), two_gaussians(means(by_core), of_labeled)
    evidence = replace(second, gain=(first.gain + second.gain) / 2).evidence(of_labeled)
    return 1 - evidence * (1 - second.lower(means(by_core)))


@pytest.mark.parametrize(("features", "pool", "outliers"), [(6, 60, 20), (6, 61, 18), (10, 40, 12)])
def test_it_is_that_of_a_plain_loop(features, pool, outliers):
    truth, known = split(per_class=7, pool=pool, outliers=outliers)
    outputs = made(truth, F=features, dtype=torch.float64)
    # So near that the probabilities are not all 0 and 1.
    outputs.stages[truth == -2] += 2.0 - 40.0
    expected = naive(outputs.stages, known)
    torch.testing.assert_close(judge_pool(outputs, known)[known < 0], expected, rtol=1e-3, atol=1e-4)
    assert ((expected > 0.01) & (expected < 0.99)).any()


# --- Clean pools and pools with outliers ---


@pytest.mark.parametrize(("features", "per_class"), [(6, 8), (30, 3), (30, 15), (100, 8)])
def test_a_clean_pool_is_left_alone(features, per_class):
    for seed in range(5):
        truth, known = split(per_class=per_class, pool=300)
        assert torch.equal(judge_pool(made(truth, F=features, seed=seed), known), all_ones(len(truth))), seed


@pytest.mark.parametrize("outliers", [5, 24, 48, 60, 72])
@pytest.mark.parametrize(("features", "per_class"), [(6, 4), (30, 8), (100, 20)])
def test_far_outliers_are_found(features, per_class, outliers):
    truth, known = split(per_class=per_class, outliers=outliers)
    outputs = made(truth, F=features)
    assert_told_apart(judge_pool(outputs, known), truth, known)


@pytest.mark.parametrize(("apart", "found"), [(2.0, 0.25), (4.0, 0.02)])
def test_near_outliers_are_found_as_far_as_they_can_be(apart, found):
    truth, known = split(pool=500, outliers=150)
    outputs = made(truth)
    outputs.stages[truth == -2] += apart - 40.0
    assert_told_apart(judge_pool(outputs, known), truth, known, outliers=found, inliers=0.95)


def test_near_outliers_are_found_beside_far_ones():
    truth, known = split(pool=600, outliers=300)
    outputs = made(truth, F=30)
    near = (truth == -2).nonzero().flatten()[::2]
    outputs.stages[near] += 2.0 - 40.0
    probability = judge_pool(outputs, known)
    assert probability[near].mean() < 0.05
    assert_told_apart(probability, truth, known)


def test_nearer_samples_are_no_less_probable():
    """Along a line from a class to where the outliers are."""
    truth, known = split(pool=400, outliers=150)
    outputs = made(truth)
    start, end = (outputs.stages[truth == which].mean(0) for which in (0, -2))
    line = start + torch.linspace(0.0, 1.0, 12).unsqueeze(1) * (end - start)
    on_line = Outputs(torch.zeros(12, 4), torch.zeros(12, K), line)
    probability = judge_pool(outputs.append(on_line), torch.cat([known, torch.full((12,), -1)]))[-12:]
    assert probability[0] == 1
    assert probability[-1] < 0.01
    assert (probability.diff() <= 0).all()


def test_the_classifiers_opinion_does_not_matter():
    truth, known = split(outliers=40)
    sure, unsure = made(truth), made(truth, sure=False)
    assert torch.equal(judge_pool(sure, known), judge_pool(unsure, known))


def test_precision_does_not_matter():
    truth, known = split(outliers=40)
    single, double = (judge_pool(made(truth, dtype=dtype), known) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-3)


def test_it_is_the_same_each_time_and_the_arguments_stay_as_they_are():
    truth, known = split(outliers=40)
    outputs = made(truth)
    stages, labels, random_state = outputs.stages.clone(), known.clone(), torch.get_rng_state()
    first = judge_pool(outputs, known)
    assert torch.equal(torch.get_rng_state(), random_state)
    torch.manual_seed(1)
    assert torch.equal(judge_pool(outputs, known), first)
    assert torch.equal(outputs.stages, stages)
    assert torch.equal(known, labels)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
@pytest.mark.parametrize(("features", "per_class"), [(6, 8), (30, 8), (30, 15)])
def test_near_duplicates_of_labelled_samples_do_not_make_the_others_outliers(features, per_class, share):
    """Next to them, a new sample of a clean pool looks strange."""
    pool, labeled = 300, K * per_class
    truth, known = split(per_class=per_class, pool=pool)
    for seed in range(3):
        outputs = made(truth, F=features, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        copies = labeled + torch.randperm(pool, generator=generator)[: round(share * pool)]
        originals = torch.randint(0, labeled, (len(copies),), generator=generator)
        noise = 0.1 * torch.randn(len(copies), features, generator=generator)
        outputs.stages[copies] = outputs.stages[originals] + noise
        assert torch.equal(judge_pool(outputs, known), all_ones(len(truth))), seed


# --- Large ones ---


@pytest.mark.parametrize("outliers", [0, 2000])
def test_of_a_large_pool_a_part_is_enough(monkeypatch, outliers):
    truth, known = split(pool=6000, outliers=outliers)
    outputs = made(truth)
    found = judge_pool(outputs, known)
    monkeypatch.setattr(pool_judging, "_MOST_SAMPLES", len(truth))
    whole = judge_pool(outputs, known)
    if outliers == 0:
        assert torch.equal(found, all_ones(len(truth)))
        assert torch.equal(whole, all_ones(len(truth)))
        return
    assert_told_apart(found, truth, known)
    # Otherwise the part would have been the whole.
    assert not torch.equal(found, whole)
    assert (found - whole).abs().mean() < 0.01


def test_the_order_of_a_large_pool_does_not_matter():
    truth, known = split(pool=6000, outliers=3000)
    truth[K * 8 :] = truth[K * 8 :].view(2, -1).T.flatten()  # every other one is an outlier
    assert_told_apart(judge_pool(made(truth), known), truth, known)


@pytest.mark.parametrize("features", [401, 900])
def test_of_many_statistics_every_kth_is_seen(features):
    truth, known = split(outliers=40)
    outputs = made(truth, F=features)
    step = -(-features // 400)
    thinned = Outputs(outputs.z, outputs.log_joint, outputs.stages[:, ::step])
    probability = judge_pool(outputs, known)
    assert torch.equal(probability, judge_pool(thinned, known))
    assert_told_apart(probability, truth, known)


def test_four_hundred_statistics_are_all_seen():
    truth, known = split(pool=60, outliers=20)
    outputs = made(truth, F=400)
    # What gives the outliers away is in the last one alone, and large.
    outputs.stages[truth == -2, :-1] -= 40.0
    outputs.stages[truth == -2, -1] += 1e4
    assert_told_apart(judge_pool(outputs, known), truth, known)


# --- Little to go by ---


@pytest.mark.parametrize("per_class", [0, 1])
def test_without_two_labels_of_a_class_all_are_inliers(per_class):
    truth, known = split(per_class=per_class, outliers=40)
    assert torch.equal(judge_pool(made(truth), known), all_ones(len(truth)))


def test_few_labels_and_a_small_pool_are_no_evidence():
    """Clear outliers are found with either more labels or a larger pool."""
    for per_class, pool, is_evidence in ((6, 90, False), (7, 90, True), (6, 120, True)):
        truth, known = split(per_class=per_class, pool=pool, outliers=30)
        probability = judge_pool(made(truth), known)
        assert bool((probability < 0.5).any()) == is_evidence


@pytest.mark.parametrize("per_class", [0, 8])
def test_without_a_pool_all_are_inliers(per_class):
    truth, known = split(per_class=per_class, pool=0)
    assert torch.equal(judge_pool(made(truth), known), all_ones(len(truth)))


@pytest.mark.parametrize("outliers", [0, 100])
def test_a_class_with_one_label_beside_classes_with_more(outliers):
    truth, known = split(pool=300, outliers=outliers)
    surplus = (known == 2).nonzero().flatten()[1:]
    keep = torch.ones(len(truth), dtype=torch.bool)
    keep[surplus] = False
    truth, known = truth[keep], known[keep]
    probability = judge_pool(made(truth, F=20), known)
    if outliers == 0:
        assert torch.equal(probability, all_ones(len(truth)))
        return
    assert_told_apart(probability, truth, known)
    assert probability[(known < 0) & (truth == 2)].mean() > 0.97


def test_a_class_without_labels_is_taken_for_outliers():
    """Its samples are far from all labelled ones."""
    truth, known = split(per_class=10, pool=90)
    keep = (truth != 2) | (known < 0)
    truth, known = truth[keep], known[keep]
    probability = judge_pool(made(truth), known)
    assert (probability[truth == 2] < 0.5).all()
    assert probability[(known < 0) & (truth != 2)].mean() > 0.97


@pytest.mark.parametrize("outliers", [0, 10])
@pytest.mark.parametrize(("features", "per_class"), [(50, 7), (200, 7), (200, 8)])
def test_a_pool_smaller_than_the_number_of_statistics(features, per_class, outliers):
    truth, known = split(per_class=per_class, pool=30, outliers=outliers)
    probability = judge_pool(made(truth, F=features), known)
    if outliers == 0:
        assert torch.equal(probability, all_ones(len(truth)))
    else:
        assert_told_apart(probability, truth, known)


@pytest.mark.parametrize(("features", "pool"), [(30, 60), (100, 120)])
def test_neither_half_of_a_small_clean_pool_is_outliers(features, pool):
    """Of few samples, the judges of both halves differ by chance."""
    truth, known = split(per_class=2, pool=pool)
    for seed in range(5):
        probability = judge_pool(made(truth, F=features, seed=seed), known)[known < 0]
        assert probability[::2].mean() > 0.9, seed
        assert probability[1::2].mean() > 0.9, seed


@pytest.mark.parametrize("pool", [1, 2, 4])
def test_a_tiny_pool_tells_nothing(pool):
    truth, known = split(pool=pool, outliers=1)
    assert torch.equal(judge_pool(made(truth), known), all_ones(len(truth)))


def test_equal_samples():
    truth, known = split(pool=30)
    outputs = made(truth)
    outputs.stages[known < 0] = outputs.stages[-1].clone()
    assert torch.equal(judge_pool(outputs, known), all_ones(len(truth)))
    # Without any variance there is no judging.
    outputs.stages.zero_()
    assert torch.equal(judge_pool(outputs, known), all_ones(len(truth)))


# --- Damaged samples ---


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("outliers", [0, 60])
def test_statistics_of_the_pool_that_are_not_finite_are_outliers_and_change_little_else(value, outliers):
    truth, known = split(pool=200, outliers=outliers)
    outputs = made(truth)
    whole = judge_pool(outputs, known)
    damaged = torch.tensor([30, 60, len(truth) - 1])
    outputs.stages[damaged, 2] = value
    probability = judge_pool(outputs, known)
    assert (probability[damaged] == 0).all()
    others = torch.ones(len(truth), dtype=torch.bool)
    others[damaged] = False
    torch.testing.assert_close(probability[others], whole[others], rtol=0, atol=0.05)


def test_damaged_samples_are_found_also_by_statistics_that_are_not_judged_by():
    truth, known = split()
    outputs = made(truth, F=500)
    outputs.stages[-1, 1] = torch.nan
    assert judge_pool(outputs, known)[-1] == 0


def test_an_absurdly_large_sample_is_an_outlier():
    truth, known = split()
    outputs = made(truth)
    outputs.stages[-1] = 1e30
    probability = judge_pool(outputs, known)
    assert probability[-1] < 0.01
    assert (probability[:-1] > 0.99).all()


def test_a_pool_of_nothing_but_damaged_samples():
    truth, known = split(pool=30)
    outputs = made(truth)
    outputs.stages[known < 0] = torch.nan
    probability = judge_pool(outputs, known)
    assert (probability[known < 0] == 0).all()
    assert (probability[known >= 0] == 1).all()


def test_damaged_labelled_samples_are_refused():
    truth, known = split()
    outputs = made(truth)
    outputs.stages[3, F - 1] = torch.nan
    with pytest.raises(ValueError, match="features that are not finite"):
        judge_pool(outputs, known)
