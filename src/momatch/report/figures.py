"""Tables: the figures of a run, its settings, the versions that made it."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from html import escape
from typing import Any, NamedTuple

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.evaluate import Evaluation
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
    Figure("utilisation", "Utilisation", percent, "share of unlabelled images whose pseudo-label counted, at the end"),
    Figure("pseudo_label_accuracy", "Pseudo-label accuracy", percent, "share of those pseudo-labels that are right"),
    Figure("steps", "Steps", count, "of the optimiser"),
    Figure("skipped_steps", "Skipped steps", count, "loss or gradient was not finite"),
    Figure("seconds", "Training time", duration, "wall clock"),
    Figure("images_per_second", "Images a second", count, "through the network while training"),
    Figure("peak_memory_mb", "Peak memory", lambda megabytes: f"{count(megabytes)} MB", "of the process or device"),
)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = ""
    for first, *rest in rows:
        body += f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def figures_section(result: dict[str, Any], evaluation: Evaluation | None) -> str:
    """The table of all figures that there are."""
    values = dict(result)
    if evaluation is not None:
        values |= {
            "test_accuracy": evaluation.accuracy,
            "ece": evaluation.ece,
            "nll": evaluation.nll,
            "compactness": evaluation.compactness,
            "compactness_true": evaluation.compactness_true,
        }
    rows = [
        (figure.name, figure.write(values[figure.key]), figure.meaning)
        for figure in FIGURES
        if is_number(values.get(figure.key))
    ]
    if not rows:
        return missing("No figures yet: the run has not finished.")
    return table(("Figure", "Value", "What it is"), rows)


def settings_section(config: TrainConfig) -> str:
    """What was set, then everything."""
    settings, defaults = config.to_dict(), TrainConfig().resolved().to_dict()
    rows = {
        field.name: (field.name, _value(settings[field.name]), _value(defaults[field.name])) for field in fields(config)
    }
    # Where and how a run was carried out is no difference to its result.
    changed = [row for name, row in rows.items() if settings[name] != defaults[name] and name not in RUNTIME_KEYS]
    if changed:
        note = "<p>Different from the defaults:</p>" + table(("Setting", "Value", "Default"), changed)
    else:
        note = "<p>All settings are the defaults.</p>"
    everything = table(("Setting", "Value"), (row[:2] for row in rows.values()))
    return f"{note}<details><summary>All {len(rows)} settings</summary>{everything}</details>"


def versions_section(result: dict[str, Any]) -> str:
    """Versions of what the run was made with."""
    versions = result.get("versions")
    if not isinstance(versions, dict) or not versions:
        return missing("No versions were recorded.")
    return table(("Package", "Version"), ((escape(str(name)), escape(str(value))) for name, value in versions.items()))


def _value(value: object) -> str:
    return f"<code>{escape(str(value))}</code>"
