"""From grids to the runs they need, and how far each run is.

A run is identified by its settings, so grids share the runs they have in common. Nothing here imports torch: Linux counts
the peak memory of a child from what its parent held when the child was started, so the sweep's own process stays small.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.config.algorithms import OPTIONS, renamed
from momatch.config.layers import FlagError, Layer
from momatch.data.catalog import KNOWN
from momatch.data.locate import data_root, is_at_hand
from momatch.storage.durable import read_object
from momatch.storage.metrics_file import MetricsFile
from momatch.storage.run_config import CONFIG, read_config
from momatch.sweep.grid import RESERVED, Grid
from momatch.training.resolve import resolve_layers

RunState = Literal["new", "unfinished", "finished"]


@dataclass(frozen=True)
class Trial:
    """One cell of a grid with one seed: where a run's metrics go.

    Attributes:
        grid: name of the grid.
        row: of the cell.
        column: of the cell.
        seed: of the run.
        outliers: datasets that the grid wants the run to detect as outliers.
    """

    grid: str
    row: str
    column: str
    seed: int
    outliers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.grid}: {self.row}, {self.column}, seed {self.seed}"


@dataclass(frozen=True)
class Job:
    """A run that the grids need.

    Attributes:
        config: resolved; `run_dir` is the run's directory.
        trials: that the run serves, at least one.
        trust_code: import a backbone of the form package.module:factory.
    """

    config: TrainConfig
    trials: tuple[Trial, ...]
    trust_code: bool | str = False

    @property
    def directory(self) -> Path:
        """Of the run."""
        return Path(str(self.config.run_dir))

    @property
    def name(self) -> str:
        """Of the run's directory."""
        return self.directory.name

    @property
    def outliers(self) -> tuple[str, ...]:
        """Outlier datasets of all trials."""
        return tuple(dict.fromkeys(name for trial in self.trials for name in trial.outliers))

    def is_evaluated(self, trial: Trial) -> bool:
        """Whether the trial needs outlier detection: against another dataset, or against held-out classes."""
        return bool(trial.outliers or self.config.held_out_classes)

    @property
    def needs_evaluation(self) -> bool:
        """Whether any of the trials does."""
        return any(self.is_evaluated(trial) for trial in self.trials)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that a record states: those that differ from the algorithm's defaults, without `RUNTIME_KEYS`."""
        own = {"unlabeled_weight": 1.0, **OPTIONS.get(self.config.algorithm, {})}
        return {
            field.name: getattr(self.config, field.name)
            for field in fields(self.config)
            if field.name not in RUNTIME_KEYS and getattr(self.config, field.name) != own.get(field.name, field.default)
        }


@dataclass(frozen=True)
class SweepOptions:
    """The options of a sweep besides its grids.

    Attributes:
        preset: the settings below the grids'.
        overrides: settings on top of all others.
        seeds: instead of the grids' own; None for those.
        runs: folder of the run directories.
        data_dir: folder of the known datasets; None for the default.
        trust_code: import backbones of the form package.module:factory.
        outliers: datasets to detect instead of those of the grids that name any; None for those.
    """

    preset: Layer
    overrides: Mapping[str, Any]
    seeds: tuple[int, ...] | None
    runs: Path
    data_dir: str | None
    trust_code: bool | str = False
    outliers: tuple[str, ...] | None = None


def plan_jobs(grids: Sequence[Grid], options: SweepOptions) -> tuple[list[Job], list[str]]:
    """Every run that the grids need, checked; the first seed of all cells before the second.

    Returns:
        The jobs, and notes on what is left out or shared.

    Raises:
        ValueError: if two grids have one name, a setting is unknown or invalid (naming grid and cell), an override is of
            a setting that a grid sets itself, or two different runs would have one name.
    """
    if options.outliers is not None:
        grids = [replace(grid, outliers=options.outliers) if grid.outliers else grid for grid in grids]
    names = [grid.name for grid in grids]
    for grid in grids:
        if names.count(grid.name) > 1:
            raise FlagError(f"GRID: got the grid {grid.name!r} twice, expected different names")
        _check_overrides(grid, options.overrides)
    jobs: dict[str, Job] = {}
    notes: dict[str, None] = {}
    wanted = [(rank, grid, seed) for grid in grids for rank, seed in enumerate(options.seeds or grid.seeds)]
    for _, grid, seed in sorted(wanted, key=lambda entry: entry[0]):
        for cell in grid.cells:
            layer = Layer(cell.settings, f"grid {grid.name!r}, {cell.row!r}, {cell.column!r}")
            notes.update({layer.note: None} if layer.note else {})
            config = _run_config(options, layer, seed)
            outliers, skipped = choose_outliers(grid, config.dataset, options.data_dir)
            trial = Trial(grid.name, cell.row, cell.column, seed, outliers)
            job = Job(config, (trial,), options.trust_code)
            same = jobs.get(job.name)
            if same is not None:
                skipped += _twin_note(same, config, trial)
                job = replace(same, trials=(*same.trials, trial))
            notes.update(dict.fromkeys(skipped))
            jobs[job.name] = job
    return list(jobs.values()), list(notes)


def _twin_note(same: Job, config: TrainConfig, trial: Trial) -> list[str]:
    """A note if another cell of the same grid is the same run.

    Raises:
        ValueError: if it only has the same name.
    """
    if same.config != config:
        changed = [
            field.name for field in fields(config) if getattr(same.config, field.name) != getattr(config, field.name)
        ]
        words = "; ".join(f"{key}: {getattr(same.config, key)!r}, here {getattr(config, key)!r}" for key in changed)
        raise ValueError(
            f"{trial}: its run would be named {same.name!r}, but so is that of {same.trials[0]}, of other settings ({words}); "
            "put them into two sweeps with different --runs"
        )
    twin = next((other for other in same.trials if other.grid == trial.grid), None)
    if twin is None:
        return []
    return [
        f"grid {trial.grid!r}: {trial.row}, {trial.column} and {twin.row}, {twin.column} have the same settings: they share "
        "one run"
    ]


def choose_outliers(grid: Grid, dataset: str, data_dir: str | None) -> tuple[tuple[str, ...], list[str]]:
    """The outlier datasets of a grid that are on disk; nothing is downloaded.

    Args:
        grid: whose outliers are meant.
        dataset: that the run is trained on; never its own outlier.
        data_dir: folder of the known datasets; None for the default.

    Returns:
        The datasets, and a note on each that is skipped.

    Raises:
        ValueError: if a name is neither a known dataset nor a path.
    """
    chosen: list[str] = []
    notes = []
    for entry in grid.outliers:
        names = (entry,) if isinstance(entry, str) else entry
        others = [name for name in names if name != dataset]
        present = [name for name in others if _is_on_disk(grid, name, data_dir)]
        chosen += present[:1]
        if others and not present:
            notes.append(
                f"grid {grid.name!r}: no outliers from {' or '.join(others)}: not in {data_root(data_dir)}; download it with "
                f"momatch data {others[0]}, then run the same sweep again to add them"
            )
    return tuple(dict.fromkeys(chosen)), notes


def _is_on_disk(grid: Grid, name: str, data_dir: str | None) -> bool:
    if name in KNOWN:
        return is_at_hand(name, data_root(data_dir))
    if not Path(name).expanduser().exists():
        close = difflib.get_close_matches(name, KNOWN, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(KNOWN)}"
        raise ValueError(f"grid {grid.name!r}: outliers: got {name!r}, expected a known dataset or a path; {hint}")
    return True


def _run_config(options: SweepOptions, cell: Layer, seed: int) -> TrainConfig:
    layers = [options.preset, cell, Layer(options.overrides, "--set"), Layer({"seed": seed}, "seeds")]
    config = resolve_layers(layers)
    run_dir = options.runs / PurePath(str(config.run_dir)).name
    data_dir = options.data_dir if options.data_dir is not None else config.data_dir
    return replace(config, run_dir=str(run_dir), data_dir=data_dir, progress=False)


def _check_overrides(grid: Grid, overrides: Mapping[str, Any]) -> None:
    """Refuse an override that would make the names of rows and columns wrong."""
    for key, value in renamed(overrides, "--set").items():
        if key in RESERVED:
            raise FlagError(f"--set: got {key!r}, which a sweep sets for each run; {RESERVED[key]}")
        if any(key in renamed(cell.settings, grid.name) for cell in grid.cells):
            raise FlagError(
                f"--set: got {key} = {value!r}, but the grid {grid.name!r} sets it, so the names of its rows and columns would "
                "be wrong; leave it out, or write a grid of your own (docs/experiments.md)"
            )


def run_state(job: Job) -> RunState:
    """How far the job's run is.

    Raises:
        ValueError: if its directory holds another run, or a damaged one.
        OSError: if it cannot be read.
    """
    if not (job.directory / CONFIG).exists():
        return "new"
    stored = read_config(job.directory).resolved()
    key = job.config.first_difference(stored)
    if key is not None:
        there, here = (getattr(config, key) for config in (stored, job.config))
        raise ValueError(
            f"{job.directory}: holds a run with other settings ({key}: {there!r} there, {here!r} here); "
            "move it away, or give another --runs"
        )
    return "finished" if (job.directory / "result.json").exists() else "unfinished"


def read_result(directory: Path) -> dict[str, Any]:
    """The metrics of a finished run, without per-class lists.

    Raises:
        ValueError: if result.json is damaged or missing.
    """
    result = read_object(directory / "result.json")
    if result is None:
        raise ValueError(f"{directory}: got no result.json, expected a finished run")
    return {key: value for key, value in result.items() if not isinstance(value, list)}


def read_progress(directory: Path) -> tuple[int, float]:
    """Steps done and the seconds they took, from the last complete line of metrics.jsonl; (0, 0.0) before there is one."""
    try:
        line = MetricsFile(directory / "metrics.jsonl").last() or {}
        return int(line["step"]), float(line["seconds"])
    except (OSError, LookupError, TypeError):
        # No line yet, or no time in it: this is for display only.
        return 0, 0.0
