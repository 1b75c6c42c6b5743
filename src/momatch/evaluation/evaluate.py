"""From a classifier's outputs to metrics: accuracy, calibration, compactness, outlier scores; and the closed-form refit.

No run and no files here: `momatch.inference.evaluate` evaluates a finished run on its data, `metrics` are the formulas.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.data.dataset import UNLABELED
from momatch.data.rows import Rows
from momatch.evaluation.metrics import (
    Calibration,
    alignment,
    auroc,
    calibration,
    compactness,
    confusion_matrix,
    fpr95,
    log_doubt,
    negative_log_likelihood,
)
from momatch.heads import Head, log_density, log_posterior
from momatch.models.classifier import Classifier
from momatch.models.outputs import Outputs, run_classifier
from momatch.numerics.checks import check_fraction, check_labels
from momatch.outliers import DISTANCES

__all__ = [
    "Evaluation",
    "Outputs",
    "confident_samples",
    "evaluate_classifier",
    "evaluate_outputs",
    "outlier_scores",
    "refit_head",
    "run_classifier",
    "separation",
]


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a classifier on n labelled images; shares are fractions of 1.

    Attributes:
        n: labelled images that were evaluated.
        accuracy: share of right predictions, the class of the largest posterior.
        per_class: the same for each true class (recall); None where no image has that class.
        confusion: counts, row = true class, column = predicted class.
        nll: mean negative log likelihood -log p(y|x) of the true classes.
        calibration: accuracy by confidence, in 15 bins.
        compactness: mean L2 distance to the center of the predicted class; None for a head without centers.
        compactness_true: mean L2 distance to the center of the true class; None for a head without centers.
        center_spread: how far apart the centers lie against the means of the true classes (see
            `momatch.evaluation.metrics.alignment`): 1 as far, 0 collapsed; None for a head without centers.
        center_offset: how far class means lie from their centers against the spread of the classes; None likewise.
    """

    n: int
    accuracy: float
    per_class: tuple[float | None, ...]
    confusion: Int64[Tensor, "K K"]
    nll: float
    calibration: Calibration
    compactness: float | None
    compactness_true: float | None
    center_spread: float | None
    center_offset: float | None

    @property
    def ece(self) -> float:
        """Expected calibration error over 15 equal-width bins of the largest posterior."""
        return self.calibration.error

    def to_dict(self) -> dict[str, Any]:
        """All metrics as plain values for JSON; None where one is not finite."""
        metrics = {
            "n": self.n,
            "accuracy": self.accuracy,
            "per_class": list(self.per_class),
            "ece": self.ece,
            "nll": self.nll if math.isfinite(self.nll) else None,
            "compactness": self.compactness,
            "compactness_true": self.compactness_true,
            "center_spread": self.center_spread,
            "center_offset": self.center_offset,
            "confusion": self.confusion.tolist(),
        }
        bins = ("count", "confidence", "accuracy")
        return {**metrics, "calibration": {name: getattr(self.calibration, name).tolist() for name in bins}}


def evaluate_classifier(
    classifier: Classifier, rows: Rows | Tensor, labels: Int64[Tensor, " n"], *, batch_size: int = 512
) -> Evaluation:
    """Run the classifier over images or features and measure it; those labelled -1 are left out.

    Raises:
        ValueError: as `run_classifier` and `evaluate_outputs`.
    """
    return evaluate_outputs(classifier.head, run_classifier(classifier, rows, batch_size=batch_size), labels)


def evaluate_outputs(head: Head, outputs: Outputs, labels: Int64[Tensor, " n"]) -> Evaluation:
    """Metrics of outputs that are there already; samples labelled -1 are left out.

    Args:
        head: whose centers compactness is measured to.
        outputs: of all samples.
        labels: true classes, -1 for unlabelled.

    Raises:
        ValueError: if labels do not fit the outputs, none is known, or an output is not a number.
    """
    K = outputs.log_joint.shape[1]
    known = _known(labels, len(outputs), K)
    if len(known) == 0:
        raise ValueError(f"labels: got {len(labels)} unlabelled samples (-1), expected at least one with a class")
    outputs, labels = outputs.select(known), labels.cpu()[known]
    undefined = int(log_posterior(outputs.log_joint).isnan().any(1).sum())
    if undefined:
        raise ValueError(
            f"outputs: got {undefined} of {len(outputs)} samples whose posterior is not a number, expected none; "
            "the model has diverged, so take an earlier checkpoint or train with a lower learning rate"
        )
    predicted = outputs.log_joint.argmax(1)
    confusion = confusion_matrix(predicted, labels, K)
    right, total = confusion.diagonal().tolist(), confusion.sum(1).tolist()
    centers = head.centers.detach().cpu() if head.has_centers else None
    spread, offset = (None, None) if centers is None else alignment(outputs.z, centers, labels)
    return Evaluation(
        n=len(labels),
        accuracy=sum(right) / len(labels),
        per_class=tuple(hits / count if count else None for hits, count in zip(right, total, strict=True)),
        confusion=confusion,
        nll=negative_log_likelihood(outputs.log_joint, labels),
        calibration=calibration(outputs.log_joint, labels),
        compactness=None if centers is None else compactness(outputs.z, centers, predicted),
        compactness_true=None if centers is None else compactness(outputs.z, centers, labels),
        center_spread=spread,
        center_offset=offset,
    )


@torch.no_grad()
def outlier_scores(head: Head, outputs: Outputs) -> dict[str, Float[Tensor, " n"]]:
    """Every outlier score that the head offers, higher = more outlying, on the CPU; +inf where it is not a number.

    All are computed from the embeddings by `head`, which may be another than the one that the outputs came from: a refitted
    one, for example.

    Returns:
        "density": -log p(x), the energy for a linear head. "confidence": log(1 - max posterior), in log space so that
        confident samples do not tie. With centers also "nearest", "assigned" and "farthest": the Mahalanobis distance to the
        nearest center, to that of the predicted class and to the farthest.
    """
    z = outputs.z.to(next(head.parameters()).device)
    log_joint = head(z)
    scores = {"density": -log_density(log_joint), "confidence": log_doubt(log_joint.cpu())}
    if head.has_centers:
        scores = {name: distance(head, z) for name, distance in DISTANCES.items()} | scores
    infinity = torch.inf
    return {
        name: score.cpu().nan_to_num(nan=infinity, posinf=infinity, neginf=-infinity) for name, score in scores.items()
    }


def separation(
    inliers: Mapping[str, Float[Tensor, " n"]], outliers: Mapping[str, Float[Tensor, " m"]]
) -> dict[str, dict[str, float]]:
    """How well each score tells outliers from inliers: its "auroc" and "fpr95" (see `momatch.evaluation.metrics`).

    Args:
        inliers: the `outlier_scores` of samples like the training data.
        outliers: those of other samples, under the same names.

    Raises:
        ValueError: if the names differ or there is no inlier or no outlier.
    """
    if inliers.keys() != outliers.keys():
        raise ValueError(f"outliers: got scores {sorted(outliers)}, expected those of the inliers, {sorted(inliers)}")
    return {
        name: {"auroc": auroc(inliers[name], outliers[name]), "fpr95": fpr95(inliers[name], outliers[name])}
        for name in inliers
    }


def confident_samples(
    outputs: Outputs, labels: Int64[Tensor, " n"], *, cutoff: float = 0.95
) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]:
    """Samples that a refit may trust: labelled ones with their class, others with a posterior of at least `cutoff`.

    Args:
        outputs: of all samples.
        labels: true classes, -1 for unlabelled.
        cutoff: smallest posterior of a predicted class, 0 to 1.

    Returns:
        Their positions, (m,), in order, and their classes, (m,): the true or else the predicted one. Samples whose embedding
        is not finite are left out.

    Raises:
        ValueError: if labels do not fit the outputs, or `cutoff` is out of range.
    """
    check_fraction("cutoff", cutoff)
    _known(labels, len(outputs), outputs.log_joint.shape[1])
    labels = labels.cpu()
    posterior, predicted = log_posterior(outputs.log_joint.double()).exp().max(1)
    is_labeled = labels != UNLABELED
    trusted = (is_labeled | (posterior >= cutoff)) & outputs.z.isfinite().all(1)
    positions = trusted.nonzero().flatten()
    return positions, torch.where(is_labeled, labels, predicted)[positions]


def refit_head(head: Head, z: Float[Tensor, "n D"], labels: Int64[Tensor, " n"]) -> Head | None:
    """A copy of the head with centers and variances set to each class's mean and variance (see `momatch.AAGMM.refit`).

    Returns:
        The copy, on the head's device; None for a head without centers, which has nothing to refit.

    Raises:
        ValueError: if shapes do not fit, there are no samples, a label is out of range or `z` is not finite.
    """
    if not head.has_centers:
        return None
    refitted = copy.deepcopy(head)
    device = refitted.centers.device
    refitted.refit(z.to(device), labels.to(device))
    return refitted


def _known(labels: Tensor, n: int, num_classes: int) -> Int64[Tensor, " m"]:
    """Positions of the labelled samples, after a check of all labels."""
    labels = labels.cpu()
    if labels.shape != (n,):
        raise ValueError(f"labels: got shape {tuple(labels.shape)}, expected one for each of the {n} images, ({n},)")
    positions = (labels != UNLABELED).nonzero().flatten()
    check_labels(labels[positions], len(positions), num_classes, name="labels")
    return positions
