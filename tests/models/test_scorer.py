import copy
import math

import pytest
import torch

from momatch.heads import AAGMM, KMeans, Linear
from momatch.models.scorer import Scorer
from momatch.outliers import Judge, OutlierDetector


def mixture(kind, K=3, D=4, *, dtype=torch.float64):
    torch.manual_seed(K * D)
    head = kind(D, K).to(dtype)
    head.refit(3 * torch.randn(60, D, dtype=dtype), torch.arange(60) % K)
    return head


def naive(head, refitted, calibration, z):
    """Every figure in a plain loop over samples and classes."""
    rows = []
    for sample in z:
        joint = [math.exp(value) for value in head(sample[None])[0].tolist()]
        judged = [math.exp(value) for value in refitted(sample[None])[0].tolist()]
        distances = [
            math.sqrt(sum((a - m) ** 2 / v for a, m, v in zip(sample.tolist(), mean, variance, strict=True)))
            for mean, variance in zip(refitted.centers.tolist(), refitted.variances.tolist(), strict=True)
        ]
        rank = sum(score >= min(distances) for score in calibration.tolist())
        rows.append(
            (
                joint.index(max(joint)),
                [value / sum(joint) for value in joint],
                math.log(sum(judged)),
                min(distances),
                min(distances),
                (1 + rank) / (len(calibration) + 1),
            )
        )
    return [torch.tensor(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("kind", [AAGMM, KMeans])
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("D", [1, 4])
def test_every_figure_is_that_of_a_plain_loop(kind, K, D):
    torch.manual_seed(0)
    head, refitted = mixture(kind, K, D), mixture(AAGMM, K, D)
    z = 3 * torch.randn(20, D, dtype=torch.float64)
    calibration = torch.rand(37, dtype=torch.float64) * 3
    scores = Scorer(head, refitted, calibration_scores=calibration)(z)
    for got, expected in zip(vars(scores).values(), naive(head, refitted, calibration, z), strict=True):
        torch.testing.assert_close(got.double(), expected.double(), rtol=1e-6, atol=1e-9)
    assert torch.equal(scores.confidence, scores.posterior.max(1).values)
    assert len(scores) == 20


def test_calibration_is_the_detectors():
    head = mixture(AAGMM)
    z, held_out = torch.randn(2, 50, 4, dtype=torch.float64) * 3
    scorer = Scorer(head).calibrate(held_out)
    expected = OutlierDetector(head).calibrate(held_out).p_value(z)
    assert torch.equal(scorer(z).p_value, expected)
    again = Scorer(head, calibration_scores=scorer.calibration_scores.flip(0))
    assert torch.equal(again(z).p_value, expected)


def test_a_linear_head_has_an_energy_and_no_distance():
    head = Linear(4, 3)
    z = torch.randn(7, 4)
    scorer = Scorer(head).calibrate(torch.randn(30, 4))
    scores = scorer(z)
    torch.testing.assert_close(scores.log_density, head(z).logsumexp(1).detach())
    assert scores.distance.isnan().all()
    assert (scores.p_value > 0).all()
    assert (scores.p_value <= 1).all()
    # The rank of the energy: a lower density has no larger p-value.
    assert (scores.p_value[scores.log_density.argsort()].diff() >= 0).all()


def test_without_calibration_there_is_no_p_value():
    assert Scorer(mixture(AAGMM))(torch.randn(3, 4, dtype=torch.float64)).p_value.isnan().all()


def test_fifty_sigma_and_more_stay_numbers():
    head = mixture(AAGMM, dtype=torch.float32)
    z = torch.cat([head.centers.detach(), head.centers.detach() + 50 * head.variances.detach().sqrt()])
    scores = Scorer(head).calibrate(head.centers.detach())(z)
    for value in vars(scores).values():
        assert value.isfinite().all()
    assert (scores.distance[3:] > 20).all()
    assert (scores.distance[:3] < 1e-3).all()
    assert (scores.p_value[3:] == 0.25).all()


def test_a_sample_that_is_no_number_is_an_outlier():
    scorer = Scorer(mixture(AAGMM)).calibrate(torch.randn(9, 4, dtype=torch.float64))
    assert scorer(torch.full((1, 4), torch.nan, dtype=torch.float64)).p_value.item() == pytest.approx(0.1)


def test_half_precision_embeddings_are_taken():
    head = mixture(AAGMM, dtype=torch.float32)
    z = torch.randn(5, 4)
    full, half = Scorer(head)(z), Scorer(head)(z.half())
    torch.testing.assert_close(half.distance.float(), full.distance, rtol=1e-2, atol=1e-2)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="expected 'density': it has no centers"):
        Scorer(Linear(4, 3), score="nearest")
    with pytest.raises(ValueError, match="got 'judge' without a judge, expected one, or a score of the head"):
        Scorer(mixture(AAGMM), score="judge")
    with pytest.raises(ValueError, match="got no samples, expected at least one held-out inlier"):
        Scorer(mixture(AAGMM)).calibrate(torch.zeros(0, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="got no samples, expected at least one held-out inlier"):
        Scorer(Linear(4, 3)).calibrate(torch.zeros(0, 4))
    with pytest.raises(ValueError, match="got shape"):
        Scorer(mixture(AAGMM))(torch.zeros(2, 5, dtype=torch.float64))


def fitted_judge(K=3, F=5, *, missing=(), dtype=torch.float64, n=60):
    """A judge of unlike classes, and the samples that it was fitted to."""
    generator = torch.Generator().manual_seed(F)
    labels = torch.arange(n) % K
    labels = labels[~torch.isin(labels, torch.tensor(missing, dtype=torch.int64))]
    scale = torch.linspace(0.5, 3.0, F, dtype=torch.float64)
    x = torch.randn(len(labels), F, generator=generator, dtype=torch.float64) * scale + 4.0 * labels[:, None]
    return Judge(F, K).to(dtype).fit([(x.to(dtype), labels)]), x.to(dtype), labels


def naive_of_judge(head, judge, x, labels, calibration, z, stages):
    """Log density, distance, outlier score and p-value of each sample, from the samples of the fit.

    Only the shrinkage and the distances that are usual are the judge's own.
    """
    K, F = judge.num_classes, judge.num_features
    counts = [int((labels == k).sum()) for k in range(K)]
    means = [x[labels == k].mean(0) for k in range(K)]
    deviation = x - torch.stack([means[k] for k in labels.tolist()])
    scale = deviation.square().mean(0).sqrt()
    white = deviation / scale
    covariance = white.T @ white / len(x)
    a = float(judge.shrinkage)
    covariance = (1 - a) * covariance + a * covariance.trace() / F * torch.eye(F, dtype=x.dtype)
    covariance = scale[:, None] * covariance * scale
    rows = []
    for sample, stage in zip(z, stages, strict=True):
        distances, joint = [], []
        for k in range(K):
            if counts[k]:
                normal = torch.distributions.MultivariateNormal(means[k], covariance)
                joint.append(float(normal.log_prob(stage)) + math.log(counts[k] / len(x)))
                difference = stage - means[k]
                distances.append(math.sqrt(float(difference @ torch.linalg.solve(covariance, difference))))
        posterior = torch.softmax(head(sample[None])[0], 0).tolist()
        entropy = -sum(p * math.log(p) for p in posterior if p > 0)
        score = (min(distances) - float(judge.typical_distance)) / float(judge.distance_deviation) + entropy
        rank = sum(other >= score for other in calibration.tolist())
        rows.append(
            (
                math.log(sum(math.exp(value) for value in joint)),
                min(distances),
                score,
                (1 + rank) / (len(calibration) + 1),
            )
        )
    return [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]


class TestWithAJudge:
    @pytest.mark.parametrize("kind", [AAGMM, KMeans, Linear])
    @pytest.mark.parametrize(("K", "F", "missing"), [(1, 1, ()), (3, 5, ()), (3, 5, (1,)), (4, 1, (0, 3))])
    def test_every_figure_is_that_of_a_plain_loop(self, kind, K, F, missing):
        torch.manual_seed(0)
        head = kind(4, K).double() if kind is Linear else mixture(kind, K, 4)
        judge, x, labels = fitted_judge(K, F, missing=missing)
        z, stages = 3 * torch.randn(20, 4, dtype=torch.float64), 4 * torch.randn(20, F, dtype=torch.float64)
        calibration = torch.randn(37, dtype=torch.float64) * 3
        scores = Scorer(head, judge=judge, calibration_scores=calibration)(z, stages)
        expected = naive_of_judge(head, judge, x, labels, calibration, z, stages)
        names = ("log_density", "distance", "outlier_score", "p_value")
        for name, value in zip(names, expected, strict=True):
            torch.testing.assert_close(getattr(scores, name).double(), value, rtol=1e-6, atol=1e-8, msg=name)
        plain = Scorer(head)(z)
        assert torch.equal(scores.labels, plain.labels)
        assert torch.equal(scores.posterior, plain.posterior)

    def test_the_temperature_does_not_change_its_score(self):
        judge, x, _ = fitted_judge()
        head, z = mixture(AAGMM), torch.randn(20, 4, dtype=torch.float64)
        plain, cool = (Scorer(head, judge=judge, temperature=temperature)(z, x[:20]) for temperature in (1.0, 0.5))
        assert torch.equal(plain.outlier_score, cool.outlier_score)
        torch.testing.assert_close(cool.posterior, torch.softmax(2.0 * plain.posterior.log(), 1))

    def test_calibration_is_on_its_score(self):
        judge, x, _ = fitted_judge()
        head, z = mixture(AAGMM), torch.randn(60, 4, dtype=torch.float64)
        scorer = Scorer(head, judge=judge).calibrate(z[:40], x[:40])
        assert scorer.score_name == "judge"
        assert torch.equal(scorer.calibration_scores, scorer(z[:40], x[:40]).outlier_score.sort().values)
        far = scorer(z[:2], x[:2] + 1e3)
        assert (far.p_value == 1 / 41).all()
        with pytest.raises(ValueError, match="got no samples, expected at least one held-out inlier"):
            scorer.calibrate(z[:0], x[:0])

    def test_stages_are_needed_and_of_its_size(self):
        judge, x, _ = fitted_judge()
        scorer = Scorer(mixture(AAGMM), judge=judge)
        z = torch.zeros(2, 4, dtype=torch.float64)
        with pytest.raises(ValueError, match="stages: got none, expected the statistics of the network's stages"):
            scorer(z)
        with pytest.raises(ValueError, match="got none, expected the statistics"):
            scorer.calibrate(z)
        with pytest.raises(ValueError, match=r"got shape \(2, 4\)"):
            scorer(z, x[:2, :4])
        with pytest.raises(ValueError, match="got no fit"):
            Scorer(mixture(AAGMM), judge=Judge(5, 3).double())(z, x[:2])

    def test_another_score_is_the_heads_and_needs_no_stages(self):
        judge, _, _ = fitted_judge()
        head, z = mixture(AAGMM), torch.randn(9, 4, dtype=torch.float64)
        for score in ("nearest", "assigned", "farthest", "density"):
            scorer = Scorer(head, judge=judge, score=score)
            assert scorer.judge is None
            for got, expected in zip(
                vars(scorer(z)).values(), vars(Scorer(head, score=score)(z)).values(), strict=True
            ):
                torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)

    def test_in_float64_it_is_the_same_but_for_rounding(self):
        judge, x, _ = fitted_judge(dtype=torch.float32)
        head, z = mixture(AAGMM, dtype=torch.float32), torch.randn(60, 4)
        scorer = Scorer(head, judge=judge).calibrate(z[:40], x[:40])
        # Others than the calibration's own, whose ranks are ties.
        z, x = z[40:], x[40:]
        single = scorer(z, x)
        double = copy.deepcopy(scorer).double()(z.double(), x.double())
        assert double.outlier_score.dtype == torch.float64
        for name, value in vars(double).items():
            torch.testing.assert_close(getattr(single, name).double(), value.double(), rtol=1e-4, atol=1e-4, msg=name)
        # Stages in half precision, as files of features may hold them, are judged in the judge's dtype.
        assert scorer(z, x.half()).outlier_score.dtype == torch.float32

    def test_its_state_is_all_there_is(self):
        judge, x, _ = fitted_judge()
        head, z = mixture(AAGMM), torch.randn(60, 4, dtype=torch.float64)
        scorer = Scorer(head, judge=judge).calibrate(z[:40], x[:40])
        other = Scorer(AAGMM(4, 3).double(), judge=Judge(5, 3).double())
        other.load_state_dict(copy.deepcopy(scorer.state_dict()))
        for got, expected in zip(vars(other(z, x)).values(), vars(scorer(z, x)).values(), strict=True):
            assert torch.equal(got, expected)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_stages_that_are_no_numbers_are_outliers(self, value):
        judge, x, _ = fitted_judge()
        z = torch.randn(60, 4, dtype=torch.float64)
        scorer = Scorer(mixture(AAGMM), judge=judge).calibrate(z[:19], x[:19])
        x = x.clone()
        x[0, 2] = value
        scores = scorer(z, x)
        assert scores.outlier_score[0] == torch.inf
        assert scores.p_value[0] == pytest.approx(0.05)
        assert scores.outlier_score[1:].isfinite().all()
