"""What every head is: a drop-in replacement for the last ``nn.Linear`` that returns the log joint log p(y=k, x).

The log joint goes straight into ``F.cross_entropy``, because its softmax is the posterior. Heads compute in float32 or better
whatever the autocast state: at 50 sigma a log joint does not fit in float16. The formulas stand in docs/method.md, "Heads".
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

    A subclass sets `embedding_dim` and `num_classes` and defines ``forward``. What else it can do is said by `has_centers`:
    only heads with centers have distances, can be sampled and refitted, and take a constraint.

    Attributes:
        embedding_dim: D, the size of the embeddings.
        num_classes: K.
        has_centers: whether each class has a center; then `centers`, `variances` and `mahalanobis` are there.
        density_name: what the logsumexp of the log joint is called: "density" if it is log p(x), "energy" if it is not
            normalised.
        centers: (K, D), of a head with centers.
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
        raise ValueError(f"{type(self).__name__}: got a head without centers, which has no variances")

    def mahalanobis(self, z: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch K"]:
        """Mahalanobis distance of each embedding to each center, (..., K).

        Raises:
            ValueError: if the head has no centers, or `z` does not end in `embedding_dim`.
        """
        raise ValueError(
            f"{type(self).__name__}: got a head without centers, which has no distances; use its log density"
        )

    def refit(self, z: Float[Tensor, "n D"], labels: Integer[Tensor, " n"]) -> None:
        """Set centers and variances to the mean and variance of each class, in closed form.

        Raises:
            ValueError: if the head has no centers.
        """
        raise ValueError(f"{type(self).__name__}: got a head without centers, which has nothing to refit")

    def undecayed_parameters(self) -> list[nn.Parameter]:
        """Parameters that weight decay must leave alone."""
        return []

    def is_usable(self) -> Bool[Tensor, ""]:
        """Whether float32 can compute with the parameters, and a checkpoint of them can be loaded; on their device."""
        return torch.ones((), dtype=torch.bool, device=next(self.parameters()).device)
