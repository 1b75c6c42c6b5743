"""The record of a sweep: every figure of every run, enough to make all tables again without the runs."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What came of one cell with one seed.

    Attributes:
        row: of the cell.
        column: of the cell.
        seed: of the run.
        run: name of its run directory.
        settings: the settings that differ from `TrainConfig`'s defaults, those of `RUNTIME_KEYS` left out.
        result: the run's result.json without per-class lists; None if it failed.
        evaluation: `evaluate_run(...)["outliers"]`: origin -> n, as_trained, refitted; None where the grid asks for none.
        error: why the run failed, in one line; None if it did not.
    """

    row: str
    column: str
    seed: int
    run: str
    settings: dict[str, Any]
    result: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    error: str | None


@dataclass(frozen=True)
class Record:
    """What is known about a sweep.

    Attributes:
        grid: name of the grid.
        preset: that its settings are on top of.
        overrides: settings given on the command line, on top of everything.
        seeds: that were asked for.
        outcomes: those that there are so far, in the order of the grid, then of the seeds.
        made: how it was made: command, date, commit, cpu, cores, system, python, torch, numpy, momatch, workers, threads.
    """

    grid: str
    preset: str
    overrides: dict[str, Any]
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    made: dict[str, Any]
