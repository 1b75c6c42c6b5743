"""After training: refit the averaged model's mixture, fit the judge of outliers, calibrate posteriors and p-values.

Mixture and judge are in closed form, from the labelled samples and those with confident predictions (docs/method.md).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.config import TrainConfig
from momatch.data.dataset import UNLABELED
from momatch.evaluation.evaluate import Outputs, confident_samples, refit_head, run_classifier
from momatch.evaluation.judging import JudgedPool, fit_judge, likely_inliers
from momatch.evaluation.pool_judging import MOST_STATISTICS, judge_pool
from momatch.evidence import matched_temperature
from momatch.heads import Head
from momatch.models.saved_model import OutlierCalibration
from momatch.models.scorer import Scorer
from momatch.outliers import Judge
from momatch.training.setup import Training

#: Maximum number of pool images to refit on; enough for means and variances.
POOL_SAMPLES = 10_000
#: Maximum number of calibration images; p-values then have four digits.
CALIBRATION_SAMPLES = 10_000
#: Most times that the pool is judged during training.
MOST_WEIGHINGS = 4


@dataclass(frozen=True)
class PoolOutputs:
    """The averaged model's outputs for the labelled images and a sample of the pool.

    Attributes:
        outputs: the labelled images first.
        labels: their labels, -1 for the pool.
        positions: (n,) the images of the pool; none that is also labelled.
    """

    outputs: Outputs
    labels: Int64[Tensor, " all"]
    positions: Int64[Tensor, " n"]

    @property
    def of_pool(self) -> Outputs:
        """Of the images of the pool."""
        return self.outputs.select((self.labels == UNLABELED).nonzero().flatten())


def run_on_pool(
    training: Training,
    stage_names: Sequence[str] | None = None,
    *,
    at_most: int | None = None,
    most_statistics: int | None = None,
) -> PoolOutputs:
    """Run the averaged model on the labelled images and the pool, or every k-th of it; with stages if they are named."""
    run = partial(run_classifier, stage_names=stage_names, most_statistics=most_statistics)
    data, average = training.data, training.step.average.classifier
    # A judge has seen the labelled ones, and they would look more ordinary than any other.
    positions = (~data.is_shown).nonzero().flatten()
    if at_most is not None:
        positions = positions[:: max(1, -(-len(positions) // at_most))]
    outputs = run(average, data.labeled)
    if len(positions):
        outputs = outputs.append(run(average, data.unlabeled.select(positions)))
    return PoolOutputs(outputs, torch.cat([data.labels, torch.full((len(positions),), UNLABELED)]), positions)


def _refitted(head: Head, found: PoolOutputs, cutoff: float) -> Head | None:
    positions, classes = confident_samples(found.outputs, found.labels, cutoff=cutoff)
    return refit_head(head, found.outputs.z[positions], classes)


@dataclass(frozen=True)
class Judged:
    """The judge, and what it was fitted to.

    Attributes:
        pool: outputs of the averaged model.
        found: the judge of its stages, and what it says of the same images.
    """

    pool: PoolOutputs
    found: JudgedPool

    @property
    def judge(self) -> Judge:
        """The judge."""
        return self.found.judge

    @property
    def p_inlier(self) -> Float[Tensor, " n"]:
        """P(inlier) of the images of the pool."""
        return self.found.p_inlier[self.pool.labels == UNLABELED]


@dataclass(frozen=True)
class Fitted:
    """What is fitted to the trained network's outputs.

    Attributes:
        refitted: the averaged model's head, refitted; None if the config does without, or it has no centers.
        judged: the judge; None if the config does without.
        calibration: outlier scores of the calibration images; None if there are none.
        temperature: of the averaged model's posterior: as confident as the evidence is about the pool; 1 without evidence.
    """

    refitted: Head | None
    judged: Judged | None
    calibration: OutlierCalibration | None
    temperature: float


def fit_to_outputs(training: Training, config: TrainConfig) -> Fitted:
    """Fit all of it."""
    average = training.step.average.classifier
    refits, judges = config.refit and average.head.has_centers, config.judge == "stages"
    refitted = judged = None
    if refits or judges:
        names = training.input.stage_names(average) if judges else None
        found = run_on_pool(training, names, at_most=POOL_SAMPLES)
        refitted = _refitted(average.head, found, config.cutoff) if refits else None
        if names is not None:
            fitted = fit_judge(found.outputs, found.labels, cutoff=config.cutoff, stage_names=names)
            judged = Judged(found, fitted)
    rows = training.calibration.rows.even_share(CALIBRATION_SAMPLES)
    if len(rows) == 0:
        return Fitted(refitted, judged, None, 1.0)
    outputs = run_classifier(average, rows, stage_names=None if judged is None else judged.judge.stage_names)
    calibration = _calibration(training, outputs, refitted, judged)
    confidence = None if training.guide is None else training.guide.confidence
    # Not on the pool: what the network was trained on it is more sure of than of anything new.
    temperature = 1.0 if confidence is None else matched_temperature(outputs.log_joint.double().numpy(), confidence)
    return Fitted(refitted, judged, calibration, temperature)


def _calibration(
    training: Training, outputs: Outputs, refitted: Head | None, judged: Judged | None
) -> OutlierCalibration:
    """Outlier scores of the calibration images."""
    head = training.step.average.classifier.head
    # Copies: the outputs are on the CPU, and the model to be saved must stay on its device.
    copied, outlier_head = copy.deepcopy(head).cpu(), copy.deepcopy(head if refitted is None else refitted).cpu()
    scorer = Scorer(copied, outlier_head, judge=None if judged is None else judged.judge)
    if judged is not None and training.calibration.of_pool:
        outputs = outputs.select(likely_inliers(judged.found, outputs))
    scorer.calibrate(outputs.z, outputs.stages)
    return OutlierCalibration(scorer.calibration_scores, scorer.score_name, training.calibration.source)


def refit_outlier_head(training: Training, cutoff: float) -> None:
    """Update the head that scores outliers during training from the averaged model."""
    head, detector = training.step.average.classifier.head, training.step.objective.detector
    refitted = None if detector is None else _refitted(head, run_on_pool(training, at_most=POOL_SAMPLES), cutoff)
    if refitted is not None and detector is not None:
        detector.head.load_state_dict(refitted.state_dict())


def weighing_steps(config: TrainConfig, pool_size: int, *, stages_change: bool = True) -> frozenset[int]:
    """The steps before which `weigh_pool` is due.

    Stages that do not change are judged once, before the first. Otherwise it is one to four times, evenly spaced from a tenth
    of the training on (once: at a quarter), because a network that has learned nothing yet cannot tell what is new. The passes
    over the pool cost about a twentieth of the training, or are only one.
    """
    if not stages_change:
        return frozenset({0})
    trained = config.steps * (config.labeled_batch_size + 2 * config.unlabeled_batch_size)
    # A pass costs about a third of a training step for the same images.
    times = max(1, min(MOST_WEIGHINGS, int(0.05 * 3 * trained / max(1, pool_size))))
    first = 0.1 if times > 1 else 0.25
    spaced = (round(config.steps * (first + (1.0 - first) * turn / times)) for turn in range(times))
    return frozenset(min(step, config.steps - 1) for step in spaced)


def weigh_pool(training: Training) -> None:
    """Judge the whole pool by the averaged model's stages: samples count by their P(inlier), likely outliers are left out."""
    weights = training.step.objective.inlier_probability
    assert weights is not None, "outliers is auto"
    # Labelled images in the pool are inliers, and keep their weight of 1.
    names = training.input.stage_names(training.step.average.classifier)
    found = run_on_pool(training, names, most_statistics=MOST_STATISTICS)
    p_inlier = judge_pool(found.outputs, found.labels)[found.labels == UNLABELED]
    weights[found.positions.to(weights.device)] = p_inlier.to(weights)
    training.leave_out_outliers()
