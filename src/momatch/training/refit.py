"""The mixture in closed form: each class's mean and variance over what the averaged model is sure of (docs/method.md)."""

import torch
from torch import Tensor

from momatch.data.dataset import UNLABELED
from momatch.evaluate import Outputs, confident_samples, refit_head, run_classifier
from momatch.heads import GaussianMixtureHead
from momatch.training.setup import Training

#: So many images of the pool are enough for means and variances, and take a bounded time.
POOL_SAMPLES = 10_000


def refitted_head(training: Training, cutoff: float) -> GaussianMixtureHead | None:
    """A refitted copy of the averaged model's head; None for a head without centers."""
    average = training.step.average.classifier
    if not isinstance(average.head, GaussianMixtureHead):
        return None
    outputs, labels = _outputs(training)
    positions, classes = confident_samples(outputs, labels, cutoff=cutoff)
    return refit_head(average.head, outputs.z[positions], classes)


def refit_judge(training: Training, cutoff: float) -> None:
    """Bring the head by which outliers are judged up to date."""
    refitted = refitted_head(training, cutoff)
    detector = training.step.objective.detector
    if refitted is not None and detector is not None:
        detector.head.load_state_dict(refitted.state_dict())


def _outputs(training: Training) -> tuple[Outputs, Tensor]:
    """What the averaged model says about the labelled set and an even share of the pool, and the labels it may know."""
    data, average = training.data, training.step.average.classifier
    pool = data.unlabeled_images
    rows = torch.arange(0, len(pool), max(1, -(-len(pool) // POOL_SAMPLES)))
    parts = [run_classifier(average, data.labeled_images)]
    if len(rows):
        parts.append(run_classifier(average, pool.select(rows)))
    outputs = Outputs(torch.cat([part.z for part in parts]), torch.cat([part.log_joint for part in parts]))
    return outputs, torch.cat([data.labels, torch.full((len(rows),), UNLABELED)])
