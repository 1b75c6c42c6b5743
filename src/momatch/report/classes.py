"""Where the classifier errs: accuracy of each class, and which classes are taken for which."""

from html import escape

from jaxtyping import Int64
from torch import Tensor

from momatch.evaluate import Evaluation
from momatch.report.figures import table
from momatch.report.words import count, missing, percent

#: With more classes than this, only the weakest ones and the most confused pairs are shown.
MOST_CLASSES = 20
NO_LABELS = "There is no evaluation on labelled test images, so nothing is known about single classes."


def short(name: str, most: int = 14) -> str:
    """A name that fits into a narrow place, escaped."""
    return escape(name if len(name) <= most else f"{name[: most - 1]}…")


def classes_section(evaluation: Evaluation | None, names: tuple[str, ...]) -> str:
    """A bar for the accuracy of each class; of the weakest, where there are many."""
    if evaluation is None:
        return missing(NO_LABELS)
    totals = evaluation.confusion.sum(1).tolist()
    seen = [(share, k) for k, share in enumerate(evaluation.per_class) if share is not None]
    note = ""
    if len(seen) > MOST_CLASSES:
        note = f"<p>The {MOST_CLASSES} weakest of {len(seen)} classes.</p>"
        seen = sorted(seen)[:MOST_CLASSES]
    absent = len(names) - sum(share is not None for share in evaluation.per_class)
    if absent:
        note += f"<p>{absent} of {len(names)} classes have no test image.</p>"
    rows = [(escape(names[k]), _bar(share), count(totals[k])) for share, k in seen]
    return note + table(("Class", "Accuracy", "Test images"), rows)


def confusion_section(evaluation: Evaluation | None, names: tuple[str, ...]) -> str:
    """The confusion matrix; the most confused pairs, where there are many classes."""
    if evaluation is None:
        return missing(NO_LABELS)
    pairs = confused_pairs(evaluation.confusion)
    if not pairs:
        return "<p>No test image was taken for another class.</p>"
    if len(names) <= MOST_CLASSES:
        worst, truth, predicted = pairs[0]
        sentence = (
            f"<p>Rows are true classes, columns predictions. Most often, <b>{escape(names[truth])}</b> was taken for "
            f"<b>{escape(names[predicted])}</b>: {count(worst)} times.</p>"
        )
        return sentence + _matrix(evaluation.confusion, names)
    totals = evaluation.confusion.sum(1).tolist()
    rows = [
        (escape(names[truth]), escape(names[predicted]), f"{count(times)} of {count(totals[truth])}")
        for times, truth, predicted in pairs[:MOST_CLASSES]
    ]
    note = f"<p>{count(len(pairs))} pairs of classes were confused at least once; the most frequent:</p>"
    return note + table(("True class", "Taken for", "How often"), rows)


def confused_pairs(confusion: Int64[Tensor, "K K"]) -> list[tuple[int, int, int]]:
    """(times, true class, predicted class) of all errors, most frequent first."""
    cells = confusion.tolist()
    found = [(n, y, p) for y, row in enumerate(cells) for p, n in enumerate(row) if y != p and n]
    return sorted(found, key=lambda pair: (-pair[0], pair[1], pair[2]))


def _bar(share: float) -> str:
    return f'<span class="bar"><span style="width:{100 * share:.1f}%"></span></span> {percent(share)}'


def _matrix(confusion: Int64[Tensor, "K K"], names: tuple[str, ...]) -> str:
    head = "".join(f'<th scope="col"><span>{short(name)}</span></th>' for name in names)
    body = ""
    for truth, row in enumerate(confusion.tolist()):
        cells = "".join(_cell(n, sum(row), truth == predicted) for predicted, n in enumerate(row))
        body += f'<tr><th scope="row">{short(names[truth])}</th>{cells}</tr>'
    content = f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="matrix">{content}</table></div>'


def _cell(n: int, total: int, right: bool) -> str:
    if n == 0:
        return "<td></td>"
    # The offset and the square root keep rare errors visible beside frequent ones.
    shade = 0.2 + 0.8 * (n / total) ** 0.5
    kind = "right" if right else "wrong"
    deep = " deep" if shade > 0.6 else ""
    return f'<td class="{kind}{deep}" style="--shade:{shade:.2f}">{count(n)}</td>'
