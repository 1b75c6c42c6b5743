"""The figures of ``momatch evaluate`` as lines of text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: More classes than this do not fit beside each other in a terminal.
MOST_CLASSES = 20


def tables(figures: Mapping[str, Any]) -> Iterator[str]:
    """All tables of the figures that `evaluate_run` returns."""
    yield f"{figures['run']} on {figures['dataset']}: {figures['n']:,} {figures['images']}"
    yield ""
    yield from _overall(figures)
    yield ""
    names = [f"{k} {name}" if name != str(k) else name for k, name in enumerate(figures["class_names"])]
    yield from _per_class(figures, names)
    yield ""
    yield from (
        _matrix(figures["confusion"], names) if len(names) <= MOST_CLASSES else _pairs(figures["confusion"], names)
    )
    for name, found in figures["outliers"].items():
        yield ""
        yield from _outliers(name, found)
    if figures["outliers"]:
        yield "AUROC: 1 tells all apart, 0.5 is chance. FPR95: outliers that pass where 95 % of the test images do."


def _overall(figures: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        ("accuracy", _percent(figures["accuracy"])),
        ("calibration error (ECE)", _percent(figures["ece"])),
        ("negative log likelihood", _number(figures["nll"])),
        ("compactness: mean distance to the assigned center", _number(figures["compactness"])),
        ("             and to the true class's center", _number(figures["compactness_true"])),
        ("centers' distances against the classes' (1: equal, 0: collapsed)", _number(figures["center_spread"])),
        ("centers' offset from their classes, in spreads of the classes", _number(figures["center_offset"])),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"{name:{width}}  {value:>9}"


def _per_class(figures: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    rows = [
        (name, sum(counts), accuracy)
        for name, counts, accuracy in zip(names, figures["confusion"], figures["per_class"], strict=True)
    ]
    title = "class"
    if len(rows) > MOST_CLASSES:
        title = f"worst {MOST_CLASSES} classes"
        seen = [row for row in rows if row[2] is not None]
        rows = sorted(seen, key=lambda row: row[2])[:MOST_CLASSES]
    width = max(len(title), *(len(name) for name, _, _ in rows))
    yield f"{title:{width}}  {'images':>7}  {'accuracy':>9}"
    for name, count, accuracy in rows:
        yield f"{name:{width}}  {count:>7,}  {_percent(accuracy):>9}"


def _matrix(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Iterator[str]:
    numbers = range(len(names))
    cell = 1 + max(len(str(value)) for value in (*numbers, *(count for row in confusion for count in row)))
    title = "confusion"
    width = max(len(title), *(len(name) for name in names))
    yield f"{title:{width}} {''.join(f'{k:>{cell}}' for k in numbers)}   (rows: true class, columns: predicted class)"
    for name, row in zip(names, confusion, strict=True):
        # Zeros as dots: what is left to see are the mistakes.
        yield f"{name:{width}} {''.join(str(count or '.').rjust(cell) for count in row)}"


def _pairs(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Iterator[str]:
    mistakes = [(count, k, j) for k, row in enumerate(confusion) for j, count in enumerate(row) if count > 0 and j != k]
    worst = sorted(mistakes, key=lambda mistake: (-mistake[0], *mistake[1:]))[:MOST_CLASSES]
    yield "most confused classes (images of the true class that were given the predicted one)"
    width = max((len(names[k]) for _, k, _ in worst), default=0)
    for count, k, j in worst:
        yield f"{count:>7,}  {names[k]:{width}}  as  {names[j]}"
    if not worst:
        yield "      0"


def _outliers(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    heads = {"as trained": found["as_trained"], "refitted": found["refitted"]}
    shown = {head: scores for head, scores in heads.items() if scores is not None}
    title = f"outliers: {name}, {found['n']:,} images"
    width = max(len(title), 24)
    yield f"{title:{width}}" + "".join(f"  {head:>17}" for head in shown)
    yield f"{'score':{width}}" + f"  {'AUROC':>8} {'FPR95':>8}" * len(shown)
    for score in found["as_trained"]:
        values = (scores[score] for scores in shown.values())
        yield f"{score:{width}}" + "".join(
            f"  {value['auroc']:>8.4f} {_percent(value['fpr95']):>8}" for value in values
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
