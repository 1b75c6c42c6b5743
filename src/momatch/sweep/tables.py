"""Tables of a sweep: means over seeds beside published numbers, and paired differences to the baseline.

As Markdown and LaTeX for people, as CSV with all digits for programs: one line a run, or one line a cell and metric.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from momatch.config import TrainConfig
from momatch.storage.durable import replace_files
from momatch.sweep.grid import Cell, Grid, Published
from momatch.sweep.metrics import AUROC, SCORES, STATES, Metric, auroc_metric, metrics_named, origins
from momatch.sweep.record import Outcome, Record
from momatch.sweep.statistics import paired_difference, summary
from momatch.sweep.table_text import (
    Entry,
    Line,
    Table,
    escape_latex,
    escape_markdown,
    estimate_text,
    latex,
    markdown,
    summary_text,
)

#: In place of a metric that a run does not have: a linear layer has no centers.
NO_VALUE = "-"


@dataclass(frozen=True)
class _Value:
    """What an entry of a table shows: a metric of one cell of the grid."""

    row: str
    column: str
    metric: Metric

    def by_seed(self, record: Record) -> dict[int, float]:
        return self.metric.by_seed(record, self.row, self.column)

    def text(self, record: Record) -> str:
        found = summary(list(self.by_seed(record).values()))
        if found is not None:
            return summary_text(found, self.metric, len(record.seeds))
        errors = [
            outcome.error for outcome in record.outcomes if (outcome.row, outcome.column) == (self.row, self.column)
        ]
        if not errors:
            return "not run"
        return "failed" if all(error is not None for error in errors) else NO_VALUE

    def difference(self, record: Record, baseline: tuple[str, str]) -> Entry:
        if (self.row, self.column) == baseline:
            return Entry("baseline")
        if self.text(record) == NO_VALUE:
            return Entry(NO_VALUE)
        found = paired_difference(self.by_seed(record), self.metric.by_seed(record, *baseline))
        if found is None:
            return Entry("no pair")
        return Entry(estimate_text(found, self.metric.decimals), is_strong=found.is_above(0.0) or found.is_below(0.0))


#: A line's name and its entries; None where the grid has no such cell.
_Lines = Sequence[tuple[str, Sequence[_Value | None]]]


def write_tables(grid: Grid, record: Record, folder: Path) -> list[Path]:
    """Write all tables of a record to `folder`, which is created as needed.

    Returns:
        NAME.md and NAME.tex with every table, NAME.csv with one line a run, NAME-summary.csv with one a cell and metric.

    Raises:
        ValueError: if the grid asks for an unknown metric.
        OSError: if a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        ".md": markdown_page(grid, record),
        ".tex": latex_page(grid, record),
        ".csv": runs_csv(grid, record),
        "-summary.csv": summary_csv(grid, record),
    }
    contents = {folder / f"{grid.name}{ending}": text.encode() for ending, text in texts.items()}
    replace_files(contents)
    return list(contents)


def markdown_page(grid: Grid, record: Record, *, level: int = 1) -> str:
    """All tables as Markdown, under a heading of the given level; a note shared by several tables stands under the first."""
    blocks = [f"{'#' * level} {escape_markdown(grid.title)}", escape_markdown(grid.question)]
    noted: set[str] = set()
    for table in build_tables(grid, record):
        new = tuple(note for note in table.notes if note not in noted)
        noted.update(new)
        blocks.append(markdown(replace(table, notes=new)).rstrip("\n"))
    blocks += [escape_markdown(line) for line in gaps(grid, record)]
    blocks.append("\n".join(f"- {escape_markdown(line)}" for line in environment_lines(record)))
    return "\n\n".join(blocks) + "\n"


def latex_page(grid: Grid, record: Record) -> str:
    r"""All tables as LaTeX, for a document to \input."""
    comments = [f"{grid.title}. Needs \\usepackage{{booktabs}}.", *environment_lines(record)]
    blocks = ["\n".join(f"% {' '.join(line.split())}" for line in comments)]
    blocks += [latex(table).rstrip("\n") for table in build_tables(grid, record)]
    blocks += [escape_latex(line) for line in gaps(grid, record)]
    return "\n\n".join(blocks) + "\n"


def build_tables(grid: Grid, record: Record) -> list[Table]:
    """For each metric a table of means and, if the grid has a baseline, one of paired differences.

    "auroc" has a table for each origin of outliers and state of the head, with a line a cell and a column a score.

    Raises:
        ValueError: if the grid asks for an unknown metric.
    """
    tables: list[Table] = []
    known = {(cell.row, cell.column) for cell in grid.cells}
    for name in grid.metrics:
        if name == AUROC:
            tables += _auroc_tables(grid, record)
            continue
        (metric,) = metrics_named(name)
        lines = [
            (row, [_Value(row, column, metric) if (row, column) in known else None for column in grid.columns])
            for row in grid.rows
        ]
        published = grid.published_for(name)
        tables += _tables(grid, record, metric.heading, columns=grid.columns, lines=lines, published=published)
    return tables


def _auroc_tables(grid: Grid, record: Record) -> Iterator[Table]:
    for origin in origins(record.outcomes):
        for state, words in STATES.items():
            metrics = [auroc_metric(origin, state, score) for score in SCORES]
            lines = [
                (f"{cell.row}, {cell.column}", [_Value(cell.row, cell.column, metric) for metric in metrics])
                for cell in grid.cells
            ]
            title = f"AUROC of each outlier score against {origin}, head {words}, higher is better (0.5 is chance)"
            # A linear layer is not refitted: leave out lines without any value.
            lines = [line for line in lines if any(value.text(record) != NO_VALUE for value in line[1])]
            if any(value.by_seed(record) for _, values in lines for value in values):
                yield from _tables(grid, record, title, columns=tuple(SCORES.values()), lines=lines)


def _tables(
    grid: Grid,
    record: Record,
    title: str,
    *,
    columns: tuple[str, ...],
    lines: _Lines,
    published: Sequence[Published] = (),
) -> Iterator[Table]:
    rows = []
    for name, values in lines:
        rows.append(Line(name, tuple(Entry(value.text(record) if value else "") for value in values)))
        rows += _published_lines("", columns, [number for number in published if number.row == name])
    ours = {name for name, _ in lines}
    for name in dict.fromkeys(number.row for number in published if number.row not in ours):
        rows += _published_lines(f"{name}: ", columns, [number for number in published if number.row == name])
    notes = ["Mean ± standard deviation over seeds (number of runs).", f"Ours: {setup_text(record)}"]
    notes += dict.fromkeys(f"{number.source}: {number.setup}." for number in published if number.setup)
    notes += dict.fromkeys(number.note for number in published if number.note)
    if any(number.runs is None for number in published):
        notes.append("(n ?): the number of runs was not published.")
    if any(entry.text == NO_VALUE for row in rows for entry in row.entries):
        notes.append(f"{NO_VALUE}: the head or the algorithm does not have this metric.")
    yield Table(title, tuple(notes), "", columns, tuple(rows))
    baseline = grid.baseline
    if baseline is None:
        return
    yield Table(
        f"Difference to {', '.join(baseline)}: {title}",
        (
            "Mean of the per-seed differences [95 % t interval] (pairs); bold if the interval excludes 0.",
            "No interval: only one pair, or all differences are equal.",
        ),
        "",
        columns,
        tuple(
            Line(name, tuple(value.difference(record, baseline) if value else Entry("") for value in values))
            for name, values in lines
        ),
    )


def _published_lines(prefix: str, columns: tuple[str, ...], published: Sequence[Published]) -> Iterator[Line]:
    for source in dict.fromkeys(number.source for number in published):
        texts = {number.column: number.text() for number in published if number.source == source}
        entries = tuple(Entry(texts.get(column, "")) for column in columns)
        yield Line(f"{prefix}{source}", entries, is_published=True)


def gaps(grid: Grid, record: Record) -> list[str]:
    """What is missing, each in one sentence: failed runs, cells and seeds that were not run."""
    failed = [outcome for outcome in record.outcomes if outcome.error is not None]
    lines = [f"Failed: {outcome.row}, {outcome.column}, seed {outcome.seed}: {outcome.error}" for outcome in failed]
    there = {(outcome.row, outcome.column, outcome.seed) for outcome in record.outcomes}
    for cell in grid.cells:
        missing = [str(seed) for seed in record.seeds if (cell.row, cell.column, seed) not in there]
        if missing:
            lines.append(f"Not run: {cell.row}, {cell.column}, seed {', '.join(missing)}.")
    if AUROC in grid.metrics and not origins(record.outcomes):
        lines.append("No run was evaluated on outliers.")
    return lines


def environment_lines(record: Record) -> list[str]:
    """How a record was made: preset, command, date; then commit, hardware and versions."""
    facts = record.environment
    overrides = ", ".join(f"{key} = {value!r}" for key, value in record.overrides.items())
    lines = [f"Preset {record.preset}" + (f" with {overrides}" if overrides else "")]
    lines += [f"{key}: {facts[key]}" for key in ("command", "date") if facts.get(key) is not None]
    rest = [f"{key} {value}" for key, value in facts.items() if key not in ("command", "date") and value is not None]
    return lines + ([" · ".join(rest)] if rest else [])


def setup_text(record: Record) -> str:
    """Dataset, labels, network, steps, batch sizes and seeds of a record's runs, as one sentence."""
    done = [outcome for outcome in record.outcomes if outcome.result is not None]
    if not done:
        return "No run is finished."

    def results(key: str) -> str:
        return _distinct(done, lambda outcome: (outcome.result or {}).get(key))

    held_out = _distinct(done, lambda outcome: _setting(outcome, "held_out_classes") or None)
    seeds = sorted({outcome.seed for outcome in done})
    parts = [
        _distinct(done, lambda outcome: _setting(outcome, "dataset")),
        *([f"classes {held_out} held out of training"] if held_out != _UNKNOWN else []),
        f"{results('labeled_images')} labels",
        f"pool of {results('unlabeled_images')} images",
        f"{results('test_images')} test images",
        _distinct(done, lambda outcome: _setting(outcome, "backbone")),
        f"{results('steps')} steps",
        f"batches of {_distinct(done, _batch_sizes)}",
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
    ]
    return "; ".join(parts) + "."


_UNKNOWN = "unknown"


def _distinct(outcomes: Iterable[Outcome], read: Callable[[Outcome], Any]) -> str:
    """The distinct values as text: "digits", "3 or 20", "10 to 50"."""
    values = sorted({value for outcome in outcomes if (value := read(outcome)) is not None})
    texts = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    if len(texts) > 3:
        return f"{texts[0]} to {texts[-1]}"
    return " or ".join(texts) if texts else _UNKNOWN


def _setting(outcome: Outcome, key: str) -> Any:
    """Defaults are not recorded."""
    return outcome.settings.get(key, getattr(TrainConfig, key, None))


def _batch_sizes(outcome: Outcome) -> str:
    return f"{_setting(outcome, 'labeled_batch_size')} + {_setting(outcome, 'unlabeled_batch_size')}"


def runs_csv(grid: Grid, record: Record) -> str:
    """One line a run, with every metric of the grid; empty where the run does not have it."""
    metrics = [metric for name in grid.metrics for metric in metrics_named(name, record.outcomes)]
    lines: list[list[Any]] = [["preset", "row", "column", "seed", "run", "error", *(metric.name for metric in metrics)]]
    for outcome in record.outcomes:
        values = [metric.read(outcome) for metric in metrics]
        lines.append([record.preset, outcome.row, outcome.column, outcome.seed, outcome.run, outcome.error, *values])
    return _csv(lines)


def summary_csv(grid: Grid, record: Record) -> str:
    """One line a cell and metric, and another for each further published number of the cell.

    `n` is the number of runs with the metric, `requested` that of the seeds; `difference` is to the grid's baseline. Published
    rows that the grid does not have come last. `published_is_bound`: the true number is larger than `published_mean`.
    """
    ours = ["preset", "metric", "row", "column", "mean", "std", "n", "requested", "setup"]
    pairs = ["difference", "low95", "high95", "pairs"]
    published = [f"published_{key}" for key in ("source", "mean", "std", "runs", "unit", "is_bound", "setup")]
    lines: list[list[Any]] = [[*ours, *pairs, *published]]
    cells = {(cell.row, cell.column): cell for cell in grid.cells}
    for metric in (metric for name in grid.metrics for metric in metrics_named(name, record.outcomes)):
        numbers = grid.published_for(metric.name)
        only = dict.fromkeys((number.row, number.column) for number in numbers)
        for row, column in [*cells, *(place for place in only if place not in cells)]:
            start = [
                record.preset,
                metric.name,
                row,
                column,
                *_statistics(grid, record, cells.get((row, column)), metric),
            ]
            beside = [number for number in numbers if (number.row, number.column) == (row, column)]
            lines += [[*start, *_published_fields(number)] for number in beside] or [[*start, *[None] * len(published)]]
    return _csv(lines)


def _statistics(grid: Grid, record: Record, cell: Cell | None, metric: Metric) -> list[Any]:
    if cell is None:
        return [None, None, 0, 0, *[None] * 5]
    values = metric.by_seed(record, cell.row, cell.column)
    found = summary(list(values.values()))
    line: list[Any] = [found.mean, found.std, found.n] if found else [None, None, 0]
    line += [len(record.seeds), setup_text(record)]
    pair = None
    if grid.baseline is not None and (cell.row, cell.column) != grid.baseline:
        pair = paired_difference(values, metric.by_seed(record, *grid.baseline))
    return line + ([pair.mean, pair.low, pair.high, pair.n] if pair else [None] * 4)


def _published_fields(number: Published) -> list[Any]:
    return [number.source, number.mean, number.std, number.runs, number.unit, str(number.is_bound), number.setup]


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
