"""What a finished run fits to its pool: how sure it is of outliers, and which images of the pool it calibrates p-values on."""

from dataclasses import replace

import pytest
import torch

from momatch.outliers import Judge
from momatch.training import refit
from momatch.training.fit import fit
from momatch.training.refit import Judged, PoolOutputs
from tests.evaluation.made_up_outputs import F, K, made, split
from tests.training.test_fit import config
from tests.training.test_weighing import WITH_NOISE, far_dataset


def judged(p_inlier, truth, known):
    """A judge of the labelled samples; of the pool it is made up what was found."""
    outputs, labeled = made(truth), known >= 0
    judge = Judge(F, K).fit([(outputs.stages[labeled], known[labeled])])
    positions = torch.arange(int((~labeled).sum()))
    return Judged(judge, PoolOutputs(outputs, known, positions), torch.as_tensor(p_inlier, dtype=torch.float64))


# --- Evidence ---


@pytest.mark.parametrize(
    ("lowest", "evidence"), [(1.0, 0.0), (0.99, 0.02), (0.75, 0.5), (0.5, 1.0), (0.2, 1.0), (0.0, 1.0)]
)
def test_evidence_is_twice_that_of_the_most_outlying_image(lowest, evidence):
    truth, known = split(pool=10)
    p_inlier = torch.ones(10)
    p_inlier[4] = lowest
    assert judged(p_inlier, truth, known).evidence == pytest.approx(evidence)


def test_damaged_images_are_no_evidence():
    truth, known = split(pool=10)
    p_inlier = torch.ones(10)
    p_inlier[4] = 0.0
    found = judged(p_inlier, truth, known)
    found.pool.outputs.stages[known < 0] *= torch.where(p_inlier == 0, torch.nan, 1.0).unsqueeze(1)
    assert found.evidence == 0
    found.pool.outputs.stages.fill_(torch.nan)
    assert found.evidence == 0


def test_without_a_pool_there_is_no_evidence():
    truth, known = split(pool=0)
    assert judged(torch.ones(0), truth, known).evidence == 0


# --- Calibration ---


class Posterior:
    """Stands in for the components of the scores: P(inlier) is what the test says."""

    def __init__(self, p_inlier):
        self.p_inlier = p_inlier

    def lower(self, distance):
        assert distance.shape == self.p_inlier.shape
        return self.p_inlier


def kept(monkeypatch, p_inlier, scores, *, evidence=1.0):
    """Positions of the calibration images that are used."""
    truth, known = split(pool=10)
    found = judged(torch.full((10,), 1.0 - evidence / 2), truth, known)
    monkeypatch.setattr(refit, "two_gaussians", lambda distance: Posterior(p_inlier))
    outputs = made(torch.arange(len(scores)) % K, seed=1)
    return refit._likely_inliers(found, outputs, scores).tolist()


@pytest.mark.parametrize("evidence", [1.0, 0.4])
def test_images_are_kept_in_proportion_to_their_p_inlier(monkeypatch, evidence):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=generator)
    p_inlier = torch.rand(200, generator=generator, dtype=torch.float64)
    # By hand: in the order of the scores, one is kept whenever the sum of the probabilities passes a half.
    total, expected = 0.0, []
    for i in scores.argsort().tolist():
        before, total = total, total + 1 - evidence * (1 - float(p_inlier[i]))
        if int(before + 0.5) < int(total + 0.5):
            expected.append(i)
    assert kept(monkeypatch, p_inlier, scores, evidence=evidence) == expected
    assert len(expected) == pytest.approx(200 * (1 - evidence / 2), rel=0.05)


def test_sure_inliers_are_all_kept_and_sure_outliers_never(monkeypatch):
    scores = torch.randn(60, generator=torch.Generator().manual_seed(0))
    p_inlier = (torch.arange(60) % 3 > 0).double()
    assert sorted(kept(monkeypatch, p_inlier, scores)) == [i for i in range(60) if i % 3 > 0]


def test_no_more_go_than_the_pool_has_outliers(monkeypatch):
    """Most calibration images look strange, but of the pool only a tenth was: at most one and a half times as many go."""
    truth, known = split(pool=10)
    of_pool = torch.ones(10)
    of_pool[0] = 0.0
    found = judged(of_pool, truth, known)
    p_inlier = torch.where(torch.arange(200) % 4 == 0, 1.0, 0.0).double()
    scores = torch.randn(200, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(refit, "two_gaussians", lambda distance: Posterior(p_inlier))
    rest = set(range(200)) - set(refit._likely_inliers(found, made(torch.arange(200) % K, seed=1), scores).tolist())
    assert len(rest) == pytest.approx(1.5 * 0.1 * 200, abs=1)
    assert all(i % 4 for i in rest)


def test_without_evidence_all_are_kept(monkeypatch):
    scores = torch.randn(60)
    assert sorted(kept(monkeypatch, torch.zeros(60).double(), scores, evidence=0.0)) == list(range(60))


@pytest.mark.parametrize("junk", [False, True])
def test_p_values_are_calibrated_without_the_pools_junk(tmp_path, junk):
    dataset = far_dataset()
    settings = {"steps": 60, "eval_interval": 0, **WITH_NOISE, "held_out_in_pool": junk}
    run = fit(config(tmp_path / "run", calibration_fraction=0.4, **settings), replace(dataset, test=None))
    scores, noise = run.model.calibration.scores, dataset.train.images[160:]
    of_noise = run.predict(noise).outlier_score
    assert float((of_noise > scores.max()).float().mean()) > 0.9
    # 40 percent of what is not labelled is kept for calibration.
    assert len(scores) == pytest.approx(0.4 * (160 - 24), abs=12)
    # Otherwise the junk, a third of the pool, would keep new junk from being flagged.
    assert (run.predict(noise).p_value < 0.05).float().mean() > 0.9


def test_stages_come_with_outputs():
    """The outputs of a judged pool are selected with their stages."""
    truth, known = split(pool=10)
    pool = judged(torch.ones(10), truth, known).pool
    for part, mask in ((pool.of_labeled, known >= 0), (pool.of_pool, known < 0)):
        assert torch.equal(part.stages, pool.outputs.stages[mask])
        assert torch.equal(part.z, pool.outputs.z[mask])
