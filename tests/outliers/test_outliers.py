"""Outlier scores, thresholds and conformal p-values against their definitions, and the promises that come with them."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from momatch import AAGMM, KMeans, Linear, OutlierDetector, StageJudge, benjamini_hochberg
from momatch.outliers.thresholds import chi2_quantile

SCORES = ["nearest", "assigned", "farthest", "density"]
D, K = 3, 4


def make_head(head_type=AAGMM, **options):
    """A head whose clusters differ in width, so that the nearest center is not always that of the predicted class."""
    head = head_type(D, K, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape))
    return head


def naive_distance(head, z, k):
    """Mahalanobis distance of one embedding, a list of floats, to one center."""
    centers, variances = head.centers.double().tolist(), head.variances.double().tolist()
    return math.sqrt(sum((a - b) ** 2 / v for a, b, v in zip(z, centers[k], variances[k], strict=True)))


def naive_log_joint(head, z, k):
    if isinstance(head, Linear):
        weight, bias = head.weight.double().tolist(), head.bias.double().tolist()
        return sum(a * b for a, b in zip(weight[k], z, strict=True)) + bias[k]
    log_volume = sum(math.log(2 * math.pi * v) for v in head.variances[k].double().tolist())
    return head.log_prior.tolist()[k] - 0.5 * log_volume - 0.5 * naive_distance(head, z, k) ** 2


def naive_score(head, z, score):
    joint = [naive_log_joint(head, z, k) for k in range(K)]
    if score == "density":
        return -math.log(sum(math.exp(value) for value in joint))
    distances = [naive_distance(head, z, k) for k in range(K)]
    return {"nearest": min(distances), "assigned": distances[joint.index(max(joint))], "farthest": max(distances)}[
        score
    ]


# --- Scores ---


@pytest.mark.parametrize("head_type", [AAGMM, KMeans])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("learn_prior", [False, True])
def test_score_equals_its_definition(head_type, score, learn_prior):
    head = make_head(head_type, learn_prior=learn_prior)
    z = 2 * torch.randn(50, D)
    expected = [naive_score(head, row, score) for row in z.double().tolist()]
    scores = OutlierDetector(head, score=score).score(z)
    torch.testing.assert_close(scores.double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-5)
    assert not scores.requires_grad


def test_energy_of_a_linear_head():
    head = make_head(Linear)
    z = 2 * torch.randn(50, D)
    expected = [naive_score(head, row, "density") for row in z.double().tolist()]
    torch.testing.assert_close(OutlierDetector(head, score="density").score(z), torch.tensor(expected))


def test_the_distances_are_different_rules():
    z = 2 * torch.randn(200, D)
    head = make_head()
    nearest, assigned, farthest = (OutlierDetector(head, score=score).score(z) for score in SCORES[:3])
    assert ((nearest <= assigned) & (assigned <= farthest)).all()
    assert (nearest < assigned).any()
    assert (assigned < farthest).any()


@pytest.mark.parametrize("score", SCORES)
def test_further_out_is_a_higher_score(score):
    head = make_head()
    direction = torch.tensor([[1.0, -2.0, 0.5]])
    scores = OutlierDetector(head, score=score).score(torch.linspace(10.0, 1000.0, 40).unsqueeze(1) * direction)
    assert scores.isfinite().all()
    assert (scores.diff() > 0).all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_an_embedding_that_is_not_finite_is_as_outlying_as_can_be(score, bad):
    z = torch.randn(5, D)
    z[2, 1] = bad
    detector = OutlierDetector(make_head(), score=score).fit(torch.randn(40, D))
    scores = detector.score(z)
    assert scores.isinf().tolist() == [False, False, True, False, False]
    assert scores[2] > 0
    assert bool(detector.is_outlier(z)[2])


def test_half_precision_embeddings_are_scored_in_float32():
    head = make_head()
    z = torch.randn(20, D).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = OutlierDetector(head).score(z)
    torch.testing.assert_close(scores, OutlierDetector(head).score(z.float()))


# --- Thresholds ---


@pytest.mark.parametrize("percentile", [0.0, 12.5, 50.0, 90.0, 99.9, 100.0])
@pytest.mark.parametrize("m", [1, 2, 7, 101, 5000])
def test_percentile_equals_numpy(percentile, m):
    detector = OutlierDetector(make_head(), percentile=percentile)
    z = torch.randn(m, D)
    tau = detector.fit(z).tau()
    expected = np.percentile(detector.score(z).double().numpy(), percentile)
    torch.testing.assert_close(tau, torch.tensor(expected).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_is_outlier_is_above_the_percentile_of_the_same_score(score):
    head = make_head()
    labeled, z = torch.randn(200, D), 2 * torch.randn(300, D)
    detector = OutlierDetector(head, score=score).fit(labeled)
    assert torch.equal(detector.is_outlier(z), detector.score(z) > detector.tau())
    assert int(detector.is_outlier(labeled).sum()) == 20  # 10 % of the labelled set itself


def test_annealed_percentile():
    labeled = torch.randn(333, D)
    detector = OutlierDetector(make_head(), threshold="annealed", percentile=80.0, percentile_end=98.0).fit(labeled)
    scores = detector.score(labeled).double().numpy()
    for progress, percentile in [(0.0, 80.0), (0.5, 89.0), (1.0, 98.0)]:
        expected = torch.tensor(np.percentile(scores, percentile)).float()
        torch.testing.assert_close(detector.tau(progress), expected, rtol=1e-5, atol=1e-6)
        above = detector.is_outlier(labeled, progress=progress)
        assert torch.equal(above, detector.score(labeled) > detector.tau(progress))
    assert detector.tau() == detector.tau(1.0)


@settings(max_examples=80, derandomize=True)
@given(start=st.floats(0, 100), end=st.floats(0, 100), progress=st.floats(0, 1))
def test_no_annealed_percentile_leaves_the_range(start, end, progress):
    detector = OutlierDetector(KMeans(1, 1), threshold="annealed", percentile=start, percentile_end=end)
    detector.threshold_scores = torch.tensor([1.0, 2.0, 5.0])
    for at in (0.0, progress, 1.0):
        assert 1.0 <= detector.tau(at) <= 5.0


def test_annealing_to_100_keeps_every_labelled_sample():
    labeled = torch.randn(50, D)
    detector = OutlierDetector(make_head(), threshold="annealed").fit(labeled)
    assert int(detector.is_outlier(labeled, progress=0.0).sum()) == 5
    assert not detector.is_outlier(labeled, progress=1.0).any()


def test_progress_means_nothing_to_the_other_thresholds():
    for threshold in ("percentile", "chi2"):
        detector = OutlierDetector(make_head(), threshold=threshold).fit(torch.randn(20, D))
        assert detector.tau(0.0) == detector.tau(1.0)


@pytest.mark.parametrize("dof", [1, 2, 3, 8, 64, 128, 512])
@pytest.mark.parametrize("quantile", [1e-6, 0.01, 0.5, 0.9, 0.99, 1 - 1e-9])
def test_chi_square_quantile_equals_scipy(dof, quantile):
    assert chi2_quantile(quantile, dof) == pytest.approx(scipy.stats.chi2.ppf(quantile, dof), rel=1e-6)


def test_chi_square_quantile_at_its_ends():
    for dof in (1, 30, 512):
        assert chi2_quantile(0.0, dof) == pytest.approx(0.0, abs=1e-12)
        assert chi2_quantile(1.0, dof) == math.inf


@pytest.mark.parametrize("score", ["nearest", "assigned"])
def test_chi_square_threshold_is_on_the_distance_and_needs_no_fit(score):
    head = AAGMM(6, 1)
    detector = OutlierDetector(head, score=score, threshold="chi2", quantile=0.9)
    assert float(detector.tau()) == pytest.approx(math.sqrt(scipy.stats.chi2.ppf(0.9, 6)), rel=1e-6)
    # One Gaussian cluster: a tenth of its own samples lies beyond.
    rate = detector.is_outlier(head.sample(20_000)).double().mean()
    assert abs(float(rate) - 0.1) < 4 * math.sqrt(0.1 * 0.9 / 20_000)


# --- Conformal p-values ---


def naive_p_value(calibration, score):
    return (1 + sum(c >= score for c in calibration)) / (len(calibration) + 1)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("m", [1, 2, 99])
def test_p_value_equals_the_count(score, m):
    detector = OutlierDetector(make_head(), score=score)
    calibration, z = torch.randn(m, D), 1.5 * torch.randn(60, D)
    p = detector.calibrate(calibration).p_value(z)
    among = detector.score(calibration).tolist()
    expected = [naive_p_value(among, s) for s in detector.score(z).tolist()]
    torch.testing.assert_close(p, torch.tensor(expected))


def test_p_value_counts_ties_as_at_least_as_outlying():
    detector = OutlierDetector(KMeans(1, 1))
    detector.head.centers.data.zero_()
    detector.calibrate(torch.tensor([[1.0], [2.0], [-2.0], [2.0], [3.0]]))
    p = detector.p_value(torch.tensor([[0.0], [1.0], [2.0], [-3.0], [4.0]]))
    torch.testing.assert_close(p, torch.tensor([6, 6, 5, 2, 1]) / 6)


@pytest.mark.parametrize("score", SCORES)
def test_p_value_of_far_points_and_of_nan_is_the_smallest(score):
    head = make_head()
    detector = OutlierDetector(head, score=score).calibrate(head.sample(99))
    sigma = head.variances.max().sqrt()
    far = torch.stack([head.centers[0] + 50 * sigma, torch.full((D,), torch.nan), torch.full((D,), 1e30)]).detach()
    torch.testing.assert_close(detector.p_value(far), torch.full((3,), 0.01))


def test_nan_in_the_calibration_set_counts_as_outlying():
    detector = OutlierDetector(make_head())
    detector.calibrate(torch.cat([torch.zeros(3, D), torch.full((2, D), torch.nan)]))
    p = detector.p_value(torch.stack([torch.full((D,), 40.0), torch.full((D,), torch.nan)]))
    torch.testing.assert_close(p, torch.tensor([3 / 6, 3 / 6]))


def test_nothing_is_calibrated_on_nan_alone():
    with pytest.raises(ValueError, match="z: got 4 samples without a finite score, expected inliers"):
        OutlierDetector(make_head()).calibrate(torch.full((4, D), torch.nan))


def test_a_threshold_is_not_fitted_to_broken_embeddings():
    with pytest.raises(ValueError, match="z: got 1 embeddings without a finite score"):
        OutlierDetector(make_head()).fit(torch.cat([torch.zeros(3, D), torch.full((1, D), torch.nan)]))


@pytest.mark.parametrize("m", [9, 19, 60])
def test_false_alarm_rate_is_bounded(m):
    """Over calibration sets and new samples of one law, P(p <= alpha) is floor(alpha (m + 1)) / (m + 1) <= alpha."""
    detector = OutlierDetector(AAGMM(2, 2))
    rounds = 600
    p_values = torch.cat([detector.calibrate(torch.randn(m, 2)).p_value(torch.randn(8, 2)) for _ in range(rounds)])
    for alpha in (0.05, 0.1, 0.3):
        rate = float((p_values <= alpha).double().mean())
        exact = math.floor(alpha * (m + 1) + 1e-9) / (m + 1)
        error = math.sqrt(alpha * (1 - alpha) / rounds)  # as if the 8 of a round were one
        assert rate <= alpha + 3 * error
        assert abs(rate - exact) <= 3 * error


# --- Benjamini-Hochberg ---


def naive_benjamini_hochberg(p_values, fdr):
    n = len(p_values)
    ranked = sorted(range(n), key=lambda i: p_values[i])
    passing = [rank for rank in range(1, n + 1) if p_values[ranked[rank - 1]] <= rank * fdr / n]
    rejected = set(ranked[: max(passing, default=0)])
    return [i in rejected for i in range(n)]


@settings(max_examples=60, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), fdr=st.floats(0.01, 0.9), power=st.integers(1, 8))
def test_benjamini_hochberg_equals_the_loop_and_scipy(seed, n, fdr, power):
    p_values = np.random.default_rng(seed).uniform(size=n) ** power
    named = benjamini_hochberg(torch.from_numpy(p_values), fdr)
    assert named.tolist() == naive_benjamini_hochberg(p_values.tolist(), fdr)
    assert named.tolist() == (scipy.stats.false_discovery_control(p_values) <= fdr).tolist()


@pytest.mark.parametrize(
    ("p_values", "fdr", "expected"),
    [
        ([0.5, 0.6, 0.9], 0.1, [False, False, False]),
        ([0.01, 0.02, 0.001], 0.1, [True, True, True]),
        ([0.01], 0.01, [True]),
        ([1.0, 1.0], 1.0, [True, True]),
        ([0.0, 0.2], 0.0, [True, False]),
        # Neither of the first two passes at its own rank, but the third carries them.
        ([0.06, 0.07, 0.07, 0.9], 0.1, [True, True, True, False]),
        # Equal p-values go together.
        ([0.05, 0.05, 0.05, 0.8], 0.1, [True, True, True, False]),
        ([0.03, 0.06, 0.06, 0.06, 0.06], 0.05, [False, False, False, False, False]),
        ([float("nan"), 0.001], 0.1, [False, True]),
    ],
)
def test_benjamini_hochberg_cases(p_values, fdr, expected):
    assert benjamini_hochberg(torch.tensor(p_values), fdr).tolist() == expected


@pytest.mark.parametrize("fdr", [0.05, 0.1, 0.2, 0.25])
def test_benjamini_hochberg_does_not_miss_an_exact_tie(fdr):
    """Conformal p-values are multiples of 1/(m + 1) and often meet the bound k fdr / n exactly."""
    met = 0
    for m in (9, 19, 49, 99, 199):
        for n in (5, 10, 20, 50):
            for k in range(1, n + 1):
                j = k * round(100 * fdr) * (m + 1)
                if j % (100 * n) == 0 and 0 < j // (100 * n) <= m + 1:
                    met += 1
                    p_values = torch.ones(n)
                    p_values[:k] = (1.0 + torch.tensor(j // (100 * n) - 1)) / (m + 1.0)
                    assert int(benjamini_hochberg(p_values, fdr)[:k].sum()) == k, (m, n, k)
    assert met > 50


def test_benjamini_hochberg_takes_numpy_arrays_and_lists():
    p_values = np.array([0.01, 0.9, 0.02, 0.04, 0.5])
    p_values.setflags(write=False)
    expected = benjamini_hochberg(torch.tensor(p_values.tolist(), dtype=torch.float64), 0.1).tolist()
    assert any(expected)
    for numbers in (p_values, p_values.astype(np.float32), p_values.tolist()):
        named = benjamini_hochberg(numbers, 0.1)
        assert isinstance(named, np.ndarray)
        assert named.tolist() == expected
    with pytest.raises(ValueError, match="p_values: got shape"):
        benjamini_hochberg(np.ones((2, 2)), 0.1)


def test_select_outliers_is_benjamini_hochberg_of_the_p_values():
    head = make_head()
    detector = OutlierDetector(head).calibrate(head.sample(199))
    z = torch.cat([head.sample(40), 20 + torch.randn(10, D)])
    named = detector.select_outliers(z, fdr=0.2)
    assert named.tolist() == naive_benjamini_hochberg(detector.p_value(z).double().tolist(), 0.2)
    assert named[40:].all()


def test_false_discovery_rate_is_bounded():
    head = KMeans(2, 1)
    share, rounds = 0.0, 150
    for _ in range(rounds):
        detector = OutlierDetector(head).calibrate(head.sample(99))
        named = detector.select_outliers(torch.cat([head.sample(30), head.sample(10) + 4.0]), fdr=0.2)
        share += float(named[:30].sum() / named.sum().clamp_min(1))
    assert share / rounds <= 0.2 * 30 / 40 + 3 * 0.15 / math.sqrt(rounds)


# --- As a module ---


def test_the_head_is_borrowed():
    head = make_head()
    detector = OutlierDetector(head)
    assert detector.head is head
    assert not list(detector.parameters())
    assert set(detector.state_dict()) == {"threshold_scores", "calibration_scores"}
    model = nn.ModuleDict({"head": head, "detector": detector})
    assert len(list(model.parameters())) == len(list(head.parameters()))


def test_the_detector_follows_the_training_of_its_head():
    head = make_head()
    detector = OutlierDetector(head)
    z = torch.randn(10, D)
    before = detector.score(z)
    with torch.no_grad():
        head.centers.add_(3.0)
    torch.testing.assert_close(detector.score(z), OutlierDetector(head).score(z))
    assert not torch.allclose(detector.score(z), before)


def test_state_dict_round_trip_makes_room_for_the_scores():
    head = make_head()
    detector = OutlierDetector(head).fit(torch.randn(37, D)).calibrate(torch.randn(12, D))
    file = io.BytesIO()
    torch.save(nn.Sequential(detector).state_dict(), file)
    file.seek(0)
    z = torch.randn(25, D)
    state = torch.load(file)
    for other in (OutlierDetector(head), OutlierDetector(head).fit(z[:3]).calibrate(z[:20])):
        nn.Sequential(other).load_state_dict(state)
        assert torch.equal(other.is_outlier(z), detector.is_outlier(z))
        assert torch.equal(other.p_value(z), detector.p_value(z))
    detector.load_state_dict(OutlierDetector(head).state_dict())  # back to nothing fitted
    with pytest.raises(ValueError, match="fit"):
        detector.tau()


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_a_copy_has_its_own_head(duplicate):
    detector = OutlierDetector(make_head()).fit(torch.randn(30, D)).calibrate(torch.randn(30, D))
    other = duplicate(detector)
    z = torch.randn(25, D)
    scores, p_values = detector.score(z), detector.p_value(z)
    with torch.no_grad():
        detector.head.centers.add_(1.0)
    detector.fit(z)
    assert torch.equal(other.score(z), scores)
    assert torch.equal(other.p_value(z), p_values)
    assert len(other.threshold_scores) == 30


def test_a_model_copied_with_its_detector_keeps_them_together():
    model = nn.ModuleDict({"head": make_head()})
    model["detector"] = OutlierDetector(model["head"])
    other = copy.deepcopy(model)
    assert other["detector"].head is other["head"]


@pytest.mark.parametrize(
    ("head_type", "score", "threshold"),
    [
        *[(head_type, score, "annealed") for head_type in (AAGMM, KMeans) for score in SCORES],
        (AAGMM, "nearest", "percentile"),
        (AAGMM, "assigned", "chi2"),
        (Linear, "density", "percentile"),
    ],
)
def test_no_value_is_read_back(head_type, score, threshold):
    """On the meta device a read-back raises."""
    detector = OutlierDetector(head_type(D, K, device="meta"), score=score, threshold=threshold)
    z = torch.empty(6, D, device="meta")
    outlier = detector.fit(z).is_outlier(z, progress=0.5)
    assert outlier.is_meta
    assert outlier.shape == (6,)
    assert detector.calibrate(z).p_value(z).is_meta
    assert detector.select_outliers(z, fdr=0.1).is_meta


# --- Bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "closest"}, r"score: got 'closest', expected one of \('nearest'"),
        ({"threshold": "p90"}, r"threshold: got 'p90', expected one of \('percentile'"),
        ({"threshold": "chi2", "score": "farthest"}, r"threshold: got 'chi2' with score 'farthest', expected score"),
        ({"threshold": "chi2", "score": "density"}, r"threshold: got 'chi2' with score 'density', expected score"),
        ({"percentile": 101.0}, r"percentile: got 101.0, expected a number from 0 to 100"),
        ({"percentile": math.nan}, r"percentile: got nan, expected a number from 0 to 100"),
        ({"percentile_end": -1.0}, r"percentile_end: got -1.0, expected a number from 0 to 100"),
        ({"quantile": 1.5}, r"quantile: got 1.5, expected a number from 0 to 1"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        OutlierDetector(make_head(), **options)


@pytest.mark.parametrize("score", SCORES[:3])
def test_a_linear_head_has_no_distances(score):
    with pytest.raises(ValueError, match=rf"score: got '{score}' with a Linear head, expected 'density'"):
        OutlierDetector(make_head(Linear), score=score)


@pytest.mark.parametrize("method", ["score", "fit", "calibrate", "is_outlier", "p_value"])
@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.randn(4, D + 1), r"z: got shape \(4, 4\), expected \(n, 3\)"),
        (torch.randn(D), r"z: got shape \(3,\), expected \(n, 3\)"),
        (torch.randn(2, 4, D), r"z: got shape \(2, 4, 3\), expected \(n, 3\)"),
        (torch.randn(0, D), r"z: got an empty batch \(0, 3\), expected at least one sample"),
        (torch.ones(4, D).long(), r"z: got dtype torch.int64, expected floating point"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_embeddings_are_named(method, z, message):
    detector = OutlierDetector(make_head()).fit(torch.randn(5, D)).calibrate(torch.randn(5, D))
    with pytest.raises(ValueError, match=message):
        getattr(detector, method)(z)


def test_what_must_come_first_is_named():
    detector = OutlierDetector(make_head())
    with pytest.raises(ValueError, match=r"got no labelled scores, expected fit"):
        detector.is_outlier(torch.randn(2, D))
    with pytest.raises(ValueError, match=r"got no calibration scores, expected calibrate"):
        detector.p_value(torch.randn(2, D))


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_bad_fractions_are_named(value):
    detector = OutlierDetector(make_head()).fit(torch.randn(5, D)).calibrate(torch.randn(5, D))
    with pytest.raises(ValueError, match=rf"progress: got {value}, expected a number from 0 to 1"):
        detector.tau(value)
    with pytest.raises(ValueError, match=rf"fdr: got {value}, expected a number from 0 to 1"):
        detector.select_outliers(torch.randn(2, D), fdr=value)
    with pytest.raises(ValueError, match=rf"quantile: got {value}, expected a number from 0 to 1"):
        chi2_quantile(value, 3)


@pytest.mark.parametrize("shape", [(0,), (2, 3), ()])
@pytest.mark.usefixtures("unchecked")
def test_bad_p_values_are_named(shape):
    with pytest.raises(ValueError, match=r"p_values: got shape .*, expected \(n,\) with n of at least 1"):
        benjamini_hochberg(torch.ones(shape), 0.1)


# --- With a judge ---


def make_judge():
    """A judge of a small network, and inputs it was fitted to."""
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, K))
    x, y = torch.randn(200, 5), torch.randint(K, (200,))
    return StageJudge(network).fit([(x, y)]), x


def test_a_judge_scores_the_inputs_of_its_network():
    judge, x = make_judge()
    detector = OutlierDetector(judge).fit(x).calibrate(x[:99])
    assert detector.score_name == "judge"
    scores = judge.score(x)
    assert torch.equal(detector.score(x), scores)
    torch.testing.assert_close(detector.tau(), scores.quantile(0.9))
    assert torch.equal(detector.is_outlier(x), scores > detector.tau())
    count = (scores[:99] >= scores[150]).sum()
    torch.testing.assert_close(detector.p_value(x[150:151]), (1 + count)[None] / 100)


def test_the_annealed_threshold_of_a_judge():
    judge, x = make_judge()
    detector = OutlierDetector(judge, score="judge", threshold="annealed", percentile=80.0).fit(x)
    assert int(detector.is_outlier(x, progress=0.0).sum()) == 40
    assert not detector.is_outlier(x, progress=1.0).any()


def test_the_judge_is_borrowed():
    judge, x = make_judge()
    detector = OutlierDetector(judge).fit(x).calibrate(x)
    assert set(detector.state_dict()) == {"threshold_scores", "calibration_scores"}
    other = OutlierDetector(judge)
    other.load_state_dict(detector.state_dict())
    assert torch.equal(other.p_value(x), detector.p_value(x))
    with pytest.raises(ValueError, match="head: got a detector with a judge"):
        _ = detector.head


@pytest.mark.parametrize("score", SCORES)
def test_scores_of_a_head_are_refused_with_a_judge(score):
    with pytest.raises(ValueError, match=f"score: got '{score}' with a judge, expected 'judge'"):
        OutlierDetector(make_judge()[0], score=score)


def test_what_does_not_go_with_a_judge_is_named():
    judge, x = make_judge()
    with pytest.raises(ValueError, match=r"threshold: got 'chi2' with a judge, .* follows no chi-square distribution"):
        OutlierDetector(judge, threshold="chi2")
    with pytest.raises(ValueError, match="score: got 'judge', expected one of"):
        OutlierDetector(make_head(), score="judge")
    with pytest.raises(ValueError, match="judge: got no fit"):
        OutlierDetector(StageJudge(judge.network)).score(x)
    with pytest.raises(ValueError, match="z: got 1 inputs without a finite score"):
        OutlierDetector(judge).fit(torch.cat([x, torch.full((1, 5), torch.nan)]))
