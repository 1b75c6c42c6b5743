"""A small dataset and a small random network for the tests of features."""

from pathlib import Path

import torch
from torch import Tensor, nn

from momatch.embedding import EmbedOptions
from tests.report.small_runs import write_dataset

#: Features of the network.
F = 12


class Corners(nn.Module):
    """What is in each part of an image, squeezed: enough to tell the classes of the dataset apart."""

    num_features = F

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, F)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.mix(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)))


def corners() -> Corners:
    """Weights are random: each call gives another network."""
    return Corners()


def small_options(folder: Path, **changes: object) -> EmbedOptions:
    """Options for 160 training and 80 test images of four classes; the dataset is written where it is not there."""
    data = folder / "corners.npz"
    if not data.exists():
        write_dataset(data)
    small = {
        "dataset": str(data),
        "out": folder / "features.npz",
        "backbone": "tests.embedding.setting:corners",
        "weak_views": 2,
        "strong_views": 2,
        "flip": "no",  # the classes are left and right
        "batch_size": 64,
        "device": "cpu",
        "progress": False,
        "seed": 3,
    }
    return EmbedOptions(**{**small, **changes})
