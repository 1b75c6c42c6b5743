"""The small network that maps a backbone's features to the sphere on which similarities are measured."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Projector(nn.Module):
    """Two linear layers, then length 1.

    Args:
        num_features: F, size of the features.
        dim: size of the result.
    """

    def __init__(self, num_features: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_features, num_features), nn.ReLU(), nn.Linear(num_features, dim))

    def forward(self, features: Float[Tensor, "n F"]) -> Float[Tensor, "n P"]:
        """Unit vectors."""
        return F.normalize(self.layers(features), dim=-1)
