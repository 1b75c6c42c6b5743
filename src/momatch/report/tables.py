"""The numbers that the page shows in sentences and tables, computed for its template."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from statistics import median
from typing import NamedTuple

from jaxtyping import Int64
from torch import Tensor

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.console.wording import format_duration
from momatch.evaluation.evaluate import Evaluation
from momatch.report.formats import count, decimal, is_number, percent
from momatch.report.run_report import ClusterMoments, Densities, MapPoints, Missing, RunReport

#: With more classes than this, only the weakest classes and the most confused pairs are listed.
MAX_CLASSES = 20
MAX_PAIRS = 12
#: Rows of the list of outliers; the file has all.
MAX_LISTED = 20


class Metric(NamedTuple):
    """A row of the metrics table.

    Attributes:
        key: in result.json or `Evaluation`.
        name: on the page.
        write: formats a value.
        meaning: one line for the reader.
        better: max or min, whichever picks the best run; None if neither end is better.
    """

    key: str
    name: str
    write: Callable[[float], str]
    meaning: str
    better: Callable[[Sequence[float]], float] | None = None


METRICS = (
    Metric(
        "test_accuracy", "Test accuracy", percent, "averaged (EMA) model after the last step; this is the result", max
    ),
    Metric(
        "best_test_accuracy",
        "Best test accuracy (oracle)",
        percent,
        "highest accuracy of any evaluation during training; selected on the test labels, so not a result",
    ),
    Metric("ece", "Calibration error", percent, "mean gap between confidence and accuracy over 15 bins (ECE)", min),
    Metric("nll", "Negative log-likelihood", decimal, "of the true classes, in nats; lower is better", min),
    Metric("compactness", "Compactness", decimal, "mean L2 distance to the center of the predicted class"),
    Metric("compactness_true", "Compactness, true class", decimal, "mean L2 distance to the center of the true class"),
    Metric(
        "center_spread",
        "Center spread",
        decimal,
        "distances between centers relative to those between class means; 1 is equal, 0 is collapsed",
    ),
    Metric(
        "center_offset",
        "Center offset",
        decimal,
        "distance between a center and its class mean, relative to the spread of the class; lower is better",
        min,
    ),
    Metric("utilisation", "Utilisation", percent, "share of unlabelled images whose pseudo-label was used, at the end"),
    Metric(
        "pseudo_label_accuracy", "Pseudo-label accuracy", percent, "share of these pseudo-labels that are correct", max
    ),
    Metric(
        "left_out_share",
        "Left out of training",
        percent,
        "share of unlabelled images that were likely outliers when the pool was last judged in training",
    ),
    Metric(
        "estimated_outlier_share",
        "Outliers in the pool, estimated",
        percent,
        "share of unlabelled images that look unlike the labelled ones",
    ),
    Metric("true_outlier_share", "Outliers in the pool", percent, "true share, where it is known"),
    Metric("outlier_precision", "Outlier precision", percent, "share of true outliers among the likely ones", max),
    Metric("outlier_recall", "Outlier recall", percent, "share of the true outliers that was found", max),
    Metric("steps", "Steps", count, "optimiser steps"),
    Metric("skipped_steps", "Skipped steps", count, "steps whose loss or gradient was not finite"),
    Metric("seconds", "Training time", format_duration, "wall clock", min),
    Metric("images_per_second", "Images per second", count, "through the network during training", max),
    Metric(
        "peak_memory_mb", "Peak memory", lambda megabytes: f"{count(megabytes)} MB", "of the process or device", min
    ),
)

#: Names of the outlier scores.
SCORES = {
    "judge": "the judge's score",
    "nearest": "distance to the nearest center",
    "assigned": "distance to the predicted center",
    "farthest": "distance to the farthest center",
    "density": "density, -log p(x)",
    "confidence": "1 - confidence",
}


# --- Summary ---


def headline(runs: Sequence[RunReport]) -> str:
    """The result of one run, or of several, in one line."""
    known = [accuracy for accuracy in map(_accuracy, runs) if accuracy is not None]
    if known:
        low, high = percent(min(known)), percent(max(known))
        span = low if low == high else f"{low} to {high}"
        prefix = f"{len(runs)} runs: " if len(runs) > 1 else ""
        return f"{prefix}{span} of test images classified correctly"
    if len(runs) > 1:
        return f"{len(runs)} runs, none with a known test accuracy"
    run = runs[0]
    if run.result is not None:
        return "Training finished; there were no labelled test images"
    if run.metrics or isinstance(run.config, TrainConfig):
        return "The result of this run cannot be read" if has_all_steps(run) else "This run has not finished"
    return "There is no readable run here"


def _accuracy(run: RunReport) -> float | None:
    if isinstance(run.evaluation, Evaluation):
        return run.evaluation.accuracy
    accuracy = (run.result or {}).get("test_accuracy")
    return accuracy if is_number(accuracy) else None


def last_step(run: RunReport) -> float | int:
    """The last step that was recorded; 0 if none was."""
    return max((line["step"] for line in run.metrics if is_number(line.get("step"))), default=0)


def has_all_steps(run: RunReport) -> bool:
    """Whether the metrics reach the last step of the settings."""
    return isinstance(run.config, TrainConfig) and last_step(run) >= run.config.steps


def weakest_class(evaluation: Evaluation, names: Sequence[str]) -> tuple[str, float] | None:
    """Name and accuracy of the weakest class; None if no class is weaker than the average."""
    known = [(share, name) for share, name in zip(evaluation.per_class, names, strict=True) if share is not None]
    share, name = min(known, key=lambda pair: pair[0])
    return (name, share) if len(known) > 1 and share < evaluation.accuracy else None


def confidence_bias(evaluation: Evaluation) -> str | None:
    """Whether the model is over- or underconfident; None if the calibration error rounds to less than a point."""
    if evaluation.ece < 0.005:
        return None
    bins = evaluation.calibration
    return "overconfident" if float((bins.count * (bins.confidence - bins.accuracy)).sum()) > 0 else "underconfident"


class Separation(NamedTuple):
    """How well the score that a head is made for separates outliers from test images: AUROC and the name of the score."""

    auroc: float
    score: str


def outlier_separation(found: Densities | Missing) -> dict[str, Separation]:
    """Origin -> separation by the judge; without one by the refitted mixture, or by the head as trained."""
    if isinstance(found, Missing) or not found.separation:
        return {}
    state = next(state for state in ("judge", "refitted", "as trained") if state in found.separation)
    by_origin = found.separation[state]
    mixture = " of the refitted mixture" if state == "refitted" else ""
    separations = {}
    for origin, scores in by_origin.items():
        if "judge" in scores:
            separations[origin] = Separation(scores["judge"]["auroc"], "judge's score")
        elif "nearest" in scores:
            separations[origin] = Separation(scores["nearest"]["auroc"], f"distance to the nearest center{mixture}")
        elif "density" in scores:
            separations[origin] = Separation(scores["density"]["auroc"], "energy")
    return separations


# --- Metrics and settings, of one run or of several ---


def metric_values(run: RunReport) -> dict[str, float | int]:
    """The known metrics of a run by key."""
    values = dict(run.result or {})
    if isinstance(run.evaluation, Evaluation):
        evaluated = ("ece", "nll", "compactness", "compactness_true", "center_spread", "center_offset")
        values |= {key: getattr(run.evaluation, key) for key in evaluated}
        values["test_accuracy"] = run.evaluation.accuracy
    return {metric.key: values[metric.key] for metric in METRICS if is_number(values.get(metric.key))}


def metric_rows(run: RunReport) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each known metric."""
    values = metric_values(run)
    return [
        (metric.name, metric.write(values[metric.key]), metric.meaning) for metric in METRICS if metric.key in values
    ]


class Cell(NamedTuple):
    """A value of one run in a comparison; None if unknown."""

    text: str | None
    is_best: bool = False


class ComparisonRow(NamedTuple):
    """A row of the comparison: a cell per run, and a longer explanation of the name."""

    name: str
    cells: list[Cell]
    meaning: str = ""
    is_setting: bool = False


def comparison_rows(runs: Sequence[RunReport]) -> list[ComparisonRow]:
    """The settings that differ between runs, all metrics, and the AUROC for outliers."""
    return [*_setting_rows(runs), *_metric_comparison(runs), *_outlier_comparison(runs)]


def _setting_rows(runs: Sequence[RunReport]) -> list[ComparisonRow]:
    known = [None if isinstance(run.config, Missing) else run.config.to_dict() for run in runs]
    rows = []
    for field in fields(TrainConfig):
        values = [None if settings is None else str(settings[field.name]) for settings in known]
        differ = len({value for value in values if value is not None}) > 1
        if differ and field.name not in RUNTIME_KEYS:
            rows.append(ComparisonRow(field.name, [Cell(value) for value in values], is_setting=True))
    return rows


def _metric_comparison(runs: Sequence[RunReport]) -> list[ComparisonRow]:
    values = [metric_values(run) for run in runs]
    rows = []
    for metric in METRICS:
        cells = _cells([each.get(metric.key) for each in values], metric.write, metric.better)
        if any(cell.text for cell in cells):
            rows.append(ComparisonRow(metric.name, cells, metric.meaning))
    return rows


def _outlier_comparison(runs: Sequence[RunReport]) -> list[ComparisonRow]:
    distance = "distance (energy for a linear head)"
    with_judge = [run.has_judge for run in runs]
    if any(with_judge):
        distance = SCORES["judge"] if all(with_judge) else f"{SCORES['judge']}, or {distance}"
    scores: dict[str, list[dict[str, float]]] = {
        distance: [
            {origin: found.auroc for origin, found in outlier_separation(run.densities).items()} for run in runs
        ],
        SCORES["confidence"]: [_confidence_auroc(run.densities) for run in runs],
    }
    origins = dict.fromkeys(origin for by_run in scores.values() for each in by_run for origin in each)
    rows = []
    for origin in origins:
        for score, by_run in scores.items():
            cells = _cells([each.get(origin) for each in by_run], lambda auroc: f"{auroc:.3f}", max)
            if any(cell.text for cell in cells):
                rows.append(ComparisonRow(f"AUROC, {origin}, {score}", cells))
    return rows


def _confidence_auroc(found: Densities | Missing) -> dict[str, float]:
    """By the head as trained, whose posterior makes the predictions."""
    by_origin = {} if isinstance(found, Missing) else found.separation.get("as trained", {})
    return {origin: scores["confidence"]["auroc"] for origin, scores in by_origin.items() if "confidence" in scores}


def _cells(
    values: Sequence[float | int | None],
    write: Callable[[float], str],
    better: Callable[[Sequence[float]], float] | None,
) -> list[Cell]:
    known = [value for value in values if value is not None]
    best = better(known) if better is not None and len(set(known)) > 1 else None
    return [Cell(None) if value is None else Cell(write(value), value == best) for value in values]


class Setting(NamedTuple):
    """A setting, its default, and whether the difference may change the result."""

    name: str
    value: object
    default: object
    is_changed: bool


def setting_rows(config: TrainConfig) -> list[Setting]:
    """All settings. How and where a run was carried out (`RUNTIME_KEYS`) does not count as a change."""
    settings, defaults = config.to_dict(), TrainConfig().resolved().to_dict()
    return [
        Setting(name, value, defaults[name], value != defaults[name] and name not in RUNTIME_KEYS)
        for name, value in ((field.name, settings[field.name]) for field in fields(config))
    ]


# --- Latent space, Gaussianity, errors, outliers ---


def map_counts(points: MapPoints) -> list[tuple[str, int, float]]:
    """Origin, images on the map, and the share of them that is flagged; origins without images are left out."""
    found = []
    for number, name in enumerate(points.origin_names):
        flagged = points.flagged[points.origin == number]
        if len(flagged):
            found.append((name, len(flagged), float(flagged.double().mean())))
    return found


class OrderError(NamedTuple):
    """The largest moment error of an order in units of chance, as the median over classes."""

    order: int
    is_constrained: bool
    error: float


def order_errors(clusters: Sequence[ClusterMoments], config: TrainConfig | Missing) -> list[OrderError]:
    """The error of each order, and whether the run constrained it."""
    constrained = 0 if isinstance(config, Missing) or config.constraint != "moments" else config.moment_order or 0
    found = []
    for order in range(1, 5):
        # The largest within an order: a collapsed cluster meets every target of 0.
        largest = [
            max(ratios)
            for cluster in clusters
            if (ratios := [row.error / row.noise for row in cluster.moments if row.order == order and row.noise > 0])
        ]
        if largest:
            found.append(OrderError(order, order <= constrained, median(largest)))
    return found


def width_range(clusters: Sequence[ClusterMoments]) -> tuple[float, float] | None:
    """Smallest and largest mean squared distance from a center along one dimension, whose target is 1."""
    squares = [row.mean for cluster in clusters for row in cluster.moments if row.cells == "(2)"]
    return (min(squares), max(squares)) if squares else None


class ConfusedPair(NamedTuple):
    """A kind of error: how often, the true class and the predicted one."""

    times: int
    truth: int
    predicted: int


def confused_pairs(confusion: Int64[Tensor, "K K"]) -> list[ConfusedPair]:
    """All kinds of errors, most frequent first."""
    cells = confusion.tolist()
    found = [ConfusedPair(n, y, p) for y, row in enumerate(cells) for p, n in enumerate(row) if y != p and n]
    return sorted(found, key=lambda pair: (-pair.times, pair.truth, pair.predicted))


def class_accuracies(evaluation: Evaluation) -> list[tuple[int, float]]:
    """(class, accuracy) of classes with test images; of many classes only the weakest, weakest first."""
    known = [(k, share) for k, share in enumerate(evaluation.per_class) if share is not None]
    return known if len(known) <= MAX_CLASSES else sorted(known, key=lambda pair: pair[::-1])[:MAX_CLASSES]


def separation_rows(found: Densities) -> list[tuple[str, list[float | None]]]:
    """Name of each outlier score, and its AUROC for every state and origin of `found.separation`; None if unknown."""
    columns = [scores for origins in found.separation.values() for scores in origins.values()]
    rows = []
    for score, name in SCORES.items():
        values = [scores[score]["auroc"] if score in scores else None for scores in columns]
        if any(value is not None for value in values):
            rows.append((name, values))
    return rows
