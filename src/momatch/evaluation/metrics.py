"""Metrics of predictions and scores: pure functions of tensors, computed in float64.

Labels must be class numbers: remove unlabelled samples first (`momatch.evaluation.evaluate` does).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.heads import log_posterior
from momatch.outliers.conformal import nan_outlies

#: Number of equal-width confidence bins.
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Calibration:
    """Accuracy by confidence: one entry per confidence bin.

    Bin b of B holds the samples whose largest posterior is in (b/B, (b+1)/B].

    Attributes:
        count: samples in the bin.
        confidence: mean largest posterior in the bin; 0 if empty.
        accuracy: fraction of correct predictions in the bin; 0 if empty.
    """

    count: Int64[Tensor, " B"]
    confidence: Float[Tensor, " B"]
    accuracy: Float[Tensor, " B"]

    @property
    def error(self) -> float:
        """Expected calibration error: the sum over bins of n_b/n |accuracy_b - confidence_b|."""
        gaps = (self.accuracy - self.confidence).abs()
        return float((self.count * gaps).sum() / self.count.sum())


@torch.no_grad()
def calibration(
    log_joint: Float[Tensor, "n K"], labels: Int64[Tensor, " n"], *, bins: int = CALIBRATION_BINS
) -> Calibration:
    """Compare confidence (the largest posterior) with accuracy, in equal-width confidence bins."""
    confidence, predicted = log_posterior(log_joint.double()).exp().max(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    bin_of = torch.bucketize(confidence, edges[1:-1])  # (n,)
    count = torch.bincount(bin_of, minlength=bins)
    right = (predicted == labels).double()
    return Calibration(
        count=count,
        confidence=torch.bincount(bin_of, confidence, minlength=bins) / count.clamp_min(1),
        accuracy=torch.bincount(bin_of, right, minlength=bins) / count.clamp_min(1),
    )


@torch.no_grad()
def negative_log_likelihood(log_joint: Float[Tensor, "n K"], labels: Int64[Tensor, " n"]) -> float:
    """Mean of -log p(y|x) over the samples, in nats."""
    return float(-log_posterior(log_joint.double()).gather(1, labels.unsqueeze(1)).mean())


def confusion_matrix(
    predicted: Int64[Tensor, " n"], labels: Int64[Tensor, " n"], num_classes: int
) -> Int64[Tensor, "K K"]:
    """Counts of samples: row = true class, column = predicted class."""
    return torch.bincount(labels * num_classes + predicted, minlength=num_classes**2).view(num_classes, num_classes)


@torch.no_grad()
def compactness(z: Float[Tensor, "n D"], centers: Float[Tensor, "K D"], assignment: Int64[Tensor, " n"]) -> float:
    """Mean L2 distance of each embedding to its assigned center, not scaled by variances."""
    return float(torch.linalg.vector_norm(z.double() - centers.double()[assignment], dim=1).mean())


@torch.no_grad()
def alignment(
    z: Float[Tensor, "n D"], centers: Float[Tensor, "K D"], labels: Int64[Tensor, " n"]
) -> tuple[float | None, float | None]:
    """How well the centers match the class means. Classes without samples are skipped.

    Returns:
        Spread: root mean square distance of the centers to their mean, divided by that of the class means to theirs. 1 means
        centers are as far apart as the classes, 0 that they have collapsed. Offset: root mean square distance of class means
        to their centers, divided by that of samples to their class mean; below 1, centers are inside their clusters. Either is
        None if its divisor is 0.
    """
    present, place, counts = labels.unique(return_inverse=True, return_counts=True)
    z, centers = z.double(), centers.double()[present]
    means = torch.zeros_like(centers).index_add_(0, place, z) / counts.unsqueeze(1)

    def size(differences: Tensor) -> float:
        return float(differences.square().sum(1).mean().sqrt())

    apart, within = size(means - means.mean(0)), size(z - means[place])
    spread = size(centers - centers.mean(0)) / apart if apart else None
    return spread, size(means - centers) / within if within else None


@torch.no_grad()
def log_doubt(log_joint: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """log(1 - max posterior): the log probability of all other classes together.

    Computed as a logsumexp over the other classes, so samples whose largest posterior rounds to 1 still differ. -inf with a
    single class.
    """
    log_joint = log_joint.double()
    best = log_joint.argmax(1, keepdim=True)
    others = log_joint.scatter(1, best, -torch.inf)
    return torch.logsumexp(others, 1) - torch.logsumexp(log_joint, 1)


def auroc(inliers: Float[Tensor, " n"], outliers: Float[Tensor, " m"]) -> float:
    """Probability that an outlier scores higher than an inlier, ties counting half: 1 is perfect, 0.5 is chance.

    Scores may be infinite; NaN counts as +inf.

    Raises:
        ValueError: if there are no inliers or no outliers.
    """
    from sklearn.metrics import roc_auc_score

    inliers, outliers = _comparable("inliers", inliers), _comparable("outliers", outliers)
    # scikit-learn rejects infinite scores; ranks give the same order and the same ties.
    ranks = torch.cat([inliers, outliers]).unique(return_inverse=True)[1]
    is_outlier = torch.arange(len(ranks)) >= len(inliers)
    return float(roc_auc_score(is_outlier.numpy(), ranks.numpy()))


def fpr95(inliers: Float[Tensor, " n"], outliers: Float[Tensor, " m"]) -> float:
    """Fraction of outliers accepted when at least 95 % of inliers are: 0 is perfect.

    The threshold is the smallest inlier score with at least 95 % of the inliers at or below it; scores up to and including it
    are accepted. Inliers are the positives, as in most papers. Some libraries (OpenOOD 1.5) use the same name with outliers as
    positives, which is a different metric.

    Raises:
        ValueError: if there are no inliers or no outliers.
    """
    inliers, outliers = _comparable("inliers", inliers), _comparable("outliers", outliers)
    accepted = -(-95 * len(inliers) // 100)  # rounded up, in integers: 0.95 n is not exact
    threshold = inliers.sort().values[accepted - 1]
    return float((outliers <= threshold).double().mean())


def _comparable(name: str, scores: Tensor) -> Float[Tensor, " n"]:
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"{name}: got shape {tuple(scores.shape)}, expected (n,), with at least one score")
    return nan_outlies(scores.detach().cpu().double())
