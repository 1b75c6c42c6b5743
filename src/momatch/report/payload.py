"""What the page's scripts draw: findings as plain lists and numbers."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.evaluation.evaluate import Evaluation
from momatch.report.curves import curve_charts, threshold_points
from momatch.report.findings import ClusterFindings, Densities, Findings, Missing, Points
from momatch.report.plain import rounded
from momatch.report.sprites import Sprites

#: Longest side of a picture on the map, in pixels.
MAP_PIXELS = 32
#: Bars of a histogram.
BINS = 60


def page_payload(findings: Sequence[Findings], sprites: Sprites) -> dict[str, Any]:
    """Everything that is drawn; the pictures of the maps are added to `sprites`."""
    runs = [_run(run, sprites) for run in findings]
    return {"curves": curve_charts(findings), "runs": runs, "sheets": sprites.facts()}


def _run(run: Findings, sprites: Sprites) -> dict[str, Any]:
    return {
        "name": run.name,
        "classes": list(run.class_names),
        "thresholds": threshold_points(run),
        "map": None if isinstance(run.points, Missing) else _map(run.points, sprites),
        "clusters": None if isinstance(run.clusters, Missing) else [_cluster(each) for each in run.clusters],
        "errors": None if isinstance(run.evaluation, Missing) else _errors(run.evaluation),
        "densities": None if isinstance(run.densities, Missing) else densities(run.densities),
    }


def _map(points: Points, sprites: Sprites) -> dict[str, Any]:
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
        # All pictures of a dataset have one size; datasets may differ.
        "kinds": [tile.kind for tile in tiles],
        "tiles": [tile.number for tile in tiles],
    }


def _places(places: Float[Tensor, "n 2"]) -> dict[str, list[float | None]]:
    return {"x": rounded(places[:, 0].tolist()), "y": rounded(places[:, 1].tolist())}


def _cluster(cluster: ClusterFindings) -> dict[str, Any]:
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


def densities(found: Densities) -> dict[str, Any]:
    """Histograms of log p(x), as trained and refitted: state -> edges and, origin by origin, shares of its images."""
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
    """From where to where log p(x) is drawn; what lies farther left is put into the first bar.

    The log density falls with the square of the distance: a few far outliers would press all else into one bar. The range
    therefore reaches at most eight times the spread of the first group, the images that belong, below them.
    """
    first = groups[0]
    low, high = float(first.quantile(0.01)), float(first.quantile(0.99))
    spread = max(high - low, 1e-3 * max(1.0, abs(high)))
    start = min(float(group.quantile(0.02)) for group in groups)
    end = max(float(group.max()) for group in groups)
    start, end = max(min(start, low), low - 8 * spread), min(end, high + 8 * spread)
    return start, max(end, start + spread)
