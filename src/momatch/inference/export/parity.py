"""Compare the outputs of a graph with those of the model (docs/export.md, "What is checked").

- posterior, distance, outlier score: |got - expected| <= 1e-4 (1 + |expected|).
- log density: |got - expected| <= 1e-4 (1 + |expected| + distance^2 / 2), as it is the difference of numbers that large.
- label: the same, or a class whose posterior is within twice that of the largest.
- p-value: between the p-values of the score plus and minus 1e-4 (1 + |score|).
- NaN and infinities: in the same places.

If that fails, the model is run in float64 to measure its own float32 error, and twice the largest error is added to the
tolerance: densities of narrow clusters are differences of large numbers, and no float32 program computes them more precisely.

The images are synthetic, plus some from the run's dataset if it is available.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from momatch.data.rows import PixelRows
from momatch.inference.export.graph import OUTPUTS, Graph, as_outputs
from momatch.models.saved_model import SavedModel
from momatch.models.scorer import score_images
from momatch.models.spec import ModelSpec
from momatch.outliers.conformal import count_below
from momatch.training.data import load_run_data
from momatch.training.run import Run

TOLERANCE = 1e-4
#: Number of images of each kind.
COUNT = 48
#: Batch sizes.
BATCHES = (1, 2, 7, 64)
#: Outputs that are compared as numbers.
MEASURED = ("posterior", "log_density", "distance", "outlier_score")

#: Maps images to outputs by name.
Runner = Callable[[Tensor], Mapping[str, Tensor]]


class ParityError(ValueError):
    """The outputs of a graph differ from those of the model."""


@dataclass(frozen=True)
class Parity:
    """Differences between a graph and the model.

    Attributes:
        images: number of images compared.
        batches: batch sizes.
        differences: the largest for each output, |got - expected| / (1 + |expected|); for `label` the share that differs.
        rounding: the model's own float32 error for each output, on the same scale; empty if it was not needed.
    """

    images: int
    batches: tuple[int, ...]
    differences: dict[str, float]
    rounding: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batches))
        text = f"{self.images} images, {sizes} at a time; largest differences: {_listed(self.differences)}"
        if self.rounding:
            text += f"; the model's own float32 error (against float64): {_listed(self.rounding)}"
        return text


def compare(model: SavedModel, run: Runner, images: UInt8[Tensor, "n C H W"]) -> Parity:
    """Compare a graph with the model it was made from.

    Args:
        model: the reference.
        run: the graph.
        images: of the model's shape; batch sizes cycle through `BATCHES`.

    Raises:
        ParityError: if an output exceeds its tolerance.
    """
    try:
        return _compare(model, run, images, {})
    except ParityError:
        rounding = _rounding(model, images)
        if max(rounding.values()) < TOLERANCE / 10:
            raise
        return _compare(model, run, images, rounding)


def _compare(model: SavedModel, run: Runner, images: Tensor, rounding: Mapping[str, float]) -> Parity:
    sizes: set[int] = set()
    differences = dict.fromkeys(OUTPUTS, 0.0)
    for part in _parts(images):
        got, expected = dict(run(part)), _expected(model, part, rounding)
        sizes.add(len(part))
        for name, bounds in expected.items():
            value = got.get(name)
            if value is None or (value.dtype, value.shape) != (bounds.value.dtype, bounds.value.shape):
                raise ParityError(f"{name}: the graph returns {_shape(value)}, expected {_shape(bounds.value)}")
            if name != "label":
                bounds.check(name, value)
                differences[name] = max(differences[name], _difference(value, bounds.value))
        differences["label"] += _check_labels(got["label"], expected) / len(images)
    return Parity(len(images), tuple(sorted(sizes)), differences, dict(rounding))


def _check_labels(got: Tensor, expected: Mapping[str, "_Bounds"]) -> int:
    """How many labels differ; if two classes tie for the largest posterior, either is accepted."""
    posterior = expected["posterior"]
    K = posterior.value.shape[1]
    named = posterior.value.gather(1, got.clamp(0, K - 1)[:, None])[:, 0]
    named = torch.where((got >= 0) & (got < K), named, torch.nan)
    largest, slack = posterior.value.amax(1), 2 * (posterior.high - posterior.value).amax(1)
    _Bounds(largest, largest - slack, largest).check("label, by its posterior", named)
    return int((got != expected["label"].value).sum())


def made_up_images(spec: ModelSpec, *, seed: int = 0) -> UInt8[Tensor, "n C H W"]:
    """Synthetic images: smooth shapes, then single colours from black to white, then noise."""
    generator = torch.Generator().manual_seed(seed)
    shape = (COUNT, spec.in_channels, *spec.image_size)
    coarse = torch.rand(COUNT, spec.in_channels, 4, 4, generator=generator)
    smooth = F.interpolate(coarse, size=spec.image_size, mode="bicubic", align_corners=False)
    # From low to high contrast.
    contrast = torch.linspace(0.2, 2.0, COUNT)[:, None, None, None]
    smooth = 0.5 + contrast * (smooth - 0.5) + 0.02 * torch.randn(shape, generator=generator)
    noise = torch.rand(shape, generator=generator)
    flat = torch.linspace(0, 1, 5)[:, None, None, None].expand(5, *shape[1:])
    # The first image is compared alone, so it should be an ordinary one.
    return (torch.cat([smooth, flat, noise]) * 255).round().clamp(0, 255).to(torch.uint8)


def own_images(run: Run) -> UInt8[Tensor, "n C H W"] | None:
    """Some (test) images of the run's dataset; None if it is not available locally."""
    spec = run.spec
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training has already shown warnings about the data
            dataset = load_run_data(run.directory, progress=False, download=False)
        some = PixelRows([(dataset.test or dataset.train).images]).even_share(COUNT)
        return torch.cat(list(some.for_model((spec.in_channels, *spec.image_size)).chunks()))
    except (ValueError, OSError, ImportError):
        return None


@dataclass(frozen=True)
class _Bounds:
    """Values of the model, and the range allowed for those of the graph."""

    value: Tensor
    low: Tensor
    high: Tensor

    def check(self, name: str, got: Tensor) -> None:
        """Check that each value is equal or within bounds.

        Raises:
            ParityError: if one is not.
        """
        same = (got == self.value) | (got.isnan() & self.value.isnan())
        fits = (same | ((got >= self.low) & (got <= self.high))).reshape(len(got), -1).all(1)
        if not bool(fits.all()):
            row = int((~fits).nonzero()[0])
            raise ParityError(
                f"{name}: the graph and the model differ for {int((~fits).sum())} of {len(got)} images by over {TOLERANCE}; "
                f"for one, got {got[row].tolist()}, expected {self.value[row].tolist()}"
            )


@torch.no_grad()
def _expected(model: SavedModel, images: Tensor, rounding: Mapping[str, float]) -> dict[str, _Bounds]:
    values = dict(zip(OUTPUTS, as_outputs(score_images(model.classifier, model.scorer, images)), strict=True))
    bounds = {"label": _Bounds(values["label"], values["label"], values["label"])}
    for name in MEASURED:
        value = values[name]
        scale = 1 + value.abs()
        if name == "log_density":
            # Infinities and NaN are compared as such.
            scale += 0.5 * values["distance"].square().nan_to_num(nan=0.0, posinf=0.0)
        slack = _tolerance(name, rounding) * scale
        bounds[name] = _Bounds(value, value - slack, value + slack)
    low, high = _p_values(model.scorer.calibration_scores, values["outlier_score"], rounding)
    bounds["p_value"] = _Bounds(values["p_value"], low, high)
    return bounds


def _tolerance(name: str, rounding: Mapping[str, float]) -> float:
    return TOLERANCE + 2 * rounding.get(name, 0.0)


def _p_values(
    ordered: Float[Tensor, " m"], score: Float[Tensor, " n"], rounding: Mapping[str, float]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The p-values of slightly larger and slightly smaller scores."""
    if not ordered.numel():
        nothing = torch.full_like(score, torch.nan)
        return nothing, nothing
    score = score.to(ordered.dtype)
    slack = _tolerance("outlier_score", rounding) * (1 + score.abs())
    # An infinite score has no neighbours.
    larger, smaller = score + slack, torch.where(score.isfinite(), score - slack, score)
    m = len(ordered)
    low, high = ((1.0 + m - count_below(ordered, value)) / (1.0 + m) for value in (larger, smaller))
    # Allow for rounding of the quotient.
    return low - 1e-6, high + 1e-6


@torch.no_grad()
def _rounding(model: SavedModel, images: Tensor) -> dict[str, float]:
    """The model's float32 error in the `MEASURED` outputs; 0 if it cannot run in float64."""
    graph = Graph(model)
    try:
        exact = copy.deepcopy(graph).double()(images)
    except RuntimeError:  # a network with a fixed dtype
        return dict.fromkeys(MEASURED, 0.0)
    pairs = dict(zip(OUTPUTS, zip(graph(images), exact, strict=True), strict=True))
    return {name: _difference(*pairs[name]) for name in MEASURED}


def _difference(got: Tensor, expected: Tensor) -> float:
    """The largest relative difference of finite values."""
    error = (got.double() - expected.double()).abs() / (1 + expected.double().abs())
    known = error[error.isfinite()]
    return float(known.amax()) if known.numel() else 0.0


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1g}" for name, value in values.items())


def _parts(images: Tensor) -> Iterator[Tensor]:
    start, turn = 0, 0
    while start < len(images):
        size = BATCHES[turn % len(BATCHES)]
        yield images[start : start + size]
        start, turn = start + size, turn + 1


def _shape(value: Tensor | None) -> str:
    return "nothing" if value is None else f"{value.dtype} {tuple(value.shape)}"
