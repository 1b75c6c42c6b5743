"""The record of a grid while its sweep goes on: what is known is on disk after every outcome."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from momatch.config import RUNTIME_KEYS
from momatch.sweep.figures import HELD_OUT
from momatch.sweep.grid import Grid
from momatch.sweep.jobs import Job, Place
from momatch.sweep.record import Outcome, Record, read_record, write_record
from momatch.sweep.run_state import stands
from momatch.sweep.worker import Found


class Ledger:
    """The record of one grid. What an earlier sweep recorded of it stays, other seeds included.

    Args:
        grid: whose record it is.
        jobs: of the sweep.
        folder: of the record, ``FOLDER/GRID.json``.
        preset: name of the settings beneath the grid's.
        overrides: settings on top of everything.
        made: how the sweep is carried out.

    Attributes:
        grid: whose record it is.
        path: of the record.

    Raises:
        ValueError: if the file is there and is damaged, no record, or one that was made with other overrides or
            of another grid.
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
        made: Mapping[str, Any],
    ) -> None:
        self.grid, self.path = grid, folder / f"{grid.name}.json"
        self._preset, self._overrides, self._made = preset, dict(overrides), dict(made)
        own = {place: job for job in jobs for place in job.places if place.grid == grid.name}
        self._seeds = {place.seed for place in own}
        self._outcomes: dict[tuple[str, str, int], Outcome] = {}
        self._made_before: dict[str, Any] | None = None
        if self.path.exists():
            cells = {(place.row, place.column): _without_seed(job.settings) for place, job in own.items()}
            self._take_over(read_record(self.path), cells)

    def _take_over(self, record: Record, cells: Mapping[tuple[str, str], dict[str, Any]]) -> None:
        """Keep what was recorded; refuse to drop results of cells that are no longer the same."""
        if _telling(record.overrides) != _telling(self._overrides):
            then, now = (_flags(overrides) for overrides in (record.overrides, self._overrides))
            raise ValueError(
                f"{self.path}: got {now}, but this record was made with {then}, and a table must not mix them; "
                "give another --out, or what it was made with"
            )
        self._made_before = record.made
        for outcome in record.outcomes:
            cell = cells.get((outcome.row, outcome.column))
            if cell == _without_seed(outcome.settings):
                self._outcomes[outcome.row, outcome.column, outcome.seed] = outcome
            elif outcome.result is not None:
                raise ValueError(
                    f"{self.path}: got a record with results of {outcome.row}, {outcome.column}, which the grid now "
                    f"{_change(outcome.settings, cell)}; this sweep would drop them: give another --out, or move the record "
                    "away (finished runs are read again)"
                )

    def known(self, job: Job, place: Place) -> Outcome | None:
        """The outcome that an earlier sweep recorded for a place of the job, if it still stands."""
        outcome = self._outcomes.get((place.row, place.column, place.seed))
        return outcome if outcome is not None and stands(job, place, outcome) else None

    def add(self, job: Job, place: Place, found: Found) -> Outcome:
        """Write down what came of a job.

        Returns:
            The outcome.

        Raises:
            OSError: if the record cannot be written.
        """
        evaluation = None
        if found.evaluation is not None and job.evaluated(place):
            wanted = (*place.outliers, HELD_OUT)
            evaluation = {origin: figures for origin, figures in found.evaluation.items() if origin in wanted}
        outcome = Outcome(
            row=place.row,
            column=place.column,
            seed=place.seed,
            run=job.name,
            settings=job.settings,
            result=found.result,
            evaluation=evaluation,
            error=found.error,
        )
        self._outcomes[place.row, place.column, place.seed] = outcome
        # From here on the record is this sweep's work.
        self._made_before = None
        write_record(self.path, self.record())
        return outcome

    def record(self) -> Record:
        """All that is known, in the order of the grid, then of the seeds."""
        seeds = sorted(self._seeds | {seed for _, _, seed in self._outcomes})
        places = [(cell.row, cell.column, seed) for cell in self.grid.cells for seed in seeds]
        return Record(
            grid=self.grid.name,
            preset=self._preset,
            overrides=self._overrides,
            seeds=tuple(seeds),
            outcomes=tuple(self._outcomes[place] for place in places if place in self._outcomes),
            made=self._made if self._made_before is None else self._made_before,
        )


def _without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "seed"}


def _change(then: Mapping[str, Any], now: Mapping[str, Any] | None) -> str:
    if now is None:
        return "does not have"
    keys = [key for key in {**then, **now} if key != "seed" and then.get(key) != now.get(key)]
    words = [f"{key}: {then.get(key, 'the default')} then, {now.get(key, 'the default')} now" for key in keys]
    return f"has with other settings ({'; '.join(words)})"


def _telling(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that change results."""
    return {key: value for key, value in overrides.items() if key not in RUNTIME_KEYS}


def _flags(overrides: Mapping[str, Any]) -> str:
    return " ".join(f"--set {key}={value}" for key, value in overrides.items()) or "no --set"
