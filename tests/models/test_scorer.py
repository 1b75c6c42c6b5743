import math

import pytest
import torch

from momatch.heads import AAGMM, KMeans, Linear
from momatch.models.scorer import Scorer
from momatch.outliers import OutlierDetector


def mixture(kind, K=3, D=4, *, dtype=torch.float64):
    torch.manual_seed(K * D)
    head = kind(D, K).to(dtype)
    head.refit(3 * torch.randn(60, D, dtype=dtype), torch.arange(60) % K)
    return head


def naive(head, judge, calibration, z):
    """Every figure in a plain loop over samples and classes."""
    rows = []
    for sample in z:
        joint = [math.exp(value) for value in head(sample[None])[0].tolist()]
        judged = [math.exp(value) for value in judge(sample[None])[0].tolist()]
        distances = [
            math.sqrt(sum((a - m) ** 2 / v for a, m, v in zip(sample.tolist(), mean, variance, strict=True)))
            for mean, variance in zip(judge.centers.tolist(), judge.variances.tolist(), strict=True)
        ]
        rank = sum(score >= min(distances) for score in calibration.tolist())
        rows.append(
            (
                joint.index(max(joint)),
                [value / sum(joint) for value in joint],
                math.log(sum(judged)),
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
    head, judge = mixture(kind, K, D), mixture(AAGMM, K, D)
    z = 3 * torch.randn(20, D, dtype=torch.float64)
    calibration = torch.rand(37, dtype=torch.float64) * 3
    scores = Scorer(head, judge, calibration_scores=calibration)(z)
    for got, expected in zip(vars(scores).values(), naive(head, judge, calibration, z), strict=True):
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
    with pytest.raises(ValueError, match="got shape"):
        Scorer(mixture(AAGMM))(torch.zeros(2, 5, dtype=torch.float64))
