"""Figures as text, and the result of a run in words."""

import math
from html import escape
from typing import Any, TypeGuard

from momatch.config import TrainConfig
from momatch.evaluate import Evaluation


def is_number(value: object) -> TypeGuard[float | int]:
    """True for a finite number (a bool is none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def percent(value: float | int) -> str:
    """A share as a percentage with one digit."""
    return f"{100 * value:.1f} %"


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


def headline(result: dict[str, Any] | None, evaluation: Evaluation | None) -> str:
    """The result in one line."""
    accuracy = evaluation.accuracy if evaluation is not None else (result or {}).get("test_accuracy")
    if is_number(accuracy):
        return f"{percent(accuracy)} of test images classified correctly"
    return "Training finished; there were no labelled test images" if result else "This run has not finished"


def summary(
    config: TrainConfig, result: dict[str, Any] | None, names: tuple[str, ...], evaluation: Evaluation | None
) -> str:
    """The result in a few sentences; a run without one has not finished."""
    sentences = [_training(config, len(names))]
    if result is None:
        sentences.append("The run has not finished: what follows is as far as it got.")
    if evaluation is not None:
        sentences += _test(evaluation, names)
    result = result or {}
    used, right = result.get("utilisation"), result.get("pseudo_label_accuracy")
    if is_number(used):
        checked = f", {percent(right)} of them correct" if is_number(right) else ""
        sentences.append(f"At the end {percent(used)} of the unlabelled images counted with a pseudo-label{checked}.")
    skipped = result.get("skipped_steps")
    if is_number(skipped) and skipped:
        sentences.append(f"{count(skipped)} steps were skipped because a loss or gradient was not finite.")
    return f"<p>{' '.join(sentences)}</p>"


def _training(config: TrainConfig, K: int) -> str:
    number = f"{config.labels_per_class} {'label' if config.labels_per_class == 1 else 'labels'} a class"
    labels = (number if config.labels_per_class else "every label") + (f" ({K} classes)" if K else "")
    pool = "and no unlabelled images" if config.policy == "supervised" else f"and unlabelled images ({config.policy})"
    order = config.resolved().moment_order
    rule = f"moments up to order {order}" if config.constraint == "moments" else config.constraint
    clusters = f", its clusters constrained by {rule}," if order else ""
    return (
        f"A <b>{escape(config.backbone)}</b> network with the <b>{escape(config.head)}</b> head{clusters} trained on "
        f"<b>{escape(config.dataset)}</b> with {labels} {pool}, seed {config.seed}."
    )


def _test(evaluation: Evaluation, names: tuple[str, ...]) -> list[str]:
    n, errors = evaluation.n, evaluation.n - int(evaluation.confusion.diagonal().sum())
    sentences = [f"It was wrong on {count(errors)} of {count(n)} test images."]
    seen = [(share, name) for share, name in zip(evaluation.per_class, names, strict=True) if share is not None]
    share, weakest = min(seen, key=lambda pair: pair[0])
    if len(seen) > 1 and share < evaluation.accuracy:
        sentences.append(f"The weakest class is <b>{escape(weakest)}</b> with {percent(share)}.")
    bins = evaluation.calibration
    gap = float((bins.count * (bins.confidence - bins.accuracy)).sum()) / n
    points = f"{100 * evaluation.ece:.1f} points"
    direction = "too sure" if gap > 0 else "too modest"
    mostly = f", mostly {direction}" if evaluation.ece >= 0.005 else ""
    sentences.append(f"Its stated confidence is off by {points} on average{mostly}.")
    return sentences
