"""The exported graph: uint8 images in; label, posterior, log density, distance, outlier score and p-value out; metadata."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from momatch.models.saved_model import SavedModel
from momatch.models.scorer import Scores, score_images

#: Names of the graph's input and of its outputs, in order.
INPUT = "images"
OUTPUTS = ("label", "posterior", "log_density", "distance", "outlier_score", "p_value")


class Graph(nn.Module):
    """`SavedModel.predict` for images of the model's shape, as one module that returns plain tensors.

    Args:
        model: its modules are shared, not copied.
    """

    def __init__(self, model: SavedModel) -> None:
        super().__init__()
        self.classifier = model.classifier
        self.scorer = model.scorer
        self.eval()

    def forward(self, images: UInt8[Tensor, "n C H W"]) -> tuple[Tensor, ...]:
        """The outputs in the order of `OUTPUTS`."""
        return as_outputs(score_images(self.classifier, self.scorer, images))


def as_outputs(scores: Scores) -> tuple[Tensor, ...]:
    """The predictions in the order of `OUTPUTS`."""
    return (
        scores.labels,
        scores.posterior,
        scores.log_density,
        scores.distance,
        scores.outlier_score,
        scores.p_value,
    )


def trace(model: SavedModel) -> torch.export.ExportedProgram:
    """The torch.export program, for any number of images.

    Raises:
        ValueError: if the network cannot be traced, e.g. because it branches on the values of its input.
    """
    spec = model.spec
    # Two images: torch.export would specialise on a batch of one.
    images = torch.zeros(2, spec.in_channels, *spec.image_size, dtype=torch.uint8)
    try:
        with torch.no_grad(), without_torchs_own_warnings():
            return torch.export.export(
                Graph(model), (images,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},), strict=False
            )
    except Exception as error:
        raise ValueError(
            f"backbone {spec.backbone!r}: torch.export cannot trace it for a variable number of images: "
            f"{first_line(error)}"
        ) from error


def description(model: SavedModel) -> dict[str, str]:
    """The metadata by key; lists are JSON."""
    spec, calibration = model.spec, model.calibration
    C, (H, W) = spec.in_channels, spec.image_size
    judge = model.scorer.judge
    is_density = judge is not None or model.classifier.head.density_name == "density"
    of_what = "embedding" if judge is None else "stages"
    values: dict[str, Any] = {
        "class_names": list(spec.class_names),
        "input": (
            f"images: uint8 (n, {C}, {H}, {W}), {'gray' if C == 1 else 'RGB'}, raw pixels 0-255 of exactly this size; "
            "normalisation is in the graph"
        ),
        "outputs": {
            "label": "int64 (n,): index into class_names",
            "posterior": f"(n, {len(spec.class_names)}): p(class | image)",
            "log_density": f"(n,): log p(image's {of_what})" if is_density else "(n,): negative energy",
            "distance": "(n,): Mahalanobis distance to the nearest class; NaN for a head without centers",
            "outlier_score": "(n,): higher for outliers",
            "p_value": "(n,): conformal outlier p-value; NaN without calibration",
        },
        "score": model.scorer.score_name,
        "calibration": 0 if calibration is None else len(calibration.scores),
        "calibration_source": "" if calibration is None else calibration.source,
        "alpha": (
            "no p-values: the model is not calibrated"
            if calibration is None
            else "flag p_value <= alpha for a false-positive rate of at most alpha; the smallest useful alpha is "
            f"{1 / (len(calibration.scores) + 1):.2g}"
        ),
        "backbone": spec.backbone,
        "head": spec.head,
        "dataset": spec.dataset,
        "created_by": spec.created_by,
    }
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


@contextmanager
def without_torchs_own_warnings() -> Iterator[None]:
    """Silence warnings of torch's exporters about torch itself, which users cannot act on."""
    with warnings.catch_warnings():
        for kind in (FutureWarning, DeprecationWarning, UserWarning):
            warnings.simplefilter("ignore", kind)
        yield


def first_line(error: BaseException) -> str:
    """The first line of an error message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
