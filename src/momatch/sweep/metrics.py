"""The metrics that tables show: how each is read from a run's outcome, named and printed.

A metric of outlier detection is named ``auroc:ORIGIN:STATE:SCORE``, such as ``auroc:held-out classes:refitted:nearest``. A
grid asks for all of them with ``auroc``: which origins there are is known once runs are evaluated.
"""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from momatch.sweep.record import Outcome, Record

#: The group of all metrics of outlier detection.
AUROC = "auroc"
#: Origin of the outliers that are the run's own held-out classes.
HELD_OUT = "held-out classes"
#: Evaluation key -> display name.
STATES = {"as_trained": "as trained", "refitted": "refitted"}
#: Score -> its title. The linear head has only the last two.
SCORES = {
    "nearest": "nearest center",
    "assigned": "assigned center",
    "farthest": "farthest center",
    "density": "density (linear: energy)",
    "confidence": "confidence",
}


@dataclass(frozen=True)
class Metric:
    """One metric of a run.

    Attributes:
        name: as used in grids.
        title: display name, capitalised for a caption.
        unit: printed after the title; "" for none.
        keys: where it is found in an outcome: the attribute, then the keys of nested dicts.
        factor: between the stored value and the shown one.
        decimals: digits after the point.
        higher_is_better: None if neither direction is better.
    """

    name: str
    title: str
    unit: str
    keys: tuple[str, ...]
    factor: float
    decimals: int
    higher_is_better: bool | None

    def read(self, outcome: Outcome) -> float | None:
        """The metric in its unit; None if the run failed, or has no finite value of it."""
        value: Any = getattr(outcome, self.keys[0])
        for key in self.keys[1:]:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return self.factor * float(value)

    def by_seed(self, record: Record, row: str, column: str) -> dict[int, float]:
        """Seed -> the metric, of the runs of one cell that have it."""
        outcomes = (outcome for outcome in record.outcomes if (outcome.row, outcome.column) == (row, column))
        values = {outcome.seed: self.read(outcome) for outcome in outcomes}
        return {seed: value for seed, value in values.items() if value is not None}

    @property
    def heading(self) -> str:
        """Title, unit and which direction is better."""
        better = {True: ", higher is better", False: ", lower is better", None: ""}[self.higher_is_better]
        return self.title + (f", {self.unit}" if self.unit else "") + better


def _of_result(
    name: str, title: str, key: str, unit: str = "", *, decimals: int = 2, better: bool | None = None
) -> Metric:
    return Metric(name, title, unit, ("result", key), 100.0 if unit == "%" else 1.0, decimals, better)


#: Name -> metric, without those of outlier detection.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _of_result(
            "accuracy", "Test accuracy of the averaged model at the last step", "test_accuracy", "%", better=True
        ),
        _of_result("compactness", "Mean distance of a test image to its assigned center", "compactness"),
        _of_result("compactness_true", "Mean distance of a test image to its true class's center", "compactness_true"),
        _of_result(
            "center_offset", "Distance of a center to its class mean, in units of the class spread", "center_offset"
        ),
        _of_result(
            "center_spread", "Spread of the centers, in units of the spread of the class means", "center_spread"
        ),
        _of_result("utilisation", "Share of the pool with a pseudo-label at the end", "utilisation", "%"),
        _of_result(
            "pseudo_label_accuracy",
            "Accuracy of the pseudo-labels at the end",
            "pseudo_label_accuracy",
            "%",
            better=True,
        ),
        _of_result("ece", "Calibration error (ECE)", "ece", "%", better=False),
        _of_result("seconds", "Training time of a run", "seconds", "s", decimals=0, better=False),
        # Of the whole process on a CPU, of the tensors on a GPU; in MiB, whatever the key says.
        _of_result("peak_memory", "Peak memory of training", "peak_memory_mb", "MiB", decimals=0, better=False),
    )
}


def auroc_metric(origin: str, state: str, score: str) -> Metric:
    """The AUROC of `score` between test images and outliers of `origin`: 1 is perfect, 0.5 is chance.

    Args:
        origin: "held-out classes" or a dataset.
        state: a key of `STATES`: the head as trained, or refitted in closed form.
        score: a key of `SCORES`.
    """
    return Metric(
        name=f"{AUROC}:{origin}:{STATES[state]}:{score}",
        title=f"AUROC of {SCORES[score].partition(' (')[0]}, {STATES[state]}, {origin}",
        unit="",
        keys=("evaluation", origin, state, score, "auroc"),
        factor=1.0,
        decimals=3,
        higher_is_better=True,
    )


def origins(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """The origins of outliers that the runs were evaluated on: held-out classes first, then datasets by name."""
    found = {origin for outcome in outcomes for origin in outcome.evaluation or {}}
    return tuple(sorted(found, key=lambda origin: (origin != HELD_OUT, origin)))


def metrics_named(name: str, outcomes: Iterable[Outcome] = ()) -> tuple[Metric, ...]:
    """The metrics that a name in a grid refers to: one, or for "auroc" every score by state and origin of the outcomes.

    Raises:
        ValueError: if there is no such metric; with a suggestion.
    """
    if name == AUROC:
        return tuple(
            auroc_metric(origin, state, score) for origin in origins(outcomes) for state in STATES for score in SCORES
        )
    if name in METRICS:
        return (METRICS[name],)
    group, _, rest = name.partition(":")
    # An origin may be a path with a colon in it.
    origin, _, ending = rest.rpartition(":")
    origin, _, state = origin.rpartition(":")
    states = {words: key for key, words in STATES.items()}
    if group == AUROC and origin and state in states and ending in SCORES:
        return (auroc_metric(origin, states[state], ending),)
    close = difflib.get_close_matches(name, [*METRICS, AUROC], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join([*METRICS, AUROC])}"
    raise ValueError(f"metrics: got the unknown metric {name!r}; {hint}")
