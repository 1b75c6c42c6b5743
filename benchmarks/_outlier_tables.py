"""From the figures of benchmarks/outliers.py to its tables and its verdict.

Results are (model, by whom, detector) -> (dataset, outliers) -> seed -> (AUROC, FPR95).
"""

from _record import interval, spread
from momatch.sweep.statistics import paired_difference

#: Rivals that were named before anything was measured: the beginning of their names.
NAMED = ("MaxSoftmax", "EnergyBased", "Mahalanobis", "RMD", "KNN (k = 50)", "ViM", "GEN", "ASH")
FIGURES = {"AUROC": 0, "FPR95": 1}


def table(results):
    """One line a detector: mean ± standard deviation over seeds in each column, and the mean over the columns."""
    lines = []
    for row, of_row in sorted(results.items(), key=lambda item: -_mean_over_columns(results, item[0], item[1])):
        model, by, detector = row
        whole = set(of_row) == set(_columns(results))
        line = {"model": model, "by": by, "detector": detector}
        for figure, place in FIGURES.items():
            mean = sum(_mean(of_row[column], place) for column in of_row) / len(of_row)
            line[f"{figure}: mean of columns"] = f"{mean:.3f}" if whole else f"({mean:.3f} of {len(of_row)})"
        for figure, place in FIGURES.items():
            for column in _columns(results):
                line[f"{figure}: {_name(column)}"] = _spread(of_row.get(column, {}), place)
        lines.append(line)
    return lines


def verdict(results, ours):
    """Ours against the rivals that were named, on the mean of the columns, and against the best in hindsight in each column."""
    columns = _columns(results)
    own = sum(_mean(results[ours][column]) for column in columns) / len(columns)
    lines = [f"The judge's mean AUROC over the {len(columns)} columns is **{own:.3f}**.", ""]
    named = [row for row in results if row[1] == "pytorch-ood" and row[2].startswith(NAMED)]
    ahead = []
    for row in named:
        shared = [column for column in columns if column in results[row]]
        apart = sum(_mean(results[ours][column]) - _mean(results[row][column]) for column in shared) / len(shared)
        ahead.append(
            (apart, f"{_row(row)} {apart:+.3f}" + ("" if len(shared) == len(columns) else f" (in {len(shared)})"))
        )
    below = [text for apart, text in sorted(ahead) if apart <= 0]
    lines.append(
        f"Named beforehand, {len(named)} rows: the judge is ahead of {len(named) - len(below)} on the mean of their columns. "
        f"Closest: {'; '.join(text for _, text in sorted(ahead)[:5])}."
        + (f" Behind: {'; '.join(below)}." if below else "")
    )
    lines += ["", "Against the best in hindsight of all rivals in each column:", ""]
    for column in columns:
        rival = _best(results, column)
        found = paired_difference(_aurocs(results, column, ours), _aurocs(results, column, rival))
        lines.append(
            f"- {_name(column)}: judge {_spread(results[ours][column])}; best {_row(rival)} "
            f"{_spread(results[rival][column])}; difference {interval(found, 3)}"
        )
    return "\n".join(lines)


def differences(results, ours):
    """Markdown: AUROC of the judge minus that of each named rival, seed by seed, with 95 % intervals."""
    columns = _columns(results)
    lines = [f"| rival | {' | '.join(_name(column) for column in columns)} |", "|" + "---|" * (len(columns) + 1)]
    for row in results:
        if row[1] == "pytorch-ood" and row[2].startswith(NAMED):
            cells = [
                interval(paired_difference(_aurocs(results, column, ours), _aurocs(results, column, row)), 3)
                if column in results[row]
                else ""
                for column in columns
            ]
            lines.append(f"| {_row(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _best(results, column):
    rows = [row for row in results if row[1] == "pytorch-ood" and column in results[row]]
    return max(rows, key=lambda row: _mean(results[row][column]))


def _mean_over_columns(results, row, of_row):
    # Detectors that do not have all columns come last.
    return sum(map(_mean, of_row.values())) / len(of_row) - (set(of_row) != set(_columns(results)))


def _columns(results):
    return list(dict.fromkeys(column for of_row in results.values() for column in of_row))


def _aurocs(results, column, row):
    return {seed: pair[0] for seed, pair in results[row][column].items()}


def _mean(of_column, place=0):
    return sum(pair[place] for pair in of_column.values()) / len(of_column)


def _spread(of_column, place=0):
    return spread([pair[place] for pair in of_column.values()], 3)


def _name(column):
    return ", ".join(column)


def _row(row):
    return f"{row[2]} on {row[0]}"
