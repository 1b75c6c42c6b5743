"""Tables: the figures of a run, its settings, the versions that made it."""

from collections.abc import Callable
from dataclasses import fields
from html import escape
from typing import Any, NamedTuple

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.evaluation.evaluate import Evaluation
from momatch.report.findings import Findings, Missing
from momatch.report.panels import table
from momatch.report.words import count, decimal, duration, is_number, missing, percent


class Figure(NamedTuple):
    """A row of the table: the key in result.json, its name, how it is written and what it means."""

    key: str
    name: str
    write: Callable[[float], str]
    meaning: str


FIGURES = (
    Figure("test_accuracy", "Test accuracy", percent, "of the averaged (EMA) model at the last step: the result"),
    Figure(
        "best_test_accuracy",
        "Best test accuracy (oracle)",
        percent,
        "highest of all evaluations during training; chosen by the test labels themselves, so not a result",
    ),
    Figure("ece", "Calibration error", percent, "mean gap between stated confidence and accuracy, 15 bins"),
    Figure("nll", "Negative log likelihood", decimal, "of the true classes, in nats; smaller is better"),
    Figure("compactness", "Compactness", decimal, "mean L2 distance to the center of the predicted class"),
    Figure("compactness_true", "Compactness, true class", decimal, "mean L2 distance to the center of the true class"),
    Figure(
        "center_spread",
        "Spread of the centers",
        decimal,
        "their distances from each other against those of the class means; 1: equal, 0: collapsed",
    ),
    Figure(
        "center_offset",
        "Offset of the centers",
        decimal,
        "distance of a center from its class's mean, in spreads of the class; smaller is better",
    ),
    Figure("utilisation", "Utilisation", percent, "share of unlabelled images whose pseudo-label counted, at the end"),
    Figure("pseudo_label_accuracy", "Pseudo-label accuracy", percent, "share of those pseudo-labels that are right"),
    Figure("steps", "Steps", count, "of the optimiser"),
    Figure("skipped_steps", "Skipped steps", count, "loss or gradient was not finite"),
    Figure("seconds", "Training time", duration, "wall clock"),
    Figure("images_per_second", "Images a second", count, "through the network while training"),
    Figure("peak_memory_mb", "Peak memory", lambda megabytes: f"{count(megabytes)} MB", "of the process or device"),
)


def figure_values(run: Findings) -> dict[str, float | int]:
    """The figures of a run that are known, by key."""
    values = dict(run.result or {})
    if isinstance(run.evaluation, Evaluation):
        values |= {
            "test_accuracy": run.evaluation.accuracy,
            "ece": run.evaluation.ece,
            "nll": run.evaluation.nll,
            "compactness": run.evaluation.compactness,
            "compactness_true": run.evaluation.compactness_true,
            "center_spread": run.evaluation.center_spread,
            "center_offset": run.evaluation.center_offset,
        }
    return {figure.key: values[figure.key] for figure in FIGURES if is_number(values.get(figure.key))}


def figures_section(run: Findings) -> str:
    """The table of all figures that there are."""
    values = figure_values(run)
    rows = [
        (figure.name, figure.write(values[figure.key]), figure.meaning) for figure in FIGURES if figure.key in values
    ]
    if not rows:
        return missing("No figures yet: the run has not finished.")
    return table(("Figure", "Value", "What it is"), rows, kind="figures")


def settings_section(run: Findings) -> str:
    """What was set, then everything; and the versions that the run was made with."""
    if isinstance(run.config, Missing):
        return missing(run.config.reason) + _versions(run.result or {})
    settings, defaults = run.config.to_dict(), TrainConfig().resolved().to_dict()
    rows = {
        field.name: (field.name, code(settings[field.name]), code(defaults[field.name])) for field in fields(run.config)
    }
    # Where and how a run was carried out is no difference to its result.
    changed = [row for name, row in rows.items() if settings[name] != defaults[name] and name not in RUNTIME_KEYS]
    if changed:
        note = "<p>Different from the defaults:</p>" + table(("Setting", "Value", "Default"), changed)
    else:
        note = "<p>All settings are the defaults.</p>"
    everything = table(("Setting", "Value"), (row[:2] for row in rows.values()))
    details = f"<details><summary>All {len(rows)} settings</summary>{everything}</details>"
    return note + details + _versions(run.result or {})


def _versions(result: dict[str, Any]) -> str:
    versions = result.get("versions")
    if not isinstance(versions, dict) or not versions:
        return missing("No versions were recorded.")
    parts = ", ".join(f"{escape(str(name))} {escape(str(value))}" for name, value in versions.items())
    return f"<p>Made with {parts}.</p>"


def code(value: object) -> str:
    """A setting as it is written."""
    return f"<code>{escape(str(value))}</code>"
