"""What a finished run fits to its pool, and which images of the pool it calibrates p-values on."""

from dataclasses import replace

import pytest
import torch

from momatch.evaluation import judging
from momatch.evaluation.judging import judge_scores, likely_inliers
from momatch.outliers import Judge
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


class Posterior:
    """Stands in for the components of the scores: P(inlier) is what the test says."""

    def __init__(self, p_inlier):
        self.p_inlier = p_inlier

    def lower(self, distance):
        assert distance.shape == self.p_inlier.shape
        return self.p_inlier


def kept(monkeypatch, p_inlier, of_pool):
    """Positions of the calibration images that are used, and the scores of all."""
    truth, known = split(pool=10)
    judge = judged(torch.ones(10), truth, known).judge
    monkeypatch.setattr(judging, "two_gaussians", lambda distance: Posterior(p_inlier))
    outputs = made(torch.arange(len(p_inlier)) % K, seed=1)
    found = likely_inliers(judge, outputs, torch.as_tensor(of_pool, dtype=torch.float64)).tolist()
    return found, judge_scores(judge, outputs)["judge"]


def test_images_are_kept_in_proportion_to_their_p_inlier(monkeypatch):
    p_inlier = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, scores = kept(monkeypatch, p_inlier, torch.full((10,), 0.4))
    # By hand: in the order of the scores, one is kept whenever the sum of the probabilities passes a half.
    total, expected = 0.0, []
    for i in scores.argsort().tolist():
        before, total = total, total + float(p_inlier[i])
        if int(before + 0.5) < int(total + 0.5):
            expected.append(i)
    assert found == sorted(expected)
    assert len(expected) == pytest.approx(100, abs=10)


def test_sure_inliers_are_all_kept_and_sure_outliers_never(monkeypatch):
    found, _ = kept(monkeypatch, (torch.arange(60) % 3 > 0).double(), torch.full((10,), 0.4))
    assert found == [i for i in range(60) if i % 3 > 0]


def test_no_more_go_than_the_pool_has_outliers(monkeypatch):
    """Most calibration images look strange, but of the pool only a tenth was: at most one and a half times as many go."""
    found, _ = kept(monkeypatch, (torch.arange(200) % 4 == 0).double(), [0.0] + [1.0] * 9)
    rest = set(range(200)) - set(found)
    assert len(rest) == pytest.approx(1.5 * 0.1 * 200, abs=1)
    assert all(i % 4 for i in rest)


@pytest.mark.parametrize("lowest", [1.0, 0.9, 0.5])
def test_without_likely_outliers_in_the_pool_all_are_kept(monkeypatch, lowest):
    found, _ = kept(monkeypatch, torch.zeros(60).double(), [lowest] + [1.0] * 9)
    assert found == list(range(60))


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
    assert torch.equal(pool.of_pool.stages, pool.outputs.stages[known < 0])
    assert torch.equal(pool.of_pool.z, pool.outputs.z[known < 0])
