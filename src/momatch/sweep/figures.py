"""Figures that tables show: how each is read from a run's outcome, called and printed.

A figure of outlier detection is named ``auroc:ORIGIN:STATE:SCORE``, such as ``auroc:held-out classes:refitted:nearest``. A
grid asks for all of them with ``auroc``: which origins there are is known once runs are evaluated.
"""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from momatch.sweep.record import Outcome, Record

#: The group of all figures of outlier detection.
AUROC = "auroc"
#: Origin of the outliers that are the run's own held-out classes.
HELD_OUT = "held-out classes"
#: Key of an evaluation -> in words.
STATES = {"as_trained": "as trained", "refitted": "refitted"}
#: Score -> its title. The linear head has the last two alone.
SCORES = {
    "nearest": "nearest center",
    "assigned": "assigned center",
    "farthest": "farthest center",
    "density": "density (linear: energy)",
    "confidence": "confidence",
}


@dataclass(frozen=True)
class Figure:
    """One figure of a run.

    Attributes:
        name: by which grids ask for it.
        title: in words, as it opens a caption.
        unit: printed after the title; "" for none.
        keys: the way to it through an outcome: the attribute and then keys of dicts.
        factor: that the stored value is shown times.
        decimals: digits after the point.
        higher_is_better: None where neither is.
    """

    name: str
    title: str
    unit: str
    keys: tuple[str, ...]
    factor: float
    decimals: int
    higher_is_better: bool | None

    def read(self, outcome: Outcome) -> float | None:
        """The figure in its unit; None if the run failed, has no such figure or one that is not finite."""
        value: Any = getattr(outcome, self.keys[0])
        for key in self.keys[1:]:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return self.factor * float(value)

    @property
    def heading(self) -> str:
        """Title, unit and which end is good."""
        better = {True: ", higher is better", False: ", lower is better", None: ""}[self.higher_is_better]
        return self.title + (f", {self.unit}" if self.unit else "") + better


def _of_result(
    name: str, title: str, key: str, unit: str = "", *, decimals: int = 2, better: bool | None = None
) -> Figure:
    return Figure(name, title, unit, ("result", key), 100.0 if unit == "%" else 1.0, decimals, better)


#: Name -> figure, those of outlier detection aside.
FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        _of_result(
            "accuracy", "Test accuracy of the averaged model at the last step", "test_accuracy", "%", better=True
        ),
        _of_result("compactness", "Mean distance of a test image to its assigned center", "compactness"),
        _of_result("compactness_true", "Mean distance of a test image to its true class's center", "compactness_true"),
        _of_result(
            "center_offset", "Distance of a center to the mean of its class, in spreads of the classes", "center_offset"
        ),
        _of_result("center_spread", "How far apart the centers lie, in units of the classes' means", "center_spread"),
        _of_result("utilisation", "Share of the pool that gets a pseudo-label at the end", "utilisation", "%"),
        _of_result(
            "pseudo_label_accuracy", "Right pseudo-labels at the end", "pseudo_label_accuracy", "%", better=True
        ),
        _of_result("ece", "Calibration error (ECE)", "ece", "%", better=False),
        _of_result("seconds", "Time of a run", "seconds", "s", decimals=0, better=False),
        # Of all of the process on a CPU, of the tensors on a GPU; counted in 2^20 bytes whatever the key says.
        _of_result("peak_memory", "Peak memory of training", "peak_memory_mb", "MiB", decimals=0, better=False),
    )
}


def auroc_figure(origin: str, state: str, score: str) -> Figure:
    """The AUROC of `score` for outliers of `origin`: 1 tells all from the test images, 0.5 is chance.

    Args:
        origin: "held-out classes" or a dataset.
        state: a key of `STATES`: by the head as trained or refitted in closed form.
        score: a key of `SCORES`.
    """
    return Figure(
        name=f"{AUROC}:{origin}:{STATES[state]}:{score}",
        title=f"AUROC of {SCORES[score].partition(' (')[0]}, {STATES[state]}, {origin}",
        unit="",
        keys=("evaluation", origin, state, score, "auroc"),
        factor=1.0,
        decimals=3,
        higher_is_better=True,
    )


def origins(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """The origins of outliers that the runs were evaluated with: the held-out classes first, then others by name."""
    found = {origin for outcome in outcomes for origin in outcome.evaluation or {}}
    return tuple(sorted(found, key=lambda origin: (origin != HELD_OUT, origin)))


def figures_named(name: str, outcomes: Iterable[Outcome] = ()) -> tuple[Figure, ...]:
    """The figures that a grid's name stands for: one, or for "auroc" every score by state and origin of the outcomes.

    Raises:
        ValueError: if there is no such figure; with a suggestion.
    """
    if name == AUROC:
        return tuple(
            auroc_figure(origin, state, score) for origin in origins(outcomes) for state in STATES for score in SCORES
        )
    if name in FIGURES:
        return (FIGURES[name],)
    group, _, rest = name.partition(":")
    # An origin may hold a colon itself: it is a path, perhaps.
    origin, _, ending = rest.rpartition(":")
    origin, _, state = origin.rpartition(":")
    states = {words: key for key, words in STATES.items()}
    if group == AUROC and origin and state in states and ending in SCORES:
        return (auroc_figure(origin, states[state], ending),)
    close = difflib.get_close_matches(name, [*FIGURES, AUROC], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join([*FIGURES, AUROC])}"
    raise ValueError(f"figures: got the unknown figure {name!r}; {hint}")


def by_seed(record: Record, row: str, column: str, figure: Figure) -> dict[int, float]:
    """Seed -> the figure, of the runs of one cell that have it."""
    outcomes = (outcome for outcome in record.outcomes if (outcome.row, outcome.column) == (row, column))
    values = {outcome.seed: figure.read(outcome) for outcome in outcomes}
    return {seed: value for seed, value in values.items() if value is not None}
