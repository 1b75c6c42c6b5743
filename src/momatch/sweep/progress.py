"""The progress of a sweep: live tables in a terminal, elsewhere a plain line for each finished run, and the time left."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from momatch.console.wording import format_duration
from momatch.sweep.grid import Grid
from momatch.sweep.jobs import Job, Trial, read_progress
from momatch.sweep.metrics import METRICS, Metric
from momatch.sweep.record import Outcome

#: Seconds between two looks at the runs' own progress: each reads the ends of a few files.
_REFRESH = 1.0


class SweepProgress:
    """Shows what is done, running and failed, the means so far and the time left.

    Args:
        grids: of the sweep.
        jobs: of the sweep, including those already done.
        workers: jobs at a time; None for all.
        console: where to write; None for the standard error.
    """

    def __init__(
        self, grids: Sequence[Grid], jobs: Sequence[Job], *, workers: int | None, console: Console | None = None
    ) -> None:
        self._grids, self._jobs, self._workers = grids, jobs, workers
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._outcomes: dict[Trial, Outcome] = {}
        self._ended: set[str] = set()
        self._running: dict[str, Job] = {}
        self._time_left = TimeLeft()
        self._shown = 0.0
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> "SweepProgress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._tables(), refresh=True)
            self._live.stop()

    def add(self, job: Job, outcomes: Mapping[Trial, Outcome], *, quiet: bool = False) -> None:
        """Show the outcomes of a job that has ended.

        Args:
            job: that has ended.
            outcomes: of its trials.
            quiet: print no line, because the job was done before.
        """
        self._outcomes.update(outcomes)
        self._ended.add(job.name)
        self._running.pop(job.name, None)
        outcome = outcomes[job.trials[0]]
        self._time_left.end(job, None if outcome.result is None else _seconds(outcome))
        if not quiet and self._live is None:
            self._print_line(job, outcome)

    def watch(self, running: Sequence[Job]) -> None:
        """Show the running jobs."""
        self._running = {job.name: job for job in running}
        for job in running:
            self._time_left.begin(job)
        if self._live is not None and time.monotonic() - self._shown >= _REFRESH:
            self._shown = time.monotonic()
            self._live.update(self._tables(), refresh=True)

    def _print_line(self, job: Job, outcome: Outcome) -> None:
        metric = _first_metric(next(grid for grid in self._grids if grid.name == job.trials[0].grid))
        what = f"failed: {outcome.error}" if outcome.result is None else _shown(metric, outcome)
        also = "".join(f" (also {trial.grid}: {trial.row}, {trial.column})" for trial in job.trials[1:])
        # Not console.print: it would break lines where a terminal would.
        print(
            f"{len(self._ended)} of {len(self._jobs)}: {job.trials[0]}{also}: {what}; {self._summary()}",
            file=self._console.file,
            flush=True,
        )

    def _summary(self) -> str:
        failed = len({outcome.run for outcome in self._outcomes.values() if outcome.error is not None})
        waiting = [job for job in self._jobs if job.name not in self._ended and job.name not in self._running]
        left = self._time_left.estimate(waiting, self._running, self._workers) if waiting or self._running else None
        pieces = [
            f"{len(self._running)} running, {len(waiting)} waiting" if waiting or self._running else "none left",
            f"{failed} failed" if failed else "",
            f"about {format_duration(left)} left" if left is not None else "",
        ]
        return ", ".join(piece for piece in pieces if piece)

    def _tables(self) -> Group:
        head = Text(f"{len(self._ended)} of {len(self._jobs)} runs done: {self._summary()}", style="bold")
        # Unfinished grids first: a terminal shows the top of what does not fit.
        grids = sorted(self._grids, key=self._is_finished)
        return Group(head, *(self._table(grid) for grid in grids))

    def _is_finished(self, grid: Grid) -> bool:
        return all(job.name in self._ended for job in self._jobs for trial in job.trials if trial.grid == grid.name)

    def _table(self, grid: Grid) -> Table:
        metric = _first_metric(grid)
        heading = f"{grid.name}: {metric.name}" + (f", {metric.unit}" if metric.unit else "")
        table = Table(title=Text(heading), title_justify="left", box=SIMPLE_HEAD)
        table.add_column("")
        for column in grid.columns:
            table.add_column(Text(column), justify="right")
        cells = {(cell.row, cell.column) for cell in grid.cells}
        for row in grid.rows:
            entries = [
                self._cell(grid, row, column, metric) if (row, column) in cells else Text() for column in grid.columns
            ]
            table.add_row(Text(row), *entries)
        return table

    def _cell(self, grid: Grid, row: str, column: str, metric: Metric) -> Text:
        jobs = {
            trial: job
            for job in self._jobs
            for trial in job.trials
            if (trial.grid, trial.row, trial.column) == (grid.name, row, column)
        }
        outcomes = [self._outcomes[trial] for trial in jobs if trial in self._outcomes]
        values = [value for outcome in outcomes if (value := metric.read(outcome)) is not None]
        failed = sum(outcome.error is not None for outcome in outcomes)
        text = Text(f"{fmean(values):.{metric.decimals}f}" if values else "")
        text.append(f" {len(outcomes) - failed}/{len(jobs)}", style="" if len(outcomes) == len(jobs) else "dim")
        if failed:
            text.append(f" {failed} failed", style="bold red")
        for job in jobs.values():
            if job.name in self._running:
                text.append(f" {read_progress(job.directory)[0] / job.config.steps:.0%}", style="cyan")
        return text


def _first_metric(grid: Grid) -> Metric:
    """The metric shown while the sweep is running: the grid's first one that a single run has, else the accuracy."""
    return next((METRICS[name] for name in grid.metrics if name in METRICS), METRICS["accuracy"])


def _shown(metric: Metric, outcome: Outcome) -> str:
    value = metric.read(outcome)
    number = "-" if value is None else f"{value:.{metric.decimals}f}"
    return f"{metric.name} {number}{' ' + metric.unit if metric.unit else ''} in {format_duration(_seconds(outcome))}"


def _seconds(outcome: Outcome) -> float:
    return float((outcome.result or {}).get("seconds") or 0.0)


class TimeLeft:
    """Estimates how long a sweep will still take.

    The time of a job is its steps times the seconds of a step, known by cell or else on average, plus the mean overhead of
    the jobs so far: start-up, loading and evaluation.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Grid, row and column -> seconds a step.
        self._step_seconds: dict[tuple[str, str, str], float] = {}
        #: Name of a running job -> when it was started, and the steps done by then.
        self._begun: dict[str, tuple[float, int]] = {}
        self._overheads: list[float] = []

    def begin(self, job: Job) -> None:
        """Note that a job is running; only the first call counts."""
        if job.name not in self._begun:
            self._begun[job.name] = self._clock(), read_progress(job.directory)[0]

    def end(self, job: Job, seconds: float | None) -> None:
        """Note that a job has ended.

        Args:
            job: that has ended.
            seconds: that all steps of its run took; None if it failed.
        """
        begun, done = self._begun.pop(job.name, (None, 0))
        if seconds is None:
            return
        self.learn(job.trials[0], job.config.steps, seconds)
        if begun is not None:
            trained = seconds * max(0, job.config.steps - done) / job.config.steps
            self._overheads.append(max(0.0, self._clock() - begun - trained))

    def learn(self, trial: Trial, steps: int, seconds: float) -> None:
        """Note how many seconds a number of steps took."""
        if steps > 0 and seconds > 0:
            self._step_seconds[_cell(trial)] = seconds / steps

    def estimate(self, waiting: Sequence[Job], running: Mapping[str, Job], workers: int | None) -> float | None:
        """Seconds until the last job ends; None while nothing is known.

        Args:
            waiting: jobs that have not been started.
            running: running jobs, by name.
            workers: jobs at a time; None for all.
        """
        for job in running.values():
            self.learn(job.trials[0], *read_progress(job.directory))
        if not self._step_seconds:
            return None
        times = [self._rest(job) for job in running.values()]
        times += [self._total(job, read_progress(job.directory)[0]) for job in waiting]
        lanes = max(1, workers if workers is not None else len(times))
        return max([sum(times) / lanes, *times])

    def _rest(self, job: Job) -> float:
        """Of a running job: its total less the time since its start, but no less than its remaining steps need."""
        now, reached = self._clock(), read_progress(job.directory)[0]
        begun, done = self._begun.get(job.name, (now, reached))
        return max(self._steps(job, reached), self._total(job, done) - (now - begun))

    def _total(self, job: Job, done: int) -> float:
        return self._steps(job, done) + (fmean(self._overheads) if self._overheads else 0.0)

    def _steps(self, job: Job, done: int) -> float:
        seconds = self._step_seconds.get(_cell(job.trials[0]), fmean(self._step_seconds.values()))
        return max(0, job.config.steps - done) * seconds


def _cell(trial: Trial) -> tuple[str, str, str]:
    return trial.grid, trial.row, trial.column
