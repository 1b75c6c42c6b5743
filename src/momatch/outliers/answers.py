"""How unusual a classifier's answer is: its relative Mahalanobis distance (docs/method.md, "The judge").

    a = log max(p, e^-30) - mean over the classes
    r = min_k d_k(a)^2 - d(a)^2

d_k is the distance to the answers of class k, d that to all answers. Between the classes an answer may be as far from each of
them as any, and still amid them all; subtracting d tells that from what is merely far out (Ren et al., 2021).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from momatch.outliers.gaussians import ClassGaussians, Pair

#: Least posterior whose logarithm counts.
_LEAST = 1e-13


class Answers(nn.Module):
    """Models of a classifier's answers to the samples of a fit.

    Args:
        num_classes: K.

    Attributes:
        of_class: the answers to each class.
        of_all: all answers, as one class.
        typical: mean of r over the fit, and `deviation` its deviation.
    """

    typical: Float[Tensor, ""]
    deviation: Float[Tensor, ""]

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.of_class = ClassGaussians(num_classes, num_classes)
        self.of_all = ClassGaussians(num_classes, 1)
        self.register_buffer("typical", torch.zeros(()))
        self.register_buffer("deviation", torch.ones(()))

    @property
    def models(self) -> tuple[ClassGaussians, ClassGaussians]:
        """Both models, to be fitted to `pairs`."""
        return self.of_class, self.of_all

    @staticmethod
    def pairs(posterior: Float[Tensor, "n K"], labels: Tensor) -> tuple[Pair, Pair]:
        """What the models are fitted to, from posteriors and true or trusted classes."""
        answers = centered(posterior)
        return (answers, labels), (answers, torch.zeros_like(labels))

    def left_out(self, pairs: Sequence[Pair], counts: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, " n"]:
        """r of samples of the fit, as if each had been left out; d_k is the distance to their own class.

        Args:
            pairs: of these samples.
            counts: samples of each class in the fit, for both models.
        """
        of_class, of_all = (
            model.left_out(model.checked(pair), count).square()
            for model, pair, count in zip(self.models, pairs, counts, strict=True)
        )
        relative: Tensor = of_class - of_all
        return relative

    def forward(self, posterior: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
        """Relative distance, in deviations from what is usual."""
        answers = centered(posterior)
        of_class, of_all = (model.distances(answers).amin(1).square() for model in self.models)
        unusual: Tensor = (of_class - of_all - self.typical) / self.deviation
        return unusual


def centered(posterior: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
    """Log posteriors less their mean over the classes: linear in the logits, as far as no class is impossible."""
    logarithm = posterior.clamp_min(_LEAST).log()
    return logarithm - logarithm.mean(1, keepdim=True)
