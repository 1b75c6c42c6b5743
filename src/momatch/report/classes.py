"""Where the classifier errs: accuracy of each class, and which classes are taken for which."""

from html import escape

from jaxtyping import Int64
from torch import Tensor

from momatch.evaluation.evaluate import Evaluation
from momatch.report.findings import Findings, Missing
from momatch.report.panels import chart, table
from momatch.report.words import count, missing, percent, plural

#: With more classes than this, the table holds only the weakest ones, and the most confused pairs are listed.
MOST_CLASSES = 20
#: Pairs in that list.
MOST_PAIRS = 12


def classes_section(run: Findings, number: int) -> str:
    """The confusion matrix, and a bar for the accuracy of each class."""
    if isinstance(run.evaluation, Missing):
        return missing(run.evaluation.reason)
    evaluation, names = run.evaluation, run.class_names
    label = "Confusion matrix: true classes down, predicted classes across"
    matrix = chart("confusion", label, number, height=max(420, min(720, 120 + 38 * len(names))), narrow=440)
    pairs, bars = _pairs(evaluation, names), _bars(evaluation, names)
    if len(names) > MOST_CLASSES:
        return f'<div class="split"><div>{matrix}{pairs}</div><div>{bars}</div></div>'
    return f'<div class="split">{matrix}<div>{pairs}{bars}</div></div>'


def confused_pairs(confusion: Int64[Tensor, "K K"]) -> list[tuple[int, int, int]]:
    """(times, true class, predicted class) of all errors, most frequent first."""
    cells = confusion.tolist()
    found = [(n, y, p) for y, row in enumerate(cells) for p, n in enumerate(row) if y != p and n]
    return sorted(found, key=lambda pair: (-pair[0], pair[1], pair[2]))


def _pairs(evaluation: Evaluation, names: tuple[str, ...]) -> str:
    pairs = confused_pairs(evaluation.confusion)
    if not pairs:
        return "<p>No test image was taken for another class.</p>"
    times, truth, predicted = pairs[0]
    sentence = (
        f"<p>Most often, <b>{escape(names[truth])}</b> was taken for <b>{escape(names[predicted])}</b>: "
        f"{plural(times, 'time')}.</p>"
    )
    if len(names) <= MOST_CLASSES:
        return sentence
    totals = evaluation.confusion.sum(1).tolist()
    rows = [
        (escape(names[truth]), escape(names[predicted]), f"{count(times)} of {count(totals[truth])}")
        for times, truth, predicted in pairs[:MOST_PAIRS]
    ]
    note = f"<p>{count(len(pairs))} pairs of classes were confused at least once; the most frequent:</p>"
    return sentence + note + table(("True class", "Taken for", "How often"), rows)


def _bars(evaluation: Evaluation, names: tuple[str, ...]) -> str:
    totals = evaluation.confusion.sum(1).tolist()
    seen = [(share, k) for k, share in enumerate(evaluation.per_class) if share is not None]
    note = ""
    absent = len(names) - len(seen)
    if len(seen) > MOST_CLASSES:
        note = f"<p>The {MOST_CLASSES} weakest of {len(seen)} classes:</p>"
        seen = sorted(seen)[:MOST_CLASSES]
    if absent:
        note += f"<p>{absent} of {len(names)} classes have no test image.</p>"
    rows = [(escape(names[k]), _bar(share), count(totals[k])) for share, k in seen]
    return note + table(("Class", "Classified correctly", "Test images"), rows, kind="bars")


def _bar(share: float) -> str:
    return f'<span class="bar"><span style="width:{100 * share:.1f}%"></span></span> {percent(share)}'
