"""After training: refit the averaged model's mixture, fit the judge of outliers, calibrate p-values (docs/method.md).

Both are in closed form, from the labelled samples and those with confident predictions.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.config import TrainConfig
from momatch.data.dataset import UNLABELED
from momatch.evaluation.evaluate import Outputs, confident_samples, refit_head, run_classifier
from momatch.evaluation.judging import fit_judge
from momatch.evaluation.pool_judging import judge_pool
from momatch.heads import Head
from momatch.models.saved_model import OutlierCalibration
from momatch.models.scorer import Scorer
from momatch.outliers import Judge
from momatch.training.setup import Training

#: Maximum number of pool images to refit on; enough for means and variances.
POOL_SAMPLES = 10_000
#: Maximum number of calibration images; p-values then have four digits.
CALIBRATION_SAMPLES = 10_000
#: Least P(inlier) of a calibration image from a pool with many outliers.
LIKELY_INLIER = 0.5
#: Most times that the pool is judged during training.
MOST_WEIGHINGS = 10


def refitted_head(training: Training, cutoff: float) -> Head | None:
    """A refitted copy of the averaged model's head; None for a head without centers."""
    average = training.step.average.classifier
    if not average.head.has_centers:
        return None
    outputs, labels = _outputs(training)
    positions, classes = confident_samples(outputs, labels, cutoff=cutoff)
    return refit_head(average.head, outputs.z[positions], classes)


@dataclass(frozen=True)
class Judged:
    """The judge, and what the model and it found in the pool.

    Attributes:
        judge: of the averaged model's stages.
        positions: (n,) images of the pool that are not also labelled, at most `POOL_SAMPLES`.
        outputs: the averaged model's, of these images.
        p_inlier: (n,) result of `judge_pool`.
    """

    judge: Judge
    positions: Int64[Tensor, " n"]
    outputs: Outputs
    p_inlier: Float[Tensor, " n"]

    @property
    def outlier_share(self) -> float:
        """Estimated share of outliers in the pool; 0 for an empty one."""
        return float(1.0 - self.p_inlier.mean()) if len(self.p_inlier) else 0.0


def fitted_judge(training: Training, cutoff: float) -> Judged:
    """A judge of the averaged model's stages, and the pool judged, in one pass of the network."""
    names = training.input.stage_names(training.step.average.classifier)
    outputs, labels = _outputs(training, names)
    p_inlier = judge_pool(outputs, labels)
    judge = fit_judge(outputs, labels, cutoff=cutoff, stage_names=names, p_inlier=p_inlier)
    in_pool = torch.arange(len(training.data.labels), len(labels))
    return Judged(judge, _pool_positions(training), outputs.select(in_pool), p_inlier[in_pool])


def calibration(training: Training, refitted: Head | None, judged: Judged | None) -> OutlierCalibration | None:
    """Outlier scores of the calibration images; None if there are none.

    Args:
        training: the finished training.
        refitted: result of `refitted_head`; None scores with the averaged model's head.
        judged: result of `fitted_judge`; None if the head scores outliers.
    """
    rows = training.calibration.rows
    if len(rows) == 0:
        return None
    average = training.step.average.classifier
    outlier_head = average.head if refitted is None else refitted
    judge = None if judged is None else judged.judge
    names = None if judge is None else judge.stage_names
    outputs = run_classifier(average, rows.even_share(CALIBRATION_SAMPLES), stage_names=names)
    # Copies: the outputs are on the CPU, and the model to be saved must stay on its device.
    scorer = Scorer(copy.deepcopy(average.head).cpu(), copy.deepcopy(outlier_head).cpu(), judge=judge)
    if judged is not None and training.calibration.of_pool:
        outputs = _without_junk(training, judged, outputs)
    scorer.calibrate(outputs.z, outputs.stages)
    return OutlierCalibration(scorer.calibration_scores, scorer.score_name, training.calibration.source)


def _without_junk(training: Training, judged: Judged, outputs: Outputs) -> Outputs:
    """The calibration images without likely outliers.

    Junk among them would raise every p-value, and hide the junk to come. What is left of it still does, and some inliers go
    with it, so that the bound on false positives holds only roughly. A pool that seems clean is left as it is.
    """
    average, data = training.step.average.classifier, training.data
    labeled = run_classifier(average, data.labeled, stage_names=judged.judge.stage_names)
    everything = labeled.append(judged.outputs).append(outputs)
    labels = torch.cat([data.labels, torch.full((len(everything) - len(labeled),), UNLABELED)])
    usual = (judge_pool(everything, labels)[-len(outputs) :] >= LIKELY_INLIER).nonzero().flatten()
    return outputs.select(usual) if len(usual) else outputs


def refit_outlier_head(training: Training, cutoff: float) -> None:
    """Update the head that scores outliers during training from the averaged model."""
    refitted = refitted_head(training, cutoff)
    detector = training.step.objective.detector
    if refitted is not None and detector is not None:
        detector.head.load_state_dict(refitted.state_dict())


def weighing_steps(config: TrainConfig, pool_size: int) -> frozenset[int]:
    """The steps before which `weigh_pool` is due: two to ten, evenly spaced, from a tenth of the training on.

    A network that has learned nothing yet cannot tell what is new. There are few enough that the passes over the pool cost
    about a twentieth of the training, unless it is so short that two cost more.
    """
    trained = config.steps * (config.labeled_batch_size + 2 * config.unlabeled_batch_size)
    # A pass costs about a third of a training step for the same images.
    times = max(2, min(MOST_WEIGHINGS, int(0.05 * 3 * trained / max(1, pool_size))))
    spaced = (round(config.steps * (0.1 + 0.9 * turn / times)) for turn in range(times))
    return frozenset(min(step, config.steps - 1) for step in spaced)


def weigh_pool(training: Training) -> None:
    """Judge the whole pool by the averaged model's stages, and weight its samples by their P(inlier)."""
    weights = training.step.objective.inlier_probability
    assert weights is not None, "outliers is auto"
    data, average = training.data, training.step.average.classifier
    names = training.input.stage_names(average)
    labeled = run_classifier(average, data.labeled, stage_names=names)
    # Labelled images in the pool are inliers, and the judge has seen them.
    rest = (~data.is_shown).nonzero().flatten()
    if len(rest):
        outputs = labeled.append(run_classifier(average, data.unlabeled.select(rest), stage_names=names))
        found = judge_pool(outputs, torch.cat([data.labels, torch.full((len(rest),), UNLABELED)]))
        weights[rest.to(weights.device)] = found[len(labeled) :].to(weights)


def _outputs(training: Training, stage_names: Sequence[str] | None = None) -> tuple[Outputs, Tensor]:
    """The averaged model's outputs for the labelled set and a sample of the pool, and their labels (-1 for the pool)."""
    data, average = training.data, training.step.average.classifier
    pool = data.unlabeled.select(_pool_positions(training))
    outputs = run_classifier(average, data.labeled, stage_names=stage_names)
    if len(pool):
        outputs = outputs.append(run_classifier(average, pool, stage_names=stage_names))
    return outputs, torch.cat([data.labels, torch.full((len(pool),), UNLABELED)])


def _pool_positions(training: Training) -> Int64[Tensor, " n"]:
    """The images of the pool that are used: every k-th, at most `POOL_SAMPLES`, without those that are also labelled.

    A judge has seen these, and they would look more ordinary than any other.
    """
    positions = (~training.data.is_shown).nonzero().flatten()
    return positions[:: max(1, -(-len(positions) // POOL_SAMPLES))]
