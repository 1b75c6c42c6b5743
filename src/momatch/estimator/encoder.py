"""Encoders from scaled features to embeddings: an MLP, or the identity."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from momatch.heads import HEADS, Head
from momatch.models.classifier import Classifier
from momatch.outliers.stages import INPUT

Encoder = Literal["mlp", "none"]
ENCODERS: tuple[str, ...] = get_args(Encoder)


class Perceptron(nn.Sequential):
    """Linear, batch norm and ReLU for each hidden size, then a linear map to the embedding.

    Args:
        in_features: F, number of features.
        hidden_sizes: width of each hidden layer; empty for a linear map.
        num_features: D, the size of the embedding.
    """

    def __init__(self, in_features: int, hidden_sizes: Sequence[int], num_features: int) -> None:
        layers: list[nn.Module] = []
        for size in hidden_sizes:
            layers += [nn.Linear(in_features, size), nn.BatchNorm1d(size), nn.ReLU()]
            in_features = size
        super().__init__(*layers, nn.Linear(in_features, num_features))
        self.num_features = num_features
        self.stage_names = (INPUT, *(str(3 * layer + 2) for layer in range(len(hidden_sizes))))


class Nothing(nn.Identity):
    """Identity encoder: the features are the embedding."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.stage_names = (INPUT,)


def build_classifier(
    encoder: Encoder, head: str, *, in_features: int, hidden_sizes: Sequence[int], embedding_dim: int, num_classes: int
) -> Classifier:
    """Build encoder and head, initialised from torch's global random state."""
    network: nn.Module
    if encoder == "none":
        network = Nothing(in_features)
        embedding_dim = in_features
    else:
        network = Perceptron(in_features, hidden_sizes, embedding_dim)
    return Classifier(network, HEADS[head](embedding_dim, num_classes))


@torch.no_grad()
def start_at_class_means(head: Head, z: Float[Tensor, "n D"], labels: Int64[Tensor, " n"]) -> None:
    """Set each center to the mean of its class. Without an encoder the samples cannot move towards the centers."""
    counts = torch.bincount(labels, minlength=head.num_classes).unsqueeze(1)  # (K, 1)
    head.centers.copy_(torch.zeros_like(head.centers).index_add(0, labels, z) / counts)
