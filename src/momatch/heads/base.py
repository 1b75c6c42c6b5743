"""Base class of the heads: drop-in replacements for the last ``nn.Linear`` that return the log joint log p(y=k, x).

The log joint can be passed to ``F.cross_entropy``, because its softmax is the posterior. Heads compute in float32 or better
even under autocast: at 50 sigma a log joint overflows float16. Formulas: docs/method.md, "Heads".
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn


def log_posterior(log_joint: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch K"]:
    """log p(y|x) from the log joint."""
    return torch.log_softmax(log_joint, dim=-1)


def log_density(log_joint: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    """log p(x) from the log joint; for a `Linear` head, the negative energy."""
    return torch.logsumexp(log_joint, dim=-1)


class Head(nn.Module):
    """Base class of all heads: embeddings (..., D) in, log joint (..., K) out.

    A subclass sets `embedding_dim` and `num_classes` and defines ``forward``. Only heads with centers have distances, can be
    sampled and refitted, and support a constraint.

    Attributes:
        embedding_dim: D, the size of the embeddings.
        num_classes: K.
        has_centers: whether each class has a center; if so, `centers`, `variances` and `mahalanobis` are available.
        density_name: "density" if the logsumexp of the log joint is log p(x), "energy" if it is not normalised.
        centers: (K, D), for heads with centers.
    """

    has_centers: ClassVar[bool] = False
    density_name: ClassVar[str] = "energy"
    embedding_dim: int
    num_classes: int
    centers: Tensor

    @property
    def variances(self) -> Float[Tensor, "K D"]:
        """The clusters' variances, (K, D).

        Raises:
            ValueError: if the head has no centers.
        """
        raise ValueError(f"{type(self).__name__}: a head without centers has no variances")

    def mahalanobis(self, z: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch K"]:
        """Mahalanobis distance of each embedding to each center, (..., K).

        Raises:
            ValueError: if the head has no centers, or `z` does not end in `embedding_dim`.
        """
        raise ValueError(f"{type(self).__name__}: a head without centers has no distances; use its log density")

    def refit(self, z: Float[Tensor, "n D"], labels: Integer[Tensor, " n"]) -> None:
        """Set centers and variances to the mean and variance of each class, in closed form.

        Raises:
            ValueError: if the head has no centers.
        """
        raise ValueError(f"{type(self).__name__}: a head without centers cannot be refitted")

    def undecayed_parameters(self) -> list[nn.Parameter]:
        """Parameters without weight decay."""
        return []

    def is_usable(self) -> Bool[Tensor, ""]:
        """Whether the parameters are in the range of float32, so that a checkpoint of them can be loaded; on their device."""
        return torch.ones((), dtype=torch.bool, device=next(self.parameters()).device)
