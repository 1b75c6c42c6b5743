"""How unusual a classifier's answer is: its relative Mahalanobis distance (docs/method.md, "The judge").

    a = log max(p, 1e-13) - mean over the classes
    r = min_k d_k(a)^2 - d(a)^2

d_k is the distance to the answers of class k, d that to the answers of all classes, each class counting the same. Between the
classes an answer may be as far from each of them as any, and still amid them all; subtracting d tells that from what is merely
extreme (Ren et al., 2021, of features).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from momatch.numerics.precision import full_precision
from momatch.outliers.gaussians import ClassGaussians, Pair

#: Least posterior whose logarithm counts.
_LEAST_POSTERIOR = 1e-13
#: Answers that differ by less, in nats, count as alike: of a classifier that is certain they hardly differ.
_NOISE = 2.0
#: What is unusual counts up to so many deviations: a classifier that is certain of all it was fitted to finds the rest more
#: unusual than any distance.
_MOST = 10.0
#: How far rounding may take a probability, or their sum, from 1.
_ROUNDING = 1e-2


class Answers(nn.Module):
    """A model of a classifier's answers to the samples of a fit.

    Args:
        num_classes: K.

    Attributes:
        of_class: the answers to each class.
        typical: mean of r over the fit.
        deviation: its deviation; at least 1.
    """

    middle: Float[Tensor, " K"]
    root: Float[Tensor, "K K"]
    typical: Float[Tensor, ""]
    deviation: Float[Tensor, ""]

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.of_class = ClassGaussians(num_classes, num_classes, noise=_NOISE, name="posterior")
        # Of all classes: mean and root of the inverse covariance, in coordinates in which that of a class is the identity.
        self.register_buffer("middle", torch.zeros(num_classes))
        self.register_buffer("root", torch.eye(num_classes))
        self.register_buffer("typical", torch.zeros(()))
        self.register_buffer("deviation", torch.ones(()))

    def set_middle(self) -> None:
        """Fit what all classes have in common, after `of_class` was fitted.

        Answers of a class without samples are taken to be as those of the others are, with the two classes exchanged: otherwise
        no answer that speaks for it would be unusual.
        """
        centers = self.of_class.centers.double()
        seen = centers.isfinite().all(1)
        if not bool(seen.all()):
            centers = self._exchanged(centers, seen)
        apart = centers - centers.mean(0)
        covariance = torch.eye(centers.shape[1], dtype=torch.float64).to(centers) + apart.T @ apart / len(apart)
        self.middle.copy_(centers.mean(0))
        self.root.copy_(torch.linalg.inv(torch.linalg.cholesky(covariance)).T)

    def _exchanged(self, centers: Float[Tensor, "K K"], seen: Bool[Tensor, " K"]) -> Float[Tensor, "K K"]:
        """The class means, those of the classes without samples made of the others."""
        shift, whitening = self.of_class.shift.double(), self.of_class.whitening.double()
        means = torch.linalg.solve(whitening.T, centers[seen].T).T + shift
        completed, classes = centers.clone(), torch.arange(len(seen), device=seen.device)
        for k in classes[~seen].tolist():
            others = []
            for mean, j in zip(means, classes[seen].tolist(), strict=True):
                order = classes.clone()
                order[k], order[j] = j, k
                others.append(mean[order])
            completed[k] = (torch.stack(others).mean(0) - shift) @ whitening
        return completed

    def left_out(self, pair: Pair, count: Float[Tensor, " K"]) -> Float[Tensor, " n"]:
        """r of samples of the fit, as if each had been left out of its class; in float64 on the CPU.

        Args:
            pair: `checked` answers and classes.
            count: samples of each class in the fit.
        """
        nearest = self.of_class.distances_left_out(pair, count).amin(1)
        return nearest.square() - self._to_all(self.of_class.whitened(pair[0].to(self.middle.device))).cpu().double()

    def forward(self, posterior: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
        """How unusual answers are, in deviations of r, at most 10."""
        white = self.of_class.whitened(centered(posterior))
        relative = self.of_class.to_centers(white).amin(1).square() - self._to_all(white)
        unusual: Tensor = (relative - self.typical) / self.deviation
        return unusual.clamp_max(_MOST)

    def _to_all(self, white: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
        """Squared distance to the answers of all classes."""
        dtype, without_autocast = full_precision(white, self.root)
        with without_autocast:
            squared: Tensor = ((white - self.middle).to(dtype) @ self.root.to(dtype)).square().sum(1)
            return squared


def centered(posterior: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
    """Log posteriors less their mean over the classes: linear in the logits where no class is as good as impossible."""
    logarithm = posterior.clamp_min(_LEAST_POSTERIOR).log()
    return logarithm - logarithm.mean(1, keepdim=True)


def answers_of(posterior: Tensor, labels: Tensor, num_classes: int) -> Pair:
    """What the model is fitted to, in float64. NaN stays NaN, which the model refuses.

    Raises:
        ValueError: if the posteriors are not what their name says.
    """
    if not isinstance(posterior, Tensor):
        raise ValueError(
            f"posterior: got a {type(posterior).__name__}, expected a tensor ({len(labels)}, {num_classes})"
        )
    if posterior.shape != (len(labels), num_classes) or not posterior.is_floating_point():
        raise ValueError(
            f"posterior: got shape {tuple(posterior.shape)} of {posterior.dtype}, expected ({len(labels)}, {num_classes}), "
            "floating point"
        )
    exact = posterior.detach().double()
    if bool(((exact < 0.0) | (exact > 1.0 + _ROUNDING)).any()):
        raise ValueError(
            f"posterior: got values from {float(exact.min()):.3g} to {float(exact.max()):.3g}, expected probabilities; are "
            "these logits?"
        )
    off = (exact.sum(1) - 1.0).abs()
    if bool((off > _ROUNDING).any()):
        raise ValueError(
            f"posterior: got {int((off > _ROUNDING).sum())} of {len(exact)} rows whose sum is not 1, such as "
            f"{float(exact.sum(1)[off.argmax()]):.3g}, expected probabilities of classes that exclude each other"
        )
    return centered(exact), labels
