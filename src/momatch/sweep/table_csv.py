"""Tables of a sweep for other programs: one line a run, or one line a cell and figure. Numbers have all their digits."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from momatch.sweep.figures import Figure, by_seed, figures_named
from momatch.sweep.grid import Cell, Grid
from momatch.sweep.paper import SCALES, PaperFigure, paper_figures
from momatch.sweep.record import Record
from momatch.sweep.scale import scale_text
from momatch.sweep.statistics import paired_difference, summary

_Value = str | int | float | None


def runs_csv(grid: Grid, record: Record) -> str:
    """One line a run, with every figure of the grid; an empty place where the run has no such figure."""
    figures = _figures(grid, record)
    lines: list[list[_Value]] = [
        ["preset", "row", "column", "seed", "run", "error", *(figure.name for figure in figures)]
    ]
    for outcome in record.outcomes:
        values = [figure.read(outcome) for figure in figures]
        lines.append([record.preset, outcome.row, outcome.column, outcome.seed, outcome.run, outcome.error, *values])
    return _text(lines)


def summary_csv(grid: Grid, record: Record) -> str:
    """One line a cell and figure, and one more for each further figure of the paper.

    `n` are the runs that have the figure, `asked` those that were to be run; `difference` is to the grid's baseline. Methods
    that the paper alone has come last, with nothing of ours. `paper_is_bound`: the true figure is more than `paper_mean`.
    """
    ours = ["preset", "figure", "row", "column", "mean", "std", "n", "asked", "scale"]
    pairs = ["difference", "low95", "high95", "pairs"]
    paper = ["paper_source", "paper_mean", "paper_std", "paper_n", "paper_unit", "paper_is_bound", "paper_scale"]
    lines: list[Sequence[_Value]] = [[*ours, *pairs, *paper]]
    for figure in _figures(grid, record):
        known = paper_figures(grid.name, figure.name)
        for cell in grid.cells:
            start = [record.preset, figure.name, cell.row, cell.column, *_statistics(grid, record, cell, figure)]
            beside = [entry for entry in known if (entry.row, entry.column) == (cell.row, cell.column)]
            lines += [[*start, *ending] for ending in _paper(beside)]
        cells = {(cell.row, cell.column) for cell in grid.cells}
        for entry in known:
            if (entry.row, entry.column) not in cells:
                nothing: list[_Value] = [None, None, 0, 0, *[None] * 5]
                lines += [
                    [record.preset, figure.name, entry.row, entry.column, *nothing, *end] for end in _paper([entry])
                ]
    return _text(lines)


def _figures(grid: Grid, record: Record) -> list[Figure]:
    return [figure for name in grid.figures for figure in figures_named(name, record.outcomes)]


def _statistics(grid: Grid, record: Record, cell: Cell, figure: Figure) -> list[_Value]:
    values = by_seed(record, cell.row, cell.column, figure)
    found = summary(list(values.values()))
    line: list[_Value] = [found.mean, found.std, found.n] if found else [None, None, 0]
    line += [len(record.seeds), scale_text(record)]
    pair = None
    if grid.baseline is not None and (cell.row, cell.column) != grid.baseline:
        pair = paired_difference(values, by_seed(record, *grid.baseline, figure))
    return line + ([pair.mean, pair.low, pair.high, pair.n] if pair else [None] * 4)


def _paper(beside: Sequence[PaperFigure]) -> Iterator[list[_Value]]:
    for entry in beside:
        yield [entry.source, entry.mean, entry.std, entry.n, entry.unit, str(entry.is_bound), SCALES[entry.source]]
    if not beside:
        yield [None] * 7


def _text(lines: Iterable[Sequence[_Value]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
