"""From the figures of benchmarks/outliers.py to its tables and its verdict.

Results are (model, by whom, detector) -> (outliers, known classes) -> seed -> (AUROC, FPR95).
"""

from momatch.sweep.statistics import paired_difference, summary

OURS = ("AAGMM 8-D, order 1", "momatch")
#: What the paired differences are taken of, named before anything was measured.
COMPARED = (
    "refitted: nearest Mahalanobis",
    "refitted: density",
    "as trained: nearest Mahalanobis",
    "as trained: density",
)
LINEAR = "linear, all features"
FIGURES = {"AUROC": 0, "FPR95": 1}


def table(results):
    """One line a detector: mean ± standard deviation for each origin of outliers."""
    columns = list(dict.fromkeys(column for row in results.values() for column in row))
    lines = []
    for (model, by, detector), row in results.items():
        line = {"model": model, "by": by, "detector": detector}
        for figure, place in FIGURES.items():
            for origin, kind in columns:
                given = row.get((origin, kind), {})
                line[f"{figure}: {origin}, {kind}"] = _spread([pair[place] for pair in given.values()])
        lines.append(line)
    return lines


def differences(results):
    """Markdown: AUROC of momatch's scores minus the rivals', seed by seed, with 95 % intervals."""
    lines = ["| outliers | momatch | rival | its AUROC | difference in AUROC |", "|" + "---|" * 5]
    for column in _columns(results):
        for detector in COMPARED:
            ours = (*OURS, detector)
            for role, rival in _rivals(results, column).items():
                found = _difference(results, column, ours, rival)
                cells = (_name(column), f"{detector} {_mean(results, column, ours)}", f"{role}: {_row(rival)}")
                lines.append(f"| {' | '.join(cells)} | {_mean(results, column, rival)} | {_interval(found)} |")
    return "\n".join(lines)


def verdict(results):
    """Who has the highest mean AUROC against each kind of outliers, and whether the seeds tell it from momatch's best."""
    lines = ["Verdict (AUROC; the best of each side is picked afterwards, and there are more rivals to pick from):", ""]
    for column in _columns(results):
        ours = _best(results, column, lambda row: row[1] == "momatch" and row[0].startswith("AAGMM"))
        rival = _best(results, column, _is_rival)
        found = _difference(results, column, ours, rival)
        if found.is_above(0.0):
            end = "momatch wins"
        elif found.is_below(0.0):
            end = "the rival wins"
        else:
            end = "no winner: the interval holds 0"
        primary = (*OURS, COMPARED[0])
        apart = _difference(results, column, primary, rival)
        lines.append(
            f"- {_name(column)}: best of momatch's mixtures is {_row(ours)}, {_mean(results, column, ours)}; best rival is "
            f"{_row(rival)}, {_mean(results, column, rival)}; difference {_interval(found)}: **{end}**. What `predict` reports "
            f"by default ({_row(primary)}): {_mean(results, column, primary)}, minus the best rival {_interval(apart)}."
        )
    return "\n".join(lines)


def _rivals(results, column):
    """Role -> row: the linear layer's own scores, and the best of pytorch-ood's detectors, picked by their mean."""

    def best_on(model):
        return _best(results, column, lambda row: row[0] == model and row[1] == "pytorch-ood")

    return {
        "energy": (LINEAR, "linear layer", "energy"),
        "max softmax": (LINEAR, "linear layer", "max softmax"),
        "best of pytorch-ood on the linear model": best_on(LINEAR),
        "best of pytorch-ood on the same AAGMM": best_on(OURS[0]),
    }


def _is_rival(row):
    return row[1] != "momatch"


def _best(results, column, is_meant):
    rows = [row for row in results if is_meant(row) and column in results[row]]
    return max(rows, key=lambda row: summary(list(_aurocs(results, column, row).values())).mean)


def _columns(results):
    return list(dict.fromkeys(column for row in results.values() for column in row))


def _aurocs(results, column, row):
    return {seed: pair[0] for seed, pair in results[row][column].items()}


def _difference(results, column, row, other):
    return paired_difference(_aurocs(results, column, row), _aurocs(results, column, other))


def _mean(results, column, row):
    return _spread(list(_aurocs(results, column, row).values()))


def _spread(values):
    found = summary(values)
    if found is None:
        return ""
    return f"{found.mean:.3f}" + ("" if found.std is None else f" ± {found.std:.3f}")


def _interval(found):
    if found.low is None:
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _name(column):
    origin, kind = column
    return f"{origin} ({kind})"


def _row(row):
    model, by, detector = row
    return f"pytorch-ood's {detector} on {model}" if by == "pytorch-ood" else f"{detector} of {model}"
