"""Metrics of a classifier's outputs: accuracy, calibration, compactness, outlier scores; and the closed-form refit.

Works on tensors only. `momatch.inference.evaluate` evaluates a finished run; the formulas are in `metrics`.
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
from momatch.outliers.conformal import nan_outlies

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
    """Metrics of a classifier on n labelled images. Rates are fractions, not percentages.

    Compactness and center metrics are None for a head without centers.

    Attributes:
        n: number of labelled images evaluated.
        accuracy: fraction of images whose most probable class is the true one.
        per_class: accuracy for each true class (recall); None for a class without images.
        confusion: counts, row = true class, column = predicted class.
        nll: mean negative log likelihood -log p(y|x) of the true classes.
        calibration: accuracy by confidence, in 15 bins.
        compactness: mean L2 distance to the center of the predicted class.
        compactness_true: mean L2 distance to the center of the true class.
        center_spread: spread of the centers relative to that of the class means (see
            `momatch.evaluation.metrics.alignment`): 1 is equal, 0 collapsed.
        center_offset: distance of class means to their centers, relative to the spread within classes.
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
        """All metrics as plain values for JSON; None for a value that is not finite."""
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
    classifier: Classifier,
    rows: Rows | Tensor,
    labels: Int64[Tensor, " n"],
    *,
    batch_size: int = 512,
    temperature: float = 1.0,
) -> Evaluation:
    """Run the classifier over images or features and evaluate it; samples labelled -1 are skipped.

    Raises:
        ValueError: see `run_classifier` and `evaluate_outputs`.
    """
    outputs = run_classifier(classifier, rows, batch_size=batch_size)
    return evaluate_outputs(classifier.head, outputs, labels, temperature=temperature)


def evaluate_outputs(
    head: Head, outputs: Outputs, labels: Int64[Tensor, " n"], *, temperature: float = 1.0
) -> Evaluation:
    """Evaluate the outputs of a classifier; samples labelled -1 are skipped.

    Args:
        head: provides the centers for compactness.
        outputs: outputs for all samples.
        labels: true classes, -1 for unlabelled.
        temperature: of the posteriors.

    Raises:
        ValueError: if the labels do not match the outputs, all are -1, or a posterior is NaN.
    """
    K = outputs.log_joint.shape[1]
    known = _known(labels, len(outputs), K)
    if len(known) == 0:
        raise ValueError(f"labels: got {len(labels)} unlabelled samples (-1), expected at least one labelled")
    outputs, labels = outputs.select(known), labels.cpu()[known]
    undefined = int(log_posterior(outputs.log_joint).isnan().any(1).sum())
    if undefined:
        raise ValueError(
            f"outputs: got a NaN posterior for {undefined} of {len(outputs)} samples, expected none; "
            "the model has diverged: use an earlier checkpoint, or train with a lower learning rate"
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
        nll=negative_log_likelihood(outputs.log_joint / temperature, labels),
        calibration=calibration(outputs.log_joint / temperature, labels),
        compactness=None if centers is None else compactness(outputs.z, centers, predicted),
        compactness_true=None if centers is None else compactness(outputs.z, centers, labels),
        center_spread=spread,
        center_offset=offset,
    )


@torch.no_grad()
def outlier_scores(head: Head, outputs: Outputs) -> dict[str, Float[Tensor, " n"]]:
    """Every outlier score that the head supports, on the CPU. Higher means more outlying; NaN becomes +inf.

    Scores are computed from the embeddings, so `head` may differ from the one that made the outputs (a refitted head, for
    example).

    Returns:
        "density": -log p(x), the energy for a linear head. "confidence": log(1 - max posterior), in log space so that
        confident samples do not tie. With centers also the Mahalanobis distances "nearest", "assigned" (to the center of the
        predicted class) and "farthest".
    """
    z = outputs.z.to(next(head.parameters()).device)
    log_joint = head(z)
    scores = {"density": -log_density(log_joint), "confidence": log_doubt(log_joint.cpu())}
    if head.has_centers:
        scores = {name: distance(head, z) for name, distance in DISTANCES.items()} | scores
    return {name: nan_outlies(score.cpu()) for name, score in scores.items()}


def separation(
    inliers: Mapping[str, Float[Tensor, " n"]], outliers: Mapping[str, Float[Tensor, " m"]]
) -> dict[str, dict[str, float]]:
    """How well each score separates outliers from inliers: "auroc" and "fpr95" (see `momatch.evaluation.metrics`).

    Args:
        inliers: `outlier_scores` of in-distribution samples.
        outliers: `outlier_scores` of outliers.

    Raises:
        ValueError: if the score names differ, or there are no inliers or no outliers.
    """
    if inliers.keys() != outliers.keys():
        raise ValueError(f"outliers: got scores {sorted(outliers)}, expected {sorted(inliers)} as for the inliers")
    return {
        name: {"auroc": auroc(inliers[name], outliers[name]), "fpr95": fpr95(inliers[name], outliers[name])}
        for name in inliers
    }


def confident_samples(
    outputs: Outputs, labels: Int64[Tensor, " n"], *, cutoff: float = 0.95
) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]:
    """Samples to refit on: labelled ones, and those predicted with a posterior of at least `cutoff`.

    Args:
        outputs: outputs for all samples.
        labels: true classes, -1 for unlabelled.
        cutoff: lowest posterior of the predicted class, 0 to 1.

    Returns:
        Ascending positions (m,), and classes (m,): the true class if known, else the predicted one. Samples with a non-finite
        embedding are left out.

    Raises:
        ValueError: if the labels do not match the outputs, or `cutoff` is out of range.
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
        The copy, on the head's device; None for a head without centers.

    Raises:
        ValueError: if shapes do not match, there are no samples, a label is out of range or `z` is not finite.
    """
    if not head.has_centers:
        return None
    refitted = copy.deepcopy(head)
    device = refitted.centers.device
    refitted.refit(z.to(device), labels.to(device))
    return refitted


def _known(labels: Tensor, n: int, num_classes: int) -> Int64[Tensor, " m"]:
    """Check all labels; return the positions of the labelled samples."""
    labels = labels.cpu()
    if labels.shape != (n,):
        raise ValueError(f"labels: got shape {tuple(labels.shape)}, expected ({n},), one per image")
    positions = (labels != UNLABELED).nonzero().flatten()
    check_labels(labels[positions], len(positions), num_classes, name="labels")
    return positions
