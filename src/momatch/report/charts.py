"""What the page's scripts draw, as plain lists and numbers: training curves, maps, moments, confusion, histograms."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.evaluation.evaluate import Evaluation
from momatch.report.formats import is_number, rounded
from momatch.report.run_report import ClusterMoments, Densities, MapPoints, Missing, RunReport
from momatch.report.sprites import Sprites

T = TypeVar("T")

#: Points of a curve; more would enlarge the page without being visible.
MAX_CURVE_POINTS = 400
#: With more classes than this, thresholds are drawn as a heatmap with fewer steps.
MAX_LINES = 20
MAX_HEATMAP_STEPS = 120
#: Longest side of a picture on the map, in pixels.
MAP_PIXELS = 64
#: Bars of a histogram.
BINS = 60


def chart_data(runs: Sequence[RunReport], sprites: Sprites) -> dict[str, Any]:
    """Everything the scripts draw; the pictures of the maps are added to `sprites`."""
    drawn = [_run(run, sprites) for run in runs]
    return {"curves": curve_charts(runs), "runs": drawn, "sheets": sprites.layout()}


def _run(run: RunReport, sprites: Sprites) -> dict[str, Any]:
    return {
        "name": run.name,
        "classes": list(run.class_names),
        "judged": run.has_judge,
        "thresholds": threshold_points(run),
        "map": None if isinstance(run.points, Missing) else _map(run.points, sprites),
        "clusters": None if isinstance(run.clusters, Missing) else [_cluster(each) for each in run.clusters],
        "errors": None if isinstance(run.evaluation, Missing) else _errors(run.evaluation),
        "densities": None if isinstance(run.densities, Missing) else density_histograms(run.densities),
    }


# --- Training curves ---


class Curve(NamedTuple):
    """A metric of metrics.jsonl over the steps.

    Attributes:
        key: in metrics.jsonl.
        name: in the legend of a chart that it shares with others.
        title: of a chart of its own.
    """

    key: str
    name: str
    title: str


class Chart(NamedTuple):
    """Curves that share a chart; `share`: their values are fractions of 1."""

    title: str
    share: bool
    curves: tuple[Curve, ...]


CHARTS = (
    Chart(
        "Loss",
        False,
        (
            Curve("supervised_loss", "labelled", "Loss on labelled images"),
            Curve("unlabeled_loss", "pseudo-labels", "Loss on pseudo-labels"),
            Curve("constraint_loss", "constraint", "Constraint loss"),
            Curve("fairness_loss", "fairness", "Fairness loss"),
        ),
    ),
    Chart(
        "Pseudo-labels",
        True,
        (
            Curve("utilisation", "used", "Pseudo-labels used"),
            Curve("pseudo_label_accuracy", "correct among those used", "Pseudo-label accuracy among those used"),
            Curve("outlier_share", "rejected as outliers", "Pseudo-labels rejected as outliers"),
        ),
    ),
    Chart("Test accuracy", True, (Curve("test_accuracy", "averaged model", "Test accuracy"),)),
)


def curve_charts(runs: Sequence[RunReport]) -> list[dict[str, Any]]:
    """The charts: for one run its curves in groups, for several runs a chart per curve with a line per run."""
    if len(runs) == 1:
        parts = [(chart.title, chart.share, [(c.name, 0, c.key) for c in chart.curves]) for chart in CHARTS]
    else:
        names = [(run.name, number) for number, run in enumerate(runs)]
        parts = [
            (curve.title, chart.share, [(name, number, curve.key) for name, number in names])
            for chart in CHARTS
            for curve in chart.curves
        ]
    charts = []
    for title, share, lines in parts:
        drawn = [
            {"name": name, "run": number, **points}
            for name, number, key in lines
            if (points := curve_points(runs[number].metrics, key)) is not None
        ]
        if drawn:
            charts.append({"title": title, "share": share, "lines": drawn})
    return charts


def curve_points(metrics: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[float | None]] | None:
    """Steps and values of a metric; None if it was not recorded or is switched off."""
    points = [
        (float(line["step"]), float(line[key]))
        for line in metrics
        if is_number(line.get("step")) and is_number(line.get(key))
    ]
    # A loss term that is always 0 is switched off, and so is the rejection of outliers.
    if not points or (key.endswith(("_loss", "_share")) and not any(y for _, y in points)):
        return None
    thinned = thin(points, MAX_CURVE_POINTS)
    return {"x": [x for x, _ in thinned], "y": rounded(y for _, y in thinned)}


def threshold_points(run: RunReport) -> dict[str, Any] | None:
    """Steps and the confidence threshold of each class; None if no thresholds were recorded."""
    K = len(run.class_names)
    lines = [
        (float(line["step"]), line["thresholds"])
        for line in run.metrics
        if is_number(line.get("step")) and _is_thresholds(line.get("thresholds"))
    ]
    K = K or (len(lines[0][1]) if lines else 0)
    lines = [(step, values) for step, values in lines if len(values) == K]
    if not lines:
        return None
    drawn = thin(lines, MAX_CURVE_POINTS if K <= MAX_LINES else MAX_HEATMAP_STEPS)
    return {
        "x": [step for step, _ in drawn],
        "y": [rounded(values[k] for _, values in drawn) for k in range(K)],
        "heatmap": K > MAX_LINES,
    }


def _is_thresholds(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(is_number(entry) for entry in value)


def thin(points: Sequence[T], most: int) -> Sequence[T]:
    """At most `most` evenly spaced points, including the last one."""
    stride = -(-len(points) // most) or 1
    return points[::-1][::stride][::-1]


# --- Latent space, moments, errors, densities ---


def _map(points: MapPoints, sprites: Sprites) -> dict[str, Any]:
    tiles = [sprites.add(image, most=MAP_PIXELS) for image in points.images]
    return {
        "maps": {name: _places(places) for name, places in points.maps.items()},
        "centers": {name: _places(places) for name, places in points.centers.items()},
        "origins": list(points.origin_names),
        "origin": points.origin.tolist(),
        "labels": points.labels.tolist(),
        "predicted": points.predicted.tolist(),
        "confidence": rounded(points.confidence.tolist()),
        "density": rounded(points.log_density.tolist()),
        "distance": rounded(points.distance.tolist()),
        "flagged": points.flagged.int().tolist(),
        "files": list(points.files) if any(points.files) else None,
        # Datasets may differ in the size of their images.
        "kinds": [tile.kind for tile in tiles],
        "tiles": [tile.number for tile in tiles],
    }


def _places(places: Float[Tensor, "n 2"]) -> dict[str, list[float | None]]:
    return {"x": rounded(places[:, 0].tolist()), "y": rounded(places[:, 1].tolist())}


def _cluster(cluster: ClusterMoments) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "n": cluster.n,
        "moments": [
            {"cells": row.cells, "order": row.order, "target": row.target}
            | dict(zip(("mean", "error", "noise"), rounded((row.mean, row.error, row.noise)), strict=True))
            for row in cluster.moments
        ],
        "expected": rounded(cluster.expected.tolist()),
        "observed": rounded(cluster.observed.tolist()),
    }


def _errors(evaluation: Evaluation) -> dict[str, Any]:
    bins = evaluation.calibration
    return {
        "confusion": evaluation.confusion.tolist(),
        "count": bins.count.tolist(),
        "confidence": rounded(bins.confidence.tolist()),
        "accuracy": rounded(bins.accuracy.tolist()),
    }


def density_histograms(found: Densities) -> dict[str, Any]:
    """Histograms of log p(x) in each state of `Densities`: state -> bin edges and the share of images per bin, by origin."""
    states = {}
    for state, by_origin in found.log_density.items():
        values = {name: each.double()[each.isfinite()] for name, each in by_origin.items()}
        values = {name: each for name, each in values.items() if len(each)}
        if not values:
            continue
        low, high = histogram_range(list(values.values()))
        edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
        states[state] = {
            "edges": rounded(edges.tolist(), digits=6),
            "origins": [
                {"name": name, "n": len(by_origin[name]), "beyond": int((each < low).sum()), **_histogram(each, edges)}
                for name, each in values.items()
            ],
        }
    return states


def _histogram(values: Float[Tensor, " m"], edges: Float[Tensor, " e"]) -> dict[str, list[float | None]]:
    bins = torch.bucketize(values, edges[1:-1], right=True)
    return {"share": rounded((torch.bincount(bins, minlength=len(edges) - 1) / len(values)).tolist())}


def histogram_range(groups: Sequence[Float[Tensor, " _"]]) -> tuple[float, float]:
    """The range of log p(x) that is drawn; values further left go into the first bar.

    The log density falls with the square of the distance, so a few far outliers would squeeze everything else into one
    bar. The range therefore extends at most eight times the spread of the first group, the test images, beyond it.
    """
    first = groups[0]
    low, high = float(first.quantile(0.01)), float(first.quantile(0.99))
    spread = max(high - low, 1e-3 * max(1.0, abs(high)))
    start = min(float(group.quantile(0.02)) for group in groups)
    end = max(float(group.max()) for group in groups)
    start, end = max(min(start, low), low - 8 * spread), min(end, high + 8 * spread)
    return start, max(end, start + spread)
