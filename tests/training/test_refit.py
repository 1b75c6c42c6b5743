"""What a finished run fits to its pool, and which images of the pool it calibrates p-values on."""

from dataclasses import replace

import pytest
import torch

from momatch.evaluation.judging import JudgedPool, judge_scores, likely_inliers
from momatch.outliers import Judge
from momatch.outliers.contamination import TwoGaussians
from momatch.training.fit import fit
from momatch.training.refit import Judged, PoolOutputs
from tests.evaluation.made_up_outputs import F, K, made, split
from tests.training.test_weighing import WITH_NOISE, config, far_dataset

COMPONENTS = TwoGaussians(means=(0.0, 1.0), variances=(1.0, 1.0), upper_share=0.5, log_likelihood=0.0, gain=1.0)


def judged(components=None):
    """A judge of labelled samples; of the pool it is made up what was found."""
    truth, known = split(pool=10)
    outputs, labeled = made(truth), known >= 0
    judge = Judge(F, K).fit([(outputs.stages[labeled], known[labeled])])
    found = JudgedPool(judge, torch.ones(len(truth), dtype=torch.float64), components)
    return Judged(PoolOutputs(outputs, known, torch.arange(10)), found)


def kept(monkeypatch, p_inlier, components=COMPONENTS):
    """Positions of the calibration images that are used, and the scores of all; P(inlier) is what the test says."""
    monkeypatch.setattr(TwoGaussians, "lower", lambda _, distance: p_inlier.expand_as(distance))
    found = judged(components).found
    outputs = made(torch.arange(len(p_inlier)) % K, seed=1)
    return likely_inliers(found, outputs).tolist(), judge_scores(found.judge, outputs)["judge"]


def test_images_are_kept_in_proportion_to_their_p_inlier(monkeypatch):
    p_inlier = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, scores = kept(monkeypatch, p_inlier)
    # By hand, with doubled odds: in the order of the scores, one is kept whenever the sum of the probabilities passes a half.
    total, expected = 0.0, []
    for i in scores.argsort().tolist():
        odds = 2 * float(p_inlier[i]) / (1 - float(p_inlier[i]))
        before, total = total, total + odds / (1 + odds)
        if int(before + 0.5) < int(total + 0.5):
            expected.append(i)
    assert found == sorted(expected)
    assert 100 < len(expected) < 150


def test_sure_inliers_are_all_kept_and_sure_outliers_never(monkeypatch):
    found, _ = kept(monkeypatch, (torch.arange(60) % 3 > 0).double())
    assert found == [i for i in range(60) if i % 3 > 0]


def test_without_evidence_of_outliers_in_the_pool_all_are_kept(monkeypatch):
    found, _ = kept(monkeypatch, torch.zeros(60).double(), components=None)
    assert found == list(range(60))


def test_if_none_looks_like_an_inlier_all_are_kept(monkeypatch):
    found, _ = kept(monkeypatch, torch.full((6,), 0.01, dtype=torch.float64))
    assert found == list(range(6))


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
    pool = judged().pool
    is_pool = pool.labels < 0
    assert torch.equal(pool.of_pool.stages, pool.outputs.stages[is_pool])
    assert torch.equal(pool.of_pool.z, pool.outputs.z[is_pool])
