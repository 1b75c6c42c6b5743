"""Figures as text, and the result of a run in words."""

import math
from html import escape
from typing import TypeGuard

from momatch.config import TrainConfig
from momatch.evaluation.evaluate import Evaluation
from momatch.report.findings import Densities, Findings, Missing


def is_number(value: object) -> TypeGuard[float | int]:
    """True for a finite number (a bool is none)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # A damaged file may hold an integer that no float can.
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def percent(value: float | int) -> str:
    """A share as a percentage with one digit; no line ends before its sign."""
    return f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def decimal(value: float | int) -> str:
    """A number with three significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def count(value: float | int) -> str:
    """A whole number."""
    return f"{value:,.0f}"


def duration(seconds: float | int) -> str:
    """Seconds as a person would say them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def missing(text: str) -> str:
    """A plain sentence in place of a section that has no data."""
    return f'<p class="missing">{escape(text)}</p>'


def plural(n: int, noun: str) -> str:
    """A number and what it counts."""
    return f"{count(n)} {noun}{'' if n == 1 else 's'}"


def accuracy_of(run: Findings) -> float | None:
    """Share of right test predictions; None if it is not known."""
    if isinstance(run.evaluation, Evaluation):
        return run.evaluation.accuracy
    accuracy = (run.result or {}).get("test_accuracy")
    return accuracy if is_number(accuracy) else None


def headline(run: Findings) -> str:
    """The result of a run in one line."""
    accuracy = accuracy_of(run)
    if accuracy is not None:
        return f"{percent(accuracy)} of test images classified correctly"
    if run.result is not None:
        return "Training finished; there were no labelled test images"
    if run.metrics or isinstance(run.config, TrainConfig):
        return "The result of this run cannot be read" if _reached_its_end(run) else "This run has not finished"
    return "There is no run that can be read"


def summary(run: Findings) -> str:
    """The result of a run in a few sentences, each under a word that says what it is about."""
    opening = [] if isinstance(run.config, Missing) else [_training(run.config, len(run.class_names))]
    if run.result is None:
        opening.append(_progress(run))
    facts: list[tuple[str, str]] = []
    if isinstance(run.evaluation, Evaluation):
        facts += _test(run.evaluation, run.class_names)
    if not isinstance(run.densities, Missing) and (outliers := outlier_sentence(run.densities)):
        facts.append(("Outliers", outliers))
    result = run.result or {}
    used, right = result.get("utilisation"), result.get("pseudo_label_accuracy")
    if is_number(used):
        checked = f"; {percent(right)} of these labels were right" if is_number(right) else ""
        facts.append(("Pseudo-labels", f"At the end {percent(used)} of the unlabelled images counted{checked}."))
    skipped = result.get("skipped_steps")
    if is_number(skipped) and skipped:
        text = f"{plural(int(skipped), 'step')} skipped because a loss or gradient was not finite."
        facts.append(("Training", text))
    entries = "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in facts)
    listed = f'<dl class="facts">{entries}</dl>' if facts else ""
    return f"<p>{' '.join(opening)}</p>{listed}{_problems(run)}"


def _problems(run: Findings) -> str:
    if not run.problems:
        return ""
    entries = "".join(f"<li>{escape(problem)}</li>" for problem in run.problems)
    title = "A problem" if len(run.problems) == 1 else f"{len(run.problems)} problems"
    return f'<div class="problems"><p>{title} with this run</p><ul>{entries}</ul></div>'


def _steps(run: Findings) -> list[float | int]:
    return [line["step"] for line in run.metrics if is_number(line.get("step"))]


def _reached_its_end(run: Findings) -> bool:
    return isinstance(run.config, TrainConfig) and max(_steps(run), default=0) >= run.config.steps


def _progress(run: Findings) -> str:
    steps = _steps(run)
    if not steps:
        return "Nothing was recorded of its training."
    if _reached_its_end(run):
        return f"All {count(max(steps))} steps were made, but there is no result that can be read."
    total = f" of {count(run.config.steps)}" if isinstance(run.config, TrainConfig) else ""
    return f"The run has not finished: it got to step {count(max(steps))}{total}, and what follows is as far as it got."


def outlier_sentence(found: Densities) -> str:
    """How well images that do not belong are told from those that do."""
    judged = judged_separation(found)
    if not judged:
        return ""
    parts = [f"<b>{escape(origin)}</b> in {percent(auroc)}" for origin, (auroc, _) in judged.items()]
    rule = next(iter(judged.values()))[1]
    return (
        f"Shown a test image and one that does not belong, the model finds the latter stranger: {', '.join(parts)} of cases "
        f"(50 % is guessing; AUROC of {rule})."
    )


def judged_separation(found: Densities) -> dict[str, tuple[float, str]]:
    """Origin -> AUROC of the score that the head is made for, and that score in words."""
    if not found.separation:
        return {}
    state, by_origin = list(found.separation.items())[-1]
    mixture = " of the refitted mixture" if state == "refitted" else ""
    judged = {}
    for origin, scores in by_origin.items():
        if "nearest" in scores:
            judged[origin] = (scores["nearest"]["auroc"], f"the distance to the nearest center{mixture}")
        elif "density" in scores:
            judged[origin] = (scores["density"]["auroc"], "the energy")
    return judged


def _training(config: TrainConfig, K: int) -> str:
    number = f"{config.labels_per_class} {'label' if config.labels_per_class == 1 else 'labels'} a class"
    labels = (number if config.labels_per_class else "every label") + (f" ({K} classes)" if K else "")
    pool = "and no unlabelled images" if config.policy == "supervised" else f"and unlabelled images ({config.policy})"
    if config.held_out_classes:
        stay = "their images stay in the pool" if config.held_out_in_pool else "training never sees them"
        pool += f", the classes {escape(config.held_out_classes)} held out ({stay})"
    order = config.resolved().moment_order
    rule = f"moments up to order {order}" if config.constraint == "moments" else config.constraint
    clusters = f", its clusters constrained by {rule}," if order else ""
    return (
        f"A <b>{escape(config.backbone)}</b> network with the <b>{escape(config.head)}</b> head{clusters} trained on "
        f"<b>{escape(config.dataset)}</b> with {labels} {pool}, seed {config.seed}."
    )


def _test(evaluation: Evaluation, names: tuple[str, ...]) -> list[tuple[str, str]]:
    n, errors = evaluation.n, evaluation.n - int(evaluation.confusion.diagonal().sum())
    text = f"Wrong on {count(errors)} of {plural(n, 'test image')}."
    seen = [(share, name) for share, name in zip(evaluation.per_class, names, strict=True) if share is not None]
    share, weakest = min(seen, key=lambda pair: pair[0])
    if len(seen) > 1 and share < evaluation.accuracy:
        text += f" The weakest class is <b>{escape(weakest)}</b> with {percent(share)}."
    bins = evaluation.calibration
    gap = float((bins.count * (bins.confidence - bins.accuracy)).sum()) / n
    direction = "too sure" if gap > 0 else "too modest"
    mostly = f", mostly {direction}" if evaluation.ece >= 0.005 else ""
    return [("Errors", text), ("Confidence", f"Off by {100 * evaluation.ece:.1f} points on average{mostly}.")]
