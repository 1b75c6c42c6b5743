"""From grids to the runs they need: a run is known by its settings, so that grids share the runs they have in common.

Nothing here imports torch: the sweep's own process stays small, because the system counts a child's peak memory from what
its parent held when it was started.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePath
from typing import Any

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.config.layers import FlagError, Layer
from momatch.data.catalog import KNOWN
from momatch.data.locate import data_root, is_at_hand
from momatch.sweep.grid import RESERVED, Grid
from momatch.training.resolve import resolve_layers


@dataclass(frozen=True)
class Place:
    """Where a run's figures go.

    Attributes:
        grid: name of the grid.
        row: of the cell.
        column: of the cell.
        seed: of the run.
        outliers: datasets that the grid wants the run told apart from.
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
        config: resolved; its `run_dir` is the run's place.
        places: where its figures go, at least one.
    """

    config: TrainConfig
    places: tuple[Place, ...]

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
        """Datasets that the run is told apart from, for all of its grids."""
        return tuple(dict.fromkeys(name for place in self.places for name in place.outliers))

    def evaluated(self, place: Place) -> bool:
        """Whether the run is told apart from anything there: another dataset, or classes that were held out."""
        return bool(place.outliers or self.config.held_out_classes)

    @property
    def settings(self) -> dict[str, Any]:
        """What a record says about the run: the settings that differ from `TrainConfig`'s defaults, `RUNTIME_KEYS` left out."""
        return {
            field.name: getattr(self.config, field.name)
            for field in fields(self.config)
            if field.name not in RUNTIME_KEYS and getattr(self.config, field.name) != field.default
        }


@dataclass(frozen=True)
class Wishes:
    """What a sweep is asked for, apart from its grids.

    Attributes:
        preset: the settings beneath the grids'.
        overrides: settings on top of everything.
        seeds: instead of the grids' own; None for those.
        runs: folder of the run directories.
        data_dir: where known datasets lie; None for the default place.
    """

    preset: Layer
    overrides: Mapping[str, Any]
    seeds: tuple[int, ...] | None
    runs: Path
    data_dir: str | None


def plan_jobs(grids: Sequence[Grid], wishes: Wishes) -> tuple[list[Job], list[str]]:
    """Every run that the grids need, checked; the first seed of all cells before the second.

    Returns:
        The jobs, and remarks on what is left out.

    Raises:
        ValueError: if two grids have one name, a setting is unknown or cannot be used (naming grid and cell), an override
            is of what a grid sets itself, or two different runs would have one name.
    """
    names = [grid.name for grid in grids]
    for name in names:
        if names.count(name) > 1:
            raise FlagError(f"GRID: got the grid {name!r} twice, expected different names")
    found: dict[str, Job] = {}
    remarks: dict[str, None] = {}
    for grid in grids:
        _check_overrides(grid, wishes.overrides)
    wanted = [(rank, grid, seed) for grid in grids for rank, seed in enumerate(wishes.seeds or grid.seeds)]
    for _, grid, seed in sorted(wanted, key=lambda entry: entry[0]):
        for cell in grid.cells:
            layer = Layer(cell.settings, f"grid {grid.name!r}, {cell.row!r}, {cell.column!r}")
            config = _run_config(wishes, layer, seed)
            outliers, remark = choose_outliers(grid, config.dataset, wishes.data_dir)
            remarks.update(dict.fromkeys(remark))
            place = Place(grid.name, cell.row, cell.column, seed, outliers)
            job = Job(config, (place,))
            same = found.get(job.name)
            if same is not None and same.config != config:
                raise ValueError(
                    f"{place}: its run would have the name {job.name!r}, which {same.places[0]} has with other settings "
                    f"({_difference(same.config, config)}); give them to two sweeps with different --runs"
                )
            twin = next((other for other in same.places if other.grid == grid.name), None) if same is not None else None
            if twin is not None:
                remarks[
                    f"grid {grid.name!r}: {cell.row}, {cell.column} and {twin.row}, {twin.column} have the same settings: one "
                    "run stands in both"
                ] = None
            found[job.name] = job if same is None else replace(same, places=(*same.places, place))
    return list(found.values()), list(remarks)


def choose_outliers(grid: Grid, dataset: str, data_dir: str | None) -> tuple[tuple[str, ...], list[str]]:
    """The datasets that a grid's runs are told apart from, as far as they are at hand; nothing is downloaded for it.

    Args:
        grid: whose outliers are meant.
        dataset: that the run is trained on; it is never its own outlier.
        data_dir: where known datasets lie; None for the default place.

    Returns:
        The datasets, and a remark on each that is left out.

    Raises:
        ValueError: if a name is neither a known dataset nor a path.
    """
    chosen: list[str] = []
    remarks = []
    for entry in grid.outliers:
        names = (entry,) if isinstance(entry, str) else entry
        others = [name for name in names if name != dataset]
        present = [name for name in others if _is_at_hand(grid, name, data_dir)]
        chosen += present[:1]
        if others and not present:
            remarks.append(
                f"grid {grid.name!r}: outliers of {' or '.join(others)} are left out: not in {data_root(data_dir)}; "
                f"momatch data {others[0]} brings it there, and the same sweep then adds them"
            )
    return tuple(dict.fromkeys(chosen)), remarks


def _is_at_hand(grid: Grid, name: str, data_dir: str | None) -> bool:
    if name in KNOWN:
        return is_at_hand(name, data_root(data_dir))
    if not Path(name).expanduser().exists():
        close = difflib.get_close_matches(name, KNOWN, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(KNOWN)}"
        raise ValueError(f"grid {grid.name!r}: outliers: got {name!r}, expected a known dataset or a path; {hint}")
    return True


def _run_config(wishes: Wishes, cell: Layer, seed: int) -> TrainConfig:
    # A preset that changes nothing, as the default one, leaves room for the one that a features file brings.
    preset = wishes.preset if wishes.preset.values.keys() - {"preset_name"} else Layer({})
    layers = [preset, cell, Layer(wishes.overrides, "--set"), Layer({"seed": seed}, "seeds")]
    config = resolve_layers(layers)
    run_dir = wishes.runs / PurePath(str(config.run_dir)).name
    data_dir = wishes.data_dir if wishes.data_dir is not None else config.data_dir
    return replace(config, run_dir=str(run_dir), data_dir=data_dir, progress=False)


def _check_overrides(grid: Grid, overrides: Mapping[str, Any]) -> None:
    """Refuse what would make a table a lie: its cells would no longer be what their names say."""
    for key, value in overrides.items():
        if key in RESERVED:
            raise FlagError(f"--set: got {key!r}, which is not a setting of all runs; {RESERVED[key]}")
        if any(key in cell.settings for cell in grid.cells):
            raise FlagError(
                f"--set: got {key} = {value!r}, but the grid {grid.name!r} sets it: its rows and columns would not be what "
                "they are called; leave it out, or write a grid of your own (docs/experiments.md)"
            )


def _difference(one: TrainConfig, other: TrainConfig) -> str:
    names = [name for field in fields(one) if getattr(one, name := field.name) != getattr(other, name)]
    return "; ".join(f"{name}: {getattr(one, name)!r}, here {getattr(other, name)!r}" for name in names)
