"""Training curves: which there are, and their points."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from momatch.report.findings import Findings
from momatch.report.plain import rounded
from momatch.report.words import is_number

T = TypeVar("T")

#: Points of a curve; more would not be seen, only loaded.
MOST_POINTS = 400
#: With more classes than this, thresholds are drawn as a heatmap of fewer moments.
MOST_LINES = 20
MOST_MOMENTS = 120


class Curve(NamedTuple):
    """A figure of metrics.jsonl over the steps.

    Attributes:
        key: in metrics.jsonl.
        name: beside the other curves of its chart.
        title: where it has a chart of its own.
    """

    key: str
    name: str
    title: str


class Chart(NamedTuple):
    """Curves that belong on one chart; `share`: their values are fractions of 1."""

    title: str
    share: bool
    curves: tuple[Curve, ...]


CHARTS = (
    Chart(
        "Loss",
        False,
        (
            Curve("supervised_loss", "labelled", "Loss of the labelled images"),
            Curve("unlabeled_loss", "pseudo-labels", "Loss of the pseudo-labels"),
            Curve("constraint_loss", "constraint", "Loss of the constraint"),
            Curve("fairness_loss", "fairness", "Loss of fairness"),
        ),
    ),
    Chart(
        "Pseudo-labels",
        True,
        (
            Curve("utilisation", "used", "Pseudo-labels used"),
            Curve("pseudo_label_accuracy", "of those, right", "Pseudo-labels used that are right"),
            Curve("outlier_share", "kept out as outliers", "Pseudo-labels kept out as outliers"),
        ),
    ),
    Chart("Test accuracy", True, (Curve("test_accuracy", "averaged model", "Test accuracy"),)),
)


def curve_charts(findings: Sequence[Findings]) -> list[dict[str, Any]]:
    """The charts: of one run the curves that belong together, of several runs each curve with a line for each run."""
    if len(findings) == 1:
        parts = [(chart.title, chart.share, [(c.name, 0, c.key) for c in chart.curves]) for chart in CHARTS]
    else:
        runs = [(run.name, number) for number, run in enumerate(findings)]
        parts = [
            (curve.title, chart.share, [(name, number, curve.key) for name, number in runs])
            for chart in CHARTS
            for curve in chart.curves
        ]
    charts = []
    for title, share, lines in parts:
        drawn = [
            {"name": name, "run": number, **points}
            for name, number, key in lines
            if (points := curve_points(findings[number].metrics, key)) is not None
        ]
        if drawn:
            charts.append({"title": title, "share": share, "lines": drawn})
    return charts


def curve_points(metrics: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[float | None]] | None:
    """Steps and values of a figure; None where it is not there or tells nothing."""
    points = [
        (float(line["step"]), float(line[key]))
        for line in metrics
        if is_number(line.get("step")) and is_number(line.get(key))
    ]
    # A part of the loss that is always 0 is switched off, and so is the removal of outliers.
    if not points or (key.endswith(("_loss", "_share")) and not any(y for _, y in points)):
        return None
    thinned = thin(points, MOST_POINTS)
    return {"x": [x for x, _ in thinned], "y": rounded(y for _, y in thinned)}


def threshold_points(run: Findings) -> dict[str, Any] | None:
    """Steps and, class by class, the confidence from which a pseudo-label counts; None for a run that has no such record."""
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
    drawn = thin(lines, MOST_POINTS if K <= MOST_LINES else MOST_MOMENTS)
    return {
        "x": [step for step, _ in drawn],
        "y": [rounded(values[k] for _, values in drawn) for k in range(K)],
        "heatmap": K > MOST_LINES,
    }


def _is_thresholds(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(is_number(entry) for entry in value)


def thin(points: Sequence[T], most: int) -> Sequence[T]:
    """At most `most` of the points, evenly; counted from the end, so that the last one is always there."""
    stride = -(-len(points) // most) or 1
    return points[::-1][::stride][::-1]
