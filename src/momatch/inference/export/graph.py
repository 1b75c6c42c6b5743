"""The graph that is exported: uint8 images in, label, posterior, log density, distance and p-value out."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from momatch.models.saved_model import SavedModel
from momatch.models.scorer import Scores

#: The graph's input, and its outputs in their order.
INPUT = "images"
OUTPUTS = ("label", "posterior", "log_density", "distance", "p_value")


class Graph(nn.Module):
    """What `SavedModel.predict` computes for images of the model's own shape, as one module that returns plain tensors.

    Args:
        model: its parts are shared, not copied.
    """

    def __init__(self, model: SavedModel) -> None:
        super().__init__()
        self.classifier = model.classifier
        self.scorer = model.scorer
        self.eval()

    def forward(self, images: UInt8[Tensor, "n C H W"]) -> tuple[Tensor, ...]:
        """The outputs in the order of `OUTPUTS`."""
        return as_outputs(self.scorer(self.classifier.embed(images)))


def as_outputs(scores: Scores) -> tuple[Tensor, ...]:
    """What a prediction says, in the order of `OUTPUTS`."""
    return scores.labels, scores.posterior, scores.log_density, scores.distance, scores.p_value


def trace(model: SavedModel) -> torch.export.ExportedProgram:
    """The graph as torch.export sees it, for any number of images.

    Raises:
        ValueError: if the network does something that cannot be in a graph, such as a branch on the values of its input.
    """
    facts = model.facts
    # Two images: a single one could be taken for a constant.
    images = torch.zeros(2, facts.in_channels, *facts.image_size, dtype=torch.uint8)
    try:
        with torch.no_grad(), without_torchs_own_warnings():
            return torch.export.export(
                Graph(model), (images,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},), strict=False
            )
    except Exception as error:
        raise ValueError(
            f"backbone {facts.backbone!r}: torch.export cannot make a graph of it for any number of images: "
            f"{first_line(error)}"
        ) from error


@contextmanager
def without_torchs_own_warnings() -> Iterator[None]:
    """torch's exporters warn of what torch itself does; a user can do nothing about it."""
    with warnings.catch_warnings():
        for kind in (FutureWarning, DeprecationWarning, UserWarning):
            warnings.simplefilter("ignore", kind)
        yield


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that follow."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
