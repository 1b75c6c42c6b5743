"""A sweep: the runs that grids need, carried out in parallel, recorded as they come in, put into tables at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from momatch.data.catalog import KNOWN
from momatch.data.locate import data_root, is_at_hand, obtain
from momatch.data.report import LoadOptions
from momatch.sweep.jobs import Job, Place
from momatch.sweep.launch import Launcher
from momatch.sweep.ledger import Ledger
from momatch.sweep.live import Board
from momatch.sweep.record import Outcome
from momatch.sweep.run_state import look, read_result
from momatch.sweep.schedule import carry_out_all
from momatch.sweep.tables import write_tables
from momatch.sweep.worker import Found, one_line


@dataclass(frozen=True)
class Swept:
    """What came of a sweep.

    Attributes:
        jobs: how many there were.
        done: how many of them have a result.
        failed: the outcomes of runs that failed, by place.
        tables: the files that were written.
        signal: number of the signal that asked for an end before all was done; None for none.
    """

    jobs: int
    done: int
    failed: dict[Place, Outcome]
    tables: list[Path]
    signal: int | None


def run_sweep(
    jobs: Sequence[Job], ledgers: Mapping[str, Ledger], launcher: Launcher, *, workers: int | None, folder: Path
) -> Swept:
    """Carry out what is not done yet, keep the records, write the tables.

    Args:
        jobs: all runs that the grids need.
        ledgers: by name of the grid.
        launcher: starts a job.
        workers: jobs at a time; None for all of them.
        folder: of records and tables.

    Raises:
        ValueError: if another sweep is at work there.
        OSError: if records or tables cannot be written; the runs are saved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".sweep.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{folder}: another sweep is at work here; wait for it, or give another --out") from None
    with lock:
        known = {job.name: known_outcomes(job, ledgers) for job in jobs}
        settled = {job.name: _settle(job) for job in jobs if known[job.name] is None}
        waiting = [job for job in jobs if job.name in settled and settled[job.name] is None]
        absent = _bring_data(waiting)
        failed: dict[Place, Outcome] = {}
        with Board([ledger.grid for ledger in ledgers.values()], jobs, workers=workers) as board:

            def finished(job: Job, found: Found) -> None:
                outcomes = {place: ledgers[place.grid].add(job, place, found) for place in job.places}
                failed.update({place: outcome for place, outcome in outcomes.items() if outcome.error is not None})
                board.found(job, outcomes, quietly=settled[job.name] is not None and found.error is None)

            for job in jobs:
                there, found = known[job.name], settled.get(job.name)
                if there is not None:
                    board.found(job, there, quietly=True)
                elif found is not None or job.config.dataset in absent:
                    finished(job, found or Found(error=absent[job.config.dataset]))
            ready = [job for job in waiting if job.config.dataset not in absent]
            signal = carry_out_all(ready, launcher, workers=workers, finished=finished, watch=board.watch)
        # A grid that nothing is known of yet has no record either.
        begun = [(ledger.grid, record) for ledger in ledgers.values() if (record := ledger.record()).outcomes]
        tables = [path for grid, record in begun for path in write_tables(grid, record, folder)]
        done = sum(known_outcomes(job, ledgers) is not None for job in jobs)
    return Swept(len(jobs), done, failed, tables, signal)


def known_outcomes(job: Job, ledgers: Mapping[str, Ledger]) -> dict[Place, Outcome] | None:
    """The recorded outcomes of all places of a job; None if one is missing or no longer stands."""
    known = {place: ledgers[place.grid].known(job, place) for place in job.places}
    there = {place: outcome for place, outcome in known.items() if outcome is not None}
    return there if len(there) == len(known) else None


def _settle(job: Job) -> Found | None:
    """What comes of a job that needs no process: its run is finished and not to be evaluated, or cannot be used."""
    try:
        if look(job) == "finished" and not any(job.evaluated(place) for place in job.places):
            return Found(read_result(job.directory))
    except (ValueError, OSError) as error:
        return Found(error=one_line(str(error)))
    return None


def _bring_data(jobs: Sequence[Job]) -> dict[str, str]:
    """Download the known datasets that are not there, once and not by every worker.

    Returns:
        Those that cannot be had, and why.
    """
    absent = {}
    for name, data_dir in {(job.config.dataset, job.config.data_dir): None for job in jobs}:
        root = data_root(data_dir)
        if name not in KNOWN or is_at_hand(name, root):
            continue
        try:
            obtain(name, root, LoadOptions())
        except (ValueError, OSError) as error:
            absent[name] = one_line(str(error))
    return absent
