"""How a sweep is going: tables that fill in a terminal, a plain line for each finished run elsewhere."""

import sys
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from momatch.sweep.figures import FIGURES, Figure
from momatch.sweep.grid import Grid
from momatch.sweep.jobs import Job, Place
from momatch.sweep.pace import Pace, duration
from momatch.sweep.record import Outcome
from momatch.sweep.run_state import progress

#: Seconds between two looks at the runs' own progress: each reads the ends of a few files.
_REFRESH = 1.0


class Board:
    """Shows what is done, under way and failed, the means so far and the time left.

    Args:
        grids: of the sweep.
        jobs: of the sweep, done ones included.
        workers: jobs at a time; None for all of them.
        console: where to write; None for the standard error.
    """

    def __init__(
        self, grids: Sequence[Grid], jobs: Sequence[Job], *, workers: int | None, console: Console | None = None
    ) -> None:
        self._grids, self._jobs, self._workers = grids, jobs, workers
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._outcomes: dict[Place, Outcome] = {}
        self._ended: set[str] = set()
        self._running: dict[str, Job] = {}
        self._pace = Pace()
        self._shown = 0.0
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> "Board":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._tables(), refresh=True)
            self._live.stop()

    def found(self, job: Job, outcomes: Mapping[Place, Outcome], *, quietly: bool = False) -> None:
        """Take in what came of a job.

        Args:
            job: that is through.
            outcomes: of its places.
            quietly: without a line of its own: it was there before.
        """
        self._outcomes.update(outcomes)
        self._ended.add(job.name)
        self._running.pop(job.name, None)
        outcome = outcomes[job.places[0]]
        seconds = None if outcome.result is None else float(outcome.result.get("seconds") or 0.0)
        self._pace.end(job, seconds)
        if not quietly and self._live is None:
            self._say(job, outcome)

    def watch(self, running: Sequence[Job]) -> None:
        """Show the jobs under way."""
        self._running = {job.name: job for job in running}
        for job in running:
            self._pace.begin(job)
        if self._live is not None and time.monotonic() - self._shown >= _REFRESH:
            self._shown = time.monotonic()
            self._live.update(self._tables(), refresh=True)

    def _say(self, job: Job, outcome: Outcome) -> None:
        figure = _first_figure(next(grid for grid in self._grids if grid.name == job.places[0].grid))
        what = f"failed: {outcome.error}" if outcome.result is None else _shown(figure, outcome)
        also = "".join(f" (also {place.grid}: {place.row}, {place.column})" for place in job.places[1:])
        # Not console.print: it would break lines where a terminal would.
        print(
            f"{len(self._ended)} of {len(self._jobs)}: {job.places[0]}{also}: {what}; {self._summary()}",
            file=self._console.file,
            flush=True,
        )

    def _summary(self) -> str:
        failed = len({outcome.run for outcome in self._outcomes.values() if outcome.error is not None})
        waiting = [job for job in self._jobs if job.name not in self._ended and job.name not in self._running]
        left = self._pace.left(waiting, self._running, self._workers) if waiting or self._running else None
        pieces = [
            f"{len(self._running)} running, {len(waiting)} waiting" if waiting or self._running else "none left",
            f"{failed} failed" if failed else "",
            f"about {duration(left)} left" if left is not None else "",
        ]
        return ", ".join(piece for piece in pieces if piece)

    def _tables(self) -> Group:
        head = Text(f"{len(self._ended)} of {len(self._jobs)} runs through: {self._summary()}", style="bold")
        # What is still open comes first: a terminal shows the top of what does not fit.
        grids = sorted(self._grids, key=lambda grid: not self._open_in(grid))
        return Group(head, *(self._table(grid) for grid in grids))

    def _open_in(self, grid: Grid) -> bool:
        return any(job.name not in self._ended for job in self._jobs for place in job.places if place.grid == grid.name)

    def _table(self, grid: Grid) -> Table:
        figure = _first_figure(grid)
        heading = f"{grid.name}: {figure.name}" + (f", {figure.unit}" if figure.unit else "")
        table = Table(title=Text(heading), title_justify="left", box=SIMPLE_HEAD)
        table.add_column("")
        for column in grid.columns:
            table.add_column(Text(column), justify="right")
        cells = {(cell.row, cell.column) for cell in grid.cells}
        for row in grid.rows:
            entries = [
                self._cell(grid, row, column, figure) if (row, column) in cells else Text() for column in grid.columns
            ]
            table.add_row(Text(row), *entries)
        return table

    def _cell(self, grid: Grid, row: str, column: str, figure: Figure) -> Text:
        jobs = {
            place: job
            for job in self._jobs
            for place in job.places
            if (place.grid, place.row, place.column) == (grid.name, row, column)
        }
        outcomes = [self._outcomes[place] for place in jobs if place in self._outcomes]
        values = [value for outcome in outcomes if (value := figure.read(outcome)) is not None]
        failed = sum(outcome.error is not None for outcome in outcomes)
        text = Text(f"{fmean(values):.{figure.decimals}f}" if values else "")
        text.append(f" {len(outcomes) - failed}/{len(jobs)}", style="" if len(outcomes) == len(jobs) else "dim")
        if failed:
            text.append(f" {failed} failed", style="bold red")
        under_way = [job for job in jobs.values() if job.name in self._running]
        for job in under_way:
            text.append(f" {progress(job.directory)[0] / job.config.steps:.0%}", style="cyan")
        return text


def _first_figure(grid: Grid) -> Figure:
    """The figure that is shown while the sweep goes on: the grid's first one that a result holds, else the accuracy."""
    return next((FIGURES[name] for name in grid.figures if name in FIGURES), FIGURES["accuracy"])


def _shown(figure: Figure, outcome: Outcome) -> str:
    value = figure.read(outcome)
    number = "-" if value is None else f"{value:.{figure.decimals}f}"
    seconds = float((outcome.result or {}).get("seconds") or 0.0)
    return f"{figure.name} {number}{' ' + figure.unit if figure.unit else ''} in {duration(seconds)}"
