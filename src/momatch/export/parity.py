"""Does a graph say what the model says? Compared on images, output by output (docs/export.md, "What is checked").

- posterior, log density, distance: |got - expected| <= 1e-4 (1 + |expected|). The posterior is a softmax of log joints, and
  what float32 rounds away of those moves it by as much: 4 eps |log joint| is allowed on top.
- label: the same, or a class whose posterior is the largest but for twice that tolerance.
- p-value: between those of an outlier score that is larger and of one that is smaller by 1e-4 (1 + |score|).
- NaN and infinities: in the same places.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from momatch.export.graph import OUTPUTS, Graph
from momatch.ranks import count_below
from momatch.scoring import Scorer
from momatch.training.saved_model import SavedModel

TOLERANCE = 1e-4
#: Images at a time: one, few, many.
BATCHES = (1, 2, 7, 64)
_EPS = torch.finfo(torch.float32).eps

#: Maps images to outputs by name.
Runner = Callable[[Tensor], Mapping[str, Tensor]]


class ParityError(ValueError):
    """A graph does not say what the model says."""


@dataclass(frozen=True)
class Parity:
    """How far a graph is from the model.

    Attributes:
        images: compared.
        batches: how many at a time.
        differences: the largest of each output, |got - expected| / (1 + |expected|); of `label` the share that differs.
    """

    images: int
    batches: tuple[int, ...]
    differences: dict[str, float]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {value:.1g}" for name, value in self.differences.items())
        return f"{self.images} images, {', '.join(map(str, self.batches))} at a time; largest differences: {parts}"


def compare(model: SavedModel, run: Runner, images: UInt8[Tensor, "n C H W"]) -> Parity:
    """Compare a graph with the model it was made of.

    Args:
        model: what is right.
        run: the graph.
        images: of the model's shape; they are taken in batches of each of `BATCHES` in turn.

    Raises:
        ParityError: if an output is beyond its tolerance, naming the output, what it gives and what was expected.
    """
    sizes: set[int] = set()
    differences = dict.fromkeys(OUTPUTS, 0.0)
    for part in _parts(images):
        got, expected = dict(run(part)), _expected(model, part)
        sizes.add(len(part))
        for name, bounds in expected.items():
            value = got.get(name)
            if value is None or (value.dtype, value.shape) != (bounds.value.dtype, bounds.value.shape):
                raise ParityError(f"{name}: the graph gives {_shape(value)}, expected {_shape(bounds.value)}")
            differences[name] = max(differences[name], bounds.difference(value))
            if name != "label":
                bounds.check(name, value)
        differing = got["label"] != expected["label"].value
        differences["label"] += float(differing.sum()) / len(images)
        if bool(differing.any()):
            # Where two classes share the largest posterior either may be named.
            posterior = expected["posterior"]
            named = posterior.value.gather(1, got["label"].clamp(0, posterior.value.shape[1] - 1)[:, None])[:, 0]
            slack = 2 * (posterior.high - posterior.value).amax(1)
            _Bounds(posterior.value.amax(1), posterior.value.amax(1) - slack, torch.ones_like(slack)).check(
                "label, its posterior", named
            )
    return Parity(len(images), tuple(sorted(sizes)), differences)


@dataclass(frozen=True)
class _Bounds:
    """A value of the model, and between which numbers that of the graph must lie."""

    value: Tensor
    low: Tensor
    high: Tensor

    def difference(self, got: Tensor) -> float:
        """The largest relative difference of numbers; 0 for labels, which are counted."""
        if not got.is_floating_point():
            return 0.0
        error = (got.double() - self.value.double()).abs() / (1 + self.value.double().abs())
        return float(error[error.isfinite()].amax()) if bool(error.isfinite().any()) else 0.0

    def check(self, name: str, got: Tensor) -> None:
        """Refuse what is neither the same nor within bounds.

        Raises:
            ParityError: if there is such a value.
        """
        same = (got == self.value) | (got.isnan() & self.value.isnan())
        fits = (same | ((got >= self.low) & (got <= self.high))).reshape(len(got), -1).all(1)
        if not bool(fits.all()):
            row = int((~fits).nonzero()[0])
            raise ParityError(
                f"{name}: the graph and the model differ for {int((~fits).sum())} of {len(got)} images, beyond {TOLERANCE}; "
                f"for one the graph gives {got[row].tolist()}, expected {self.value[row].tolist()}"
            )


@torch.no_grad()
def _expected(model: SavedModel, images: Tensor) -> dict[str, _Bounds]:
    graph = Graph(model)
    values = dict(zip(OUTPUTS, graph(images), strict=True))
    z = graph.classifier.embed(images)
    rounding = 4 * _EPS * graph.scorer.head(z).abs().amax(1, keepdim=True)  # (n, 1)
    bounds = {"label": _Bounds(values["label"], values["label"], values["label"])}
    for name in ("posterior", "log_density", "distance"):
        value = values[name]
        slack = TOLERANCE * (1 + value.abs()) + (rounding if name == "posterior" else 0.0)
        bounds[name] = _Bounds(value, value - slack, value + slack)
    low, high = _p_values(graph.scorer, z)
    bounds["p_value"] = _Bounds(values["p_value"], low, high)
    return bounds


def _p_values(scorer: Scorer, z: Tensor) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The p-values of slightly larger and of slightly smaller scores."""
    ordered = scorer.calibration_scores
    if not ordered.numel():
        nothing = z.new_full((len(z),), torch.nan)
        return nothing, nothing
    score = scorer.detector.score(z).to(ordered.dtype)
    slack = TOLERANCE * (1 + score.abs())
    # An infinite score has no neighbours.
    larger, smaller = score + slack, torch.where(score.isfinite(), score - slack, score)
    low, high = (
        (1.0 + len(ordered) - count_below(ordered, value)) / (1.0 + len(ordered)) for value in (larger, smaller)
    )
    # A p-value is a quotient that is rounded.
    return low - 1e-6, high + 1e-6


def _parts(images: Tensor) -> Iterator[Tensor]:
    start, turn = 0, 0
    while start < len(images):
        size = BATCHES[turn % len(BATCHES)]
        yield images[start : start + size]
        start, turn = start + size, turn + 1


def _shape(value: Tensor | None) -> str:
    return "nothing" if value is None else f"{value.dtype} {tuple(value.shape)}"
