"""A sweep: run what the grids need, keep a record of each grid on disk after every run, write the tables at the end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from momatch.config import RUNTIME_KEYS
from momatch.data.catalog import KNOWN
from momatch.data.locate import data_root, is_at_hand, obtain
from momatch.data.report import LoadOptions
from momatch.sweep.grid import Grid
from momatch.sweep.jobs import Job, Trial, read_result, run_state
from momatch.sweep.launch import Launcher, run_jobs
from momatch.sweep.metrics import HELD_OUT
from momatch.sweep.progress import SweepProgress
from momatch.sweep.record import Outcome, Record, read_record, write_record
from momatch.sweep.tables import write_tables
from momatch.sweep.worker import JobResult, one_line


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended.

    Attributes:
        jobs: how many there were.
        done: how many of them have a result.
        failed: the outcomes of failed runs, by trial.
        tables: the files that were written.
        signal: number of the signal that stopped the sweep; None if it ran to its end.
    """

    jobs: int
    done: int
    failed: dict[Trial, Outcome]
    tables: list[Path]
    signal: int | None


class RecordKeeper:
    """The record of one grid while its sweep is running. What an earlier sweep recorded is kept, other seeds included.

    Args:
        grid: whose record it is.
        jobs: of the sweep.
        folder: of the record, ``FOLDER/GRID.json``.
        preset: name of the settings below the grid's.
        overrides: settings on top of all others.
        environment: of the sweep: command, machine, versions.

    Attributes:
        grid: whose record it is.
        path: of the record.

    Raises:
        ValueError: if the file exists and is damaged, not a record, or was made with other overrides or another grid.
        OSError: if it cannot be read.
    """

    def __init__(
        self,
        grid: Grid,
        jobs: Iterable[Job],
        folder: Path,
        *,
        preset: str,
        overrides: Mapping[str, Any],
        environment: Mapping[str, Any],
    ) -> None:
        self.grid, self.path = grid, folder / f"{grid.name}.json"
        self._preset, self._overrides, self._environment = preset, dict(overrides), dict(environment)
        own = {trial: job for job in jobs for trial in job.trials if trial.grid == grid.name}
        self._seeds = {trial.seed for trial in own}
        self._outcomes: dict[tuple[str, str, int], Outcome] = {}
        #: Of the sweep that recorded the outcomes, as long as this one has added none.
        self._earlier: dict[str, Any] | None = None
        if self.path.exists():
            cells = {(trial.row, trial.column): _without_seed(job.settings) for trial, job in own.items()}
            self._take_over(read_record(self.path), cells)

    def _take_over(self, record: Record, cells: Mapping[tuple[str, str], dict[str, Any]]) -> None:
        """Keep what was recorded; refuse to drop results of cells that have changed."""
        if _without_runtime(record.overrides) != _without_runtime(self._overrides):
            then, now = (_flags(overrides) for overrides in (record.overrides, self._overrides))
            raise ValueError(
                f"{self.path}: got {now}, but this record was made with {then}, and a table must not mix them; "
                "repeat those, or give another --out"
            )
        self._earlier = record.environment
        for outcome in record.outcomes:
            cell = cells.get((outcome.row, outcome.column))
            if cell == _without_seed(outcome.settings):
                self._outcomes[outcome.row, outcome.column, outcome.seed] = outcome
            elif outcome.result is not None:
                raise ValueError(
                    f"{self.path}: holds results of {outcome.row}, {outcome.column}, which the grid now "
                    f"{_change(outcome.settings, cell)}; this sweep would drop them: give another --out, or move the record "
                    "away (finished runs are read again)"
                )

    def known(self, job: Job, trial: Trial) -> Outcome | None:
        """The outcome that an earlier sweep recorded for the trial, if it is still valid."""
        outcome = self._outcomes.get((trial.row, trial.column, trial.seed))
        return outcome if outcome is not None and is_current(job, trial, outcome) else None

    def add(self, job: Job, trial: Trial, result: JobResult) -> Outcome:
        """Record the result of a job for one of its trials.

        Raises:
            OSError: if the record cannot be written.
        """
        evaluation = None
        if result.evaluation is not None and job.is_evaluated(trial):
            wanted = (*trial.outliers, HELD_OUT)
            evaluation = {origin: metrics for origin, metrics in result.evaluation.items() if origin in wanted}
        outcome = Outcome(
            row=trial.row,
            column=trial.column,
            seed=trial.seed,
            run=job.name,
            settings=job.settings,
            result=result.result,
            evaluation=evaluation,
            error=result.error,
        )
        self._outcomes[trial.row, trial.column, trial.seed] = outcome
        self._earlier = None
        write_record(self.path, self.record())
        return outcome

    def record(self) -> Record:
        """All outcomes, in the order of the grid, then of the seeds."""
        seeds = sorted(self._seeds | {seed for _, _, seed in self._outcomes})
        order = [(cell.row, cell.column, seed) for cell in self.grid.cells for seed in seeds]
        return Record(
            grid=self.grid.name,
            preset=self._preset,
            overrides=self._overrides,
            seeds=tuple(seeds),
            outcomes=tuple(self._outcomes[key] for key in order if key in self._outcomes),
            environment=self._environment if self._earlier is None else self._earlier,
        )


def is_current(job: Job, trial: Trial, outcome: Outcome) -> bool:
    """Whether a recorded outcome is what running the job again would give.

    It is if the run succeeded with the same settings and its directory is finished, or gone. If the directory is there, the
    outcome must also cover every outlier dataset of the trial.
    """
    if outcome.error is not None or outcome.run != job.name or outcome.settings != job.settings:
        return False
    if not job.directory.exists():
        return True
    try:
        state = run_state(job)
    except (ValueError, OSError):
        return False
    if outcome.evaluation is None and job.is_evaluated(trial):
        return False
    return state == "finished" and all(name in (outcome.evaluation or {}) for name in trial.outliers)


def recorded_outcomes(job: Job, keepers: Mapping[str, RecordKeeper]) -> dict[Trial, Outcome] | None:
    """The recorded outcomes of all trials of a job; None if one is missing or no longer valid."""
    known = {trial: keepers[trial.grid].known(job, trial) for trial in job.trials}
    there = {trial: outcome for trial, outcome in known.items() if outcome is not None}
    return there if len(there) == len(known) else None


def run_sweep(
    jobs: Sequence[Job], keepers: Mapping[str, RecordKeeper], launcher: Launcher, *, workers: int | None, folder: Path
) -> SweepResult:
    """Run what is not done yet, keep the records, write the tables.

    Args:
        jobs: all runs that the grids need.
        keepers: of the records, by name of the grid.
        launcher: starts a job.
        workers: jobs at a time; None for all.
        folder: of records and tables.

    Raises:
        ValueError: if another sweep is using the folder.
        OSError: if records or tables cannot be written; the runs are saved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".sweep.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{folder}: in use by another sweep; wait for it, or give another --out") from None
    with lock:
        recorded = {job.name: recorded_outcomes(job, keepers) for job in jobs}
        ready = {job.name: _result_without_process(job) for job in jobs if recorded[job.name] is None}
        waiting = [job for job in jobs if job.name in ready and ready[job.name] is None]
        missing = _download(waiting)
        failed: dict[Trial, Outcome] = {}
        with SweepProgress([keeper.grid for keeper in keepers.values()], jobs, workers=workers) as progress:

            def finished(job: Job, result: JobResult) -> None:
                outcomes = {trial: keepers[trial.grid].add(job, trial, result) for trial in job.trials}
                failed.update({trial: outcome for trial, outcome in outcomes.items() if outcome.error is not None})
                progress.add(job, outcomes, quiet=ready[job.name] is not None and result.error is None)

            for job in jobs:
                outcomes, result = recorded[job.name], ready.get(job.name)
                if outcomes is not None:
                    progress.add(job, outcomes, quiet=True)
                elif result is not None or job.config.dataset in missing:
                    finished(job, result or JobResult(error=missing[job.config.dataset]))
            left = [job for job in waiting if job.config.dataset not in missing]
            signal = run_jobs(left, launcher, workers=workers, finished=finished, watch=progress.watch)
        # A grid without any outcome yet has no record either.
        begun = [(keeper.grid, record) for keeper in keepers.values() if (record := keeper.record()).outcomes]
        tables = [path for grid, record in begun for path in write_tables(grid, record, folder)]
        done = sum(recorded_outcomes(job, keepers) is not None for job in jobs)
    return SweepResult(len(jobs), done, failed, tables, signal)


def _result_without_process(job: Job) -> JobResult | None:
    """The result of a job whose run is finished and needs no evaluation, or cannot be used."""
    try:
        if run_state(job) == "finished" and not job.needs_evaluation:
            return JobResult(read_result(job.directory))
    except (ValueError, OSError) as error:
        return JobResult(error=one_line(str(error)))
    return None


def _download(jobs: Sequence[Job]) -> dict[str, str]:
    """Download known datasets that are missing, once and not in every worker.

    Returns:
        Datasets that cannot be had -> why.
    """
    missing = {}
    for name, data_dir in {(job.config.dataset, job.config.data_dir): None for job in jobs}:
        root = data_root(data_dir)
        if name not in KNOWN or is_at_hand(name, root):
            continue
        try:
            obtain(name, root, LoadOptions())
        except (ValueError, OSError) as error:
            missing[name] = one_line(str(error))
    return missing


def _without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "seed"}


def _without_runtime(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that change results."""
    return {key: value for key, value in overrides.items() if key not in RUNTIME_KEYS}


def _change(then: Mapping[str, Any], now: Mapping[str, Any] | None) -> str:
    if now is None:
        return "does not have"
    keys = [key for key in {**then, **now} if key != "seed" and then.get(key) != now.get(key)]
    words = [f"{key}: {then.get(key, 'the default')} then, {now.get(key, 'the default')} now" for key in keys]
    return f"has with other settings ({'; '.join(words)})"


def _flags(overrides: Mapping[str, Any]) -> str:
    return " ".join(f"--set {key}={value}" for key, value in overrides.items()) or "no --set"
