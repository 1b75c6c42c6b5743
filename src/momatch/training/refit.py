"""What the end of training adds to the averaged model: the mixture in closed form, and calibration (docs/method.md).

The mixture has each class's mean and variance over the samples that the averaged model is confident about.
"""

import copy

import torch
from torch import Tensor

from momatch.data.dataset import UNLABELED
from momatch.evaluation.evaluate import Outputs, confident_samples, refit_head, run_classifier
from momatch.heads import Head
from momatch.models.saved_model import OutlierCalibration
from momatch.models.scorer import Scorer
from momatch.training.setup import Training

#: Images of the pool used at most: enough for means and variances, and the time is bounded.
POOL_SAMPLES = 10_000
#: Calibration images used at most: p-values then have four digits.
CALIBRATION_SAMPLES = 10_000


def refitted_head(training: Training, cutoff: float) -> Head | None:
    """A refitted copy of the averaged model's head; None for a head without centers."""
    average = training.step.average.classifier
    if not average.head.has_centers:
        return None
    outputs, labels = _outputs(training)
    positions, classes = confident_samples(outputs, labels, cutoff=cutoff)
    return refit_head(average.head, outputs.z[positions], classes)


def calibration(training: Training, refitted: Head | None) -> OutlierCalibration | None:
    """Outlier scores of images that were not trained on, by the refitted mixture where there is one; None without images.

    Args:
        training: finished.
        refitted: the result of `refitted_head`.
    """
    rows = training.calibration.rows
    if len(rows) == 0:
        return None
    average = training.step.average.classifier
    outlier_head = average.head if refitted is None else refitted
    z = run_classifier(average, rows.even_share(CALIBRATION_SAMPLES)).z
    # Outputs are on the CPU, and the model that is saved must stay where it is.
    scorer = Scorer(copy.deepcopy(outlier_head).cpu()).calibrate(z)
    return OutlierCalibration(scorer.calibration_scores, scorer.detector.score_name, training.calibration.source)


def refit_outlier_head(training: Training, cutoff: float) -> None:
    """Bring the head that scores outliers in training up to date with the averaged model."""
    refitted = refitted_head(training, cutoff)
    detector = training.step.objective.detector
    if refitted is not None and detector is not None:
        detector.head.load_state_dict(refitted.state_dict())


def _outputs(training: Training) -> tuple[Outputs, Tensor]:
    """Outputs of the averaged model for the labelled set and an even share of the pool, and the labels that are shown."""
    data, average = training.data, training.step.average.classifier
    pool = data.unlabeled.even_share(POOL_SAMPLES)
    parts = [run_classifier(average, data.labeled)]
    if len(pool):
        parts.append(run_classifier(average, pool))
    outputs = Outputs(torch.cat([part.z for part in parts]), torch.cat([part.log_joint for part in parts]))
    return outputs, torch.cat([data.labels, torch.full((len(pool),), UNLABELED)])
