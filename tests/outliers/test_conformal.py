"""What conformal p-values promise, over 200 random calibration splits; benchmarks/conformal.py measures the same on whole runs.

Promised is an expectation: the mean over splits may lie above its bound by Monte-Carlo error alone, three standard errors here.
"""

import math

import pytest
import torch

from momatch import TrainConfig, fit
from momatch.data.load import load_dataset
from momatch.heads import AAGMM
from momatch.outliers import OutlierDetector, benjamini_hochberg
from momatch.outliers.conformal import conformal_p_value

SPLITS = 200
LEVELS = (0.05, 0.10, 0.20)
TOLERANCE = 3.0


def mixture():
    head = AAGMM(2, 3)
    head.refit(torch.randn(60, 2) + 4 * torch.eye(3, 2).repeat(20, 1), torch.arange(60) % 3)
    return head


def inliers(*, tied):
    """500 embeddings of a mixture; on a coarse grid, where many scores are the same, if `tied`."""
    z = mixture().sample(500)
    return 2 * (z / 2).round() if tied else z


def right(detector, z):
    return detector.p_value(z)


def without_the_one(detector, z):
    calibration = detector.calibration_scores
    return (len(calibration) - torch.searchsorted(calibration, detector.score(z))) / len(calibration)


def without_equal_scores(detector, z):
    calibration = detector.calibration_scores
    larger = len(calibration) - torch.searchsorted(calibration, detector.score(z), right=True)
    return (1.0 + larger) / (len(calibration) + 1.0)


def over_splits(detector, z, *, m, outliers=None, p_value=right):
    """Level -> for each split: share of inliers with p <= level; of inliers among what BH names; of outliers that BH names."""
    generator = torch.Generator().manual_seed(0)
    found = {level: ([], [], []) for level in LEVELS}
    for _ in range(SPLITS):
        order = torch.randperm(len(z), generator=generator)
        detector.calibrate(z[order[:m]])
        batch = z[order[m:]] if outliers is None else torch.cat([z[order[m:]], outliers])
        p, n = p_value(detector, batch), len(z) - m
        for level, (alarms, false, power) in found.items():
            alarms.append(float((p[:n] <= level).double().mean()))
            if outliers is not None:
                named = benjamini_hochberg(p, level)
                wrong, hits = int(named[:n].sum()), int(named[n:].sum())
                false.append(wrong / max(1, wrong + hits))
                power.append(hits / len(outliers))
    return found


def mean_and_error(values):
    values = torch.tensor(values, dtype=torch.float64)
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


def is_within(values, bound):
    mean, error = mean_and_error(values)
    return mean <= bound + TOLERANCE * error


@pytest.mark.parametrize(("m", "tied"), [(19, False), (20, False), (199, False), (199, True)])
def test_false_alarms_stay_within_alpha(m, tied):
    found = over_splits(OutlierDetector(mixture()), inliers(tied=tied), m=m)
    for alpha, (alarms, _, _) in found.items():
        assert is_within(alarms, alpha)
        if not tied:
            # Nothing is given away either: this is the rate that the ranks of m + 1 exchangeable scores have.
            exact = math.floor(alpha * (m + 1) + 1e-9) / (m + 1)
            mean, error = mean_and_error(alarms)
            assert mean == pytest.approx(exact, abs=TOLERANCE * error)
            # Which is a mean: of single splits, many lie above.
            assert sum(rate > alpha for rate in alarms) > SPLITS / 10


@pytest.mark.parametrize("count", [30, 120])
def test_false_discoveries_stay_within_fdr_times_the_share_of_inliers(count):
    m, z = 199, inliers(tied=False)
    found = over_splits(OutlierDetector(mixture()), z, m=m, outliers=8 + torch.randn(count, 2))
    for fdr, (_, false, _) in found.items():
        assert is_within(false, fdr * (len(z) - m) / (len(z) - m + count))
    # A procedure that names nothing keeps every bound.
    assert mean_and_error(found[0.20][2])[0] > 0.9
    assert mean_and_error(found[0.20][1])[0] > 0.1


@pytest.mark.parametrize(("formula", "tied", "m"), [(without_the_one, False, 20), (without_equal_scores, True, 199)])
def test_the_check_of_false_alarms_notices_a_wrong_formula(formula, tied, m):
    found = over_splits(OutlierDetector(mixture()), inliers(tied=tied), m=m, p_value=formula)
    assert not is_within(found[0.05][0], 0.05)


def test_the_check_of_false_discoveries_notices_a_wrong_formula():
    z, outliers, m = inliers(tied=False), 8 + torch.randn(30, 2), 20
    bound = 0.1 * (len(z) - m) / (len(z) - m + len(outliers))
    detector = OutlierDetector(mixture())
    assert is_within(over_splits(detector, z, m=m, outliers=outliers)[0.10][1], bound)
    assert not is_within(over_splits(detector, z, m=m, outliers=outliers, p_value=without_the_one)[0.10][1], bound)


class OfScores:
    """A detector whose samples are their own scores: a network need not run again for every split."""

    def calibrate(self, scores):
        self.calibration = scores.sort().values

    def p_value(self, scores):
        return conformal_p_value(self.calibration, scores)


@pytest.mark.slow
def test_on_digits(tmp_path):
    # However little the network has learned, the promise holds.
    run = fit(TrainConfig(steps=20, eval_interval=0, run_dir=str(tmp_path), progress=False))
    images = load_dataset("digits", size=16).test.images
    scores, outliers = (run.predict(rows).outlier_score for rows in (images, 255 - images[:150]))
    found = over_splits(OfScores(), scores, m=299, outliers=outliers)
    for level, (alarms, false, _) in found.items():
        assert is_within(alarms, level)
        assert is_within(false, level * 201 / 351)
