"""A grid of settings: rows x columns of a table, read from a small TOML file."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from momatch.config.layers import FlagError

#: The grids that come with momatch, by name: the paper's experiments.
SHIPPED = ("table1", "compactness", "outliers", "density", "policies", "memory", "constraints")

#: Settings that are not a grid's: a sweep gives each run its seed, its place and what it does there.
RESERVED = {
    "seed": "give the seeds in 'seeds' of the grid or by --seeds",
    "run_dir": "runs lie in the folder of --runs, named by their settings",
    "data_dir": "give --data-dir",
    "resume": "a sweep goes on with what it finds",
    "overwrite": "a sweep deletes nothing; remove the run yourself",
}
_KEYS = ("title", "question", "figures", "seeds", "baseline", "outliers", "settings", "rows", "columns")


@dataclass(frozen=True)
class Cell:
    """One place of a table: the settings that are trained with every seed.

    Attributes:
        row: name of the row.
        column: name of the column.
        settings: config keys -> values, on top of the preset: those of the grid, then of the row, then of the column.
    """

    row: str
    column: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What a sweep carries out and what its tables show.

    Attributes:
        name: by which records and the paper's figures are found.
        title: of its tables.
        question: what it is to answer, in one sentence.
        cells: in the order of the table: row by row.
        figures: the figures to show, one table each: names of `momatch.sweep.figures.FIGURES`.
        baseline: row and column that paired differences are taken against; None for none.
        seeds: by default.
        outliers: datasets that every run is told apart from after training. Several in a tuple: the first of them that is
            at hand and not the run's own dataset. Where none is at hand it is left out, and said so.
    """

    name: str
    title: str
    question: str
    cells: tuple[Cell, ...]
    figures: tuple[str, ...]
    baseline: tuple[str, str] | None
    seeds: tuple[int, ...]
    outliers: tuple[str | tuple[str, ...], ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows, from the top."""
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, as the cells bring them up row by row, in the file's order where a row has them all."""
        longest = max(self.rows, key=lambda row: sum(cell.row == row for cell in self.cells))
        first = [cell.column for cell in self.cells if cell.row == longest]
        return tuple(dict.fromkeys([*first, *(cell.column for cell in self.cells)]))


def load_grid(grid: str) -> Grid:
    """A grid by its name or from a file.

    Args:
        grid: one of `SHIPPED`, or the path of a .toml file.

    Raises:
        ValueError: if there is no such grid, or the file is not one (naming the key at fault).
    """
    if grid in SHIPPED:
        text = (files("momatch.sweep") / "grids" / f"{grid}.toml").read_text(encoding="utf-8")
        return parse_grid(grid, text, source=f"grid {grid!r}")
    path = Path(grid)
    if path.suffix.lower() != ".toml":
        hint = _suggestion(grid, SHIPPED) or f"expected one of {', '.join(SHIPPED)}, or the path of a .toml file"
        raise FlagError(f"GRID: got {grid!r}; {hint}")
    if not path.is_file():
        raise ValueError(f"{path}: got no such file, expected a .toml file of a grid, or one of {', '.join(SHIPPED)}")
    if path.stem in SHIPPED:
        raise ValueError(
            f"{path}: got a grid of the name {path.stem!r}, which comes with momatch; give the file another name, or its "
            "tables would pass for the shipped grid's"
        )
    try:
        # -sig: editors of some systems put a byte order mark in front.
        return parse_grid(path.stem, path.read_text(encoding="utf-8-sig"), source=str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: it is not valid UTF-8: {error}") from None


def parse_grid(name: str, text: str, *, source: str) -> Grid:
    """The grid that a TOML text describes.

    Args:
        name: of the grid.
        text: see docs/experiments.md for its keys.
        source: how messages name it.

    Raises:
        ValueError: naming `source` and the key at fault.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}: it is not valid TOML: {error}") from None
    for key in values:
        _require(key in _KEYS, source, f"got the unknown key {key!r}; {_suggestion(key, _KEYS) or _listed(_KEYS)}")
    cells = _cells(values, source)
    baseline = _texts(values, "baseline", source)
    if baseline:
        names = [(cell.row, cell.column) for cell in cells]
        fits = len(baseline) == 2 and (baseline[0], baseline[1]) in names
        _require(
            fits, source, f"baseline: got {list(baseline)}, expected the row and the column of a cell: [row, column]"
        )
    figures = _texts(values, "figures", source)
    _require(bool(figures), source, 'figures: got none, expected at least one, for example ["accuracy"]')
    return Grid(
        name=name,
        title=_text(values, "title", source),
        question=_text(values, "question", source),
        cells=cells,
        figures=figures,
        baseline=(baseline[0], baseline[1]) if baseline else None,
        seeds=_seeds(values.get("seeds", [0]), source),
        outliers=_outliers(values.get("outliers", []), source),
    )


def _cells(values: Mapping[str, Any], source: str) -> tuple[Cell, ...]:
    common = _table(values, "settings", source)
    rows, columns = (_table(values, key, source) for key in ("rows", "columns"))
    for key, part in (("rows", rows), ("columns", columns)):
        _require(bool(part), source, f"[{key}]: got none, expected at least one: name = {{ setting = value, ... }}")
        for entry in part:
            fits = bool(entry.strip()) and entry.isprintable()
            _require(fits, source, f"[{key}]: got the name {entry!r}, expected one that can be printed in a table")
            _table(part, entry, f"{source}: [{key}]")
    _refuse_reserved(common, f"{source}: [settings]")
    cells = []
    for row, row_settings in rows.items():
        place = f"{source}: [rows] {row!r}"
        own = {key: value for key, value in row_settings.items() if key != "columns"}
        _refuse_reserved(own, place)
        wanted = _texts(row_settings, "columns", place) if "columns" in row_settings else tuple(columns)
        for column in wanted:
            known = column in columns
            _require(
                known, place, f"got the unknown column {column!r}; {_suggestion(column, columns) or _listed(columns)}"
            )
        for column, column_settings in columns.items():
            _refuse_reserved(column_settings, f"{source}: [columns] {column!r}")
            if column in wanted:
                cells.append(Cell(row, column, {**common, **own, **column_settings}))
    _require(bool(cells), source, "got no cell: every row has an empty list of columns")
    return tuple(cells)


def _refuse_reserved(settings: Mapping[str, Any], place: str) -> None:
    for key in RESERVED.keys() & settings.keys():
        raise ValueError(f"{place}: got the setting {key!r}, which is not a grid's; {RESERVED[key]}")


def _table(values: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    value = values.get(key, {})
    _require(isinstance(value, dict), source, f"{key}: got {value!r}, expected settings: {{ setting = value, ... }}")
    return dict(value)


def _text(values: Mapping[str, Any], key: str, source: str) -> str:
    value = values.get(key)
    fits = isinstance(value, str) and bool(value.strip())
    _require(fits, source, f"{key}: got {value!r}, expected a text")
    return str(value)


def _texts(values: Mapping[str, Any], key: str, source: str) -> tuple[str, ...]:
    value = values.get(key, [])
    fits = isinstance(value, list) and all(isinstance(entry, str) for entry in value) and len(set(value)) == len(value)
    # Row and column of the baseline may be called the same.
    if key == "baseline" and isinstance(value, list):
        fits = all(isinstance(entry, str) for entry in value)
    _require(fits, source, f"{key}: got {value!r}, expected a list of different texts")
    return tuple(value)


def _seeds(value: object, source: str) -> tuple[int, ...]:
    # bool is an int to Python, but not to a reader.
    fits = isinstance(value, list) and bool(value) and all(type(seed) is int and seed >= 0 for seed in value)
    if not fits or not isinstance(value, list) or len(set(value)) < len(value):
        raise ValueError(f"{source}: seeds: got {value!r}, expected a list of different integers from 0")
    return tuple(value)


def _outliers(value: object, source: str) -> tuple[str | tuple[str, ...], ...]:
    message = f"{source}: outliers: got {value!r}, expected a list of datasets, each a name or a list of alternatives"
    if not isinstance(value, list):
        raise ValueError(message)
    found: list[str | tuple[str, ...]] = []
    for entry in value:
        names = entry if isinstance(entry, list) else [entry]
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(message)
        found.append(tuple(names) if isinstance(entry, list) else names[0])
    return tuple(found)


def _require(condition: bool, source: str, complaint: str) -> None:
    if not condition:
        raise ValueError(f"{source}: {complaint}")


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _listed(names: Iterable[str]) -> str:
    return f"expected one of {', '.join(names)}"
