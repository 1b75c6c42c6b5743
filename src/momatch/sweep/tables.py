"""Tables of a sweep: means over seeds beside the paper's figures, and paired differences to the baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from momatch.storage.durable import replace_files
from momatch.sweep.figures import AUROC, SCORES, STATES, Figure, auroc_figure, by_seed, figures_named, origins
from momatch.sweep.grid import Grid
from momatch.sweep.paper import NOTES, SCALES, PaperFigure, paper_figures, sources
from momatch.sweep.record import Record
from momatch.sweep.scale import scale_text
from momatch.sweep.statistics import paired_difference, summary
from momatch.sweep.table_csv import runs_csv, summary_csv
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

#: In place of a figure that a run does not have: a linear layer has no centers.
NO_FIGURE = "-"


@dataclass(frozen=True)
class _Place:
    """What stands in one place of a table: a figure of one cell of the grid."""

    row: str
    column: str
    figure: Figure


#: A line's name and its places; None where the grid has no such cell.
_Lines = Sequence[tuple[str, Sequence[_Place | None]]]


def write_tables(grid: Grid, record: Record, folder: Path) -> list[Path]:
    """Write all tables of a record to `folder`, which is made as needed.

    Returns:
        NAME.md and NAME.tex with every table, NAME.csv with one line a run, NAME-summary.csv with one a cell and figure.

    Raises:
        ValueError: if the grid asks for a figure that there is not.
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
    """All tables as Markdown, under a heading of the given level; a note that several share stands under the first alone."""
    title = f"{'#' * level} {escape_markdown(grid.title)}"
    blocks = [title, escape_markdown(grid.question)]
    noted: set[str] = set()
    for table in build_tables(grid, record):
        new = tuple(note for note in table.notes if note not in noted)
        noted.update(new)
        blocks.append(markdown(replace(table, notes=new)).rstrip("\n"))
    blocks += [escape_markdown(line) for line in gaps(grid, record)]
    blocks.append("\n".join(f"- {escape_markdown(line)}" for line in made_lines(record)))
    return "\n\n".join(blocks) + "\n"


def latex_page(grid: Grid, record: Record) -> str:
    """All tables as LaTeX, for a document to read in."""
    comments = [f"{grid.title}. Needs \\usepackage{{booktabs}}.", *made_lines(record)]
    blocks = ["\n".join(f"% {' '.join(line.split())}" for line in comments)]
    blocks += [latex(table).rstrip("\n") for table in build_tables(grid, record)]
    blocks += [escape_latex(line) for line in gaps(grid, record)]
    return "\n\n".join(blocks) + "\n"


def build_tables(grid: Grid, record: Record) -> list[Table]:
    """For each figure a table of means and, where the grid has a baseline, one of paired differences.

    "auroc" has a table for each origin of outliers and state of the head, with a line a cell and a column a score.

    Raises:
        ValueError: if the grid asks for a figure that there is not.
    """
    tables: list[Table] = []
    for name in grid.figures:
        if name == AUROC:
            tables += _auroc_tables(grid, record)
            continue
        (figure,) = figures_named(name)
        columns = tuple(grid.columns)
        known = {(cell.row, cell.column) for cell in grid.cells}
        lines = [
            (row, [_Place(row, column, figure) if (row, column) in known else None for column in columns])
            for row in grid.rows
        ]
        paper = paper_figures(grid.name, figure.name)
        tables += _tables(grid, record, figure.heading, columns=columns, lines=lines, paper=paper)
    return tables


def _auroc_tables(grid: Grid, record: Record) -> Iterator[Table]:
    for origin in origins(record.outcomes):
        for state, words in STATES.items():
            figures = [auroc_figure(origin, state, score) for score in SCORES]
            lines = [
                (f"{cell.row}, {cell.column}", [_Place(cell.row, cell.column, figure) for figure in figures])
                for cell in grid.cells
            ]
            title = f"AUROC of each outlier score against {origin}, head {words}, higher is better (0.5 is chance)"
            # A linear layer is not refitted: a line without any figure says nothing.
            lines = [(name, places) for name, places in lines if any(_has_figure(record, place) for place in places)]
            if any(_values(record, place) for _, places in lines for place in places):
                yield from _tables(grid, record, title, columns=tuple(SCORES.values()), lines=lines, paper=())


def _tables(
    grid: Grid, record: Record, title: str, *, columns: tuple[str, ...], lines: _Lines, paper: Sequence[PaperFigure]
) -> Iterator[Table]:
    notes = ["Mean ± standard deviation over seeds (number of runs).", f"Ours: {scale_text(record)}"]
    notes += [f"Paper, {source}: {SCALES[source]}." for source in sources(paper)]
    notes += dict.fromkeys(NOTES[figure.figure] for figure in paper)
    if any(figure.n is None for figure in paper):
        notes.append("(n ?): the paper does not say how many runs.")
    rows = [line for name, places in lines for line in _line_and_paper(record, name, places, columns, paper)]
    ours = {name for name, _ in lines}
    for name in dict.fromkeys(figure.row for figure in paper if figure.row not in ours):
        rows += _paper_lines(f"{name}: ", columns, [figure for figure in paper if figure.row == name])
    if any(entry.text == NO_FIGURE for row in rows for entry in row.entries):
        notes.append(f"{NO_FIGURE}: the head has no such figure.")
    yield Table(title, tuple(notes), "", columns, tuple(rows))
    if grid.baseline is None:
        return
    yield Table(
        f"Difference to {', '.join(grid.baseline)}: {title}",
        (
            "Mean of the differences seed by seed [95 % t interval] (pairs); bold where the interval leaves out 0.",
            "No interval: one pair, or all differences alike.",
        ),
        "",
        columns,
        tuple(
            Line(name, tuple(_difference(record, place, grid.baseline) for place in places)) for name, places in lines
        ),
    )


def _line_and_paper(
    record: Record, name: str, places: Sequence[_Place | None], columns: tuple[str, ...], paper: Sequence[PaperFigure]
) -> Iterator[Line]:
    yield Line(name, tuple(Entry(_cell_text(record, place)) for place in places))
    yield from _paper_lines("", columns, [figure for figure in paper if figure.row == name])


def _paper_lines(prefix: str, columns: tuple[str, ...], paper: Sequence[PaperFigure]) -> Iterator[Line]:
    for source in sources(paper):
        texts = {figure.column: figure.text() for figure in paper if figure.source == source}
        yield Line(f"{prefix}paper, {source}", tuple(Entry(texts.get(column, "")) for column in columns), is_paper=True)


def _cell_text(record: Record, place: _Place | None) -> str:
    if place is None:
        return ""
    found = summary(list(_values(record, place).values()))
    if found is not None:
        return summary_text(found, place.figure, len(record.seeds))
    errors = [
        outcome.error for outcome in record.outcomes if (outcome.row, outcome.column) == (place.row, place.column)
    ]
    if not errors:
        return "not run"
    return "failed" if all(error is not None for error in errors) else NO_FIGURE


def _difference(record: Record, place: _Place | None, baseline: tuple[str, str]) -> Entry:
    if place is None:
        return Entry("")
    if (place.row, place.column) == baseline:
        return Entry("baseline")
    if _cell_text(record, place) == NO_FIGURE:
        return Entry(NO_FIGURE)
    found = paired_difference(_values(record, place), by_seed(record, *baseline, place.figure))
    if found is None:
        return Entry("no pair")
    return Entry(estimate_text(found, place.figure.decimals), is_strong=found.is_above(0.0) or found.is_below(0.0))


def _has_figure(record: Record, place: _Place) -> bool:
    """Whether the cell's runs have the figure, or may have it once they are there."""
    return _cell_text(record, place) != NO_FIGURE


def _values(record: Record, place: _Place) -> dict[int, float]:
    return by_seed(record, place.row, place.column, place.figure)


def gaps(grid: Grid, record: Record) -> list[str]:
    """What is not there, each in one sentence: runs that failed, cells and seeds that were not run."""
    failed = [outcome for outcome in record.outcomes if outcome.error is not None]
    lines = [f"Failed: {outcome.row}, {outcome.column}, seed {outcome.seed}: {outcome.error}" for outcome in failed]
    there = {(outcome.row, outcome.column, outcome.seed) for outcome in record.outcomes}
    for cell in grid.cells:
        missing = [str(seed) for seed in record.seeds if (cell.row, cell.column, seed) not in there]
        if missing:
            lines.append(f"Not run: {cell.row}, {cell.column}, seed {', '.join(missing)}.")
    if AUROC in grid.figures and not origins(record.outcomes):
        lines.append("No run was evaluated against outliers.")
    return lines


def made_lines(record: Record) -> list[str]:
    """How a record was made: preset, command, commit, date, hardware, versions."""
    made = record.made
    overrides = ", ".join(f"{key} = {value!r}" for key, value in record.overrides.items())
    lines = [f"Preset {record.preset}" + (f" with {overrides}" if overrides else "")]
    lines += [f"{key}: {made[key]}" for key in ("command", "date") if made.get(key) is not None]
    rest = [f"{key} {value}" for key, value in made.items() if key not in ("command", "date") and value is not None]
    return lines + ([" · ".join(rest)] if rest else [])
