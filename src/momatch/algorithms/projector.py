"""The small network that maps a backbone's features to the sphere on which similarities are measured, and its average."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call


class Projector(nn.Module):
    """Two linear layers, then length 1.

    Args:
        num_features: F, size of the features.
        dim: size of the result.
        normalize: put a layer norm before them, so that the features of weak and strong views have the same length.
    """

    def __init__(self, num_features: int, dim: int, *, normalize: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_features) if normalize else nn.Identity()
        self.layers = nn.Sequential(nn.Linear(num_features, num_features), nn.ReLU(), nn.Linear(num_features, dim))

    def forward(self, features: Float[Tensor, "n F"]) -> Float[Tensor, "n P"]:
        """Unit vectors."""
        return F.normalize(self.layers(self.norm(features)), dim=-1)


class AveragedProjector(nn.Module):
    """The teacher's projector: a moving average of the trained one's weights, kept in buffers.

    Args:
        live: the projector that is trained.
    """

    def __init__(self, live: Projector) -> None:
        super().__init__()
        for name, value in live.named_parameters():
            self.register_buffer(_buffer(name), value.detach().clone())

    @torch.no_grad()
    def follow(self, live: Projector, share: Float[Tensor, ""]) -> None:
        """Move this share of the way towards the trained projector."""
        for name, value in live.named_parameters():
            average: Tensor = getattr(self, _buffer(name))
            average.lerp_(value.to(average.dtype), share.to(average.dtype))

    def forward(self, live: Projector, features: Float[Tensor, "n F"]) -> Float[Tensor, "n P"]:
        """Unit vectors by the averaged weights; of `live` only the layers are used."""
        weights = {name: getattr(self, _buffer(name)) for name, _ in live.named_parameters()}
        embeddings: Tensor = functional_call(live, weights, (features,))
        return embeddings


def _buffer(parameter: str) -> str:
    """Name of a parameter's average; the names of buffers have no dots."""
    return parameter.replace(".", "_")
