"""A grid of settings: the rows and columns of a table, read from a TOML file (docs/experiments.md)."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momatch.config.layers import FlagError
from momatch.sweep.metrics import metrics_named

#: Root of the repository if this is an editable install; the paper's grids come with the repository, not with the wheel.
CHECKOUT = Path(__file__).parents[3]
PAPER_GRIDS = Path("reproduction", "grids")

#: Settings that a grid may not set, because the sweep does.
RESERVED = {
    "seed": "give the seeds in 'seeds' of the grid or by --seeds",
    "run_dir": "runs are written below --runs and named after their settings",
    "data_dir": "give --data-dir",
    "resume": "a sweep always resumes unfinished runs",
    "overwrite": "a sweep never deletes a run; delete it yourself",
}
_KEYS = ("title", "question", "metrics", "seeds", "baseline", "outliers", "settings", "rows", "columns", "published")
_PUBLISHED_KEYS = ("source", "setup", "metrics", "runs", "unit", "note", "values")


@dataclass(frozen=True)
class Cell:
    """One cell of a table: the settings that are trained with every seed.

    Attributes:
        row: name of the row.
        column: name of the column.
        settings: config keys -> values, on top of the preset: those of the grid, then of the row, then of the column.
    """

    row: str
    column: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Published:
    """A number published elsewhere, printed in the tables beside our own.

    Attributes:
        metric: name of the metric.
        row: of the table; one that the grid does not have is printed below the others.
        column: of the table.
        source: name of its line in the table.
        mean: in the metric's unit, or in `unit`.
        std: standard deviation over runs; None if not published.
        runs: number of runs; None if not published.
        unit: if it differs from the metric's.
        is_bound: the true number is larger than `mean`.
        setup: how the number was obtained.
        note: what to keep in mind when comparing.
    """

    metric: str
    row: str
    column: str
    source: str
    mean: float
    std: float | None = None
    runs: int | None = None
    unit: str = ""
    is_bound: bool = False
    setup: str = ""
    note: str = ""

    def text(self, decimals: int = 2) -> str:
        """Mean ± std (runs), as tables print it."""
        spread = "" if self.std is None else f" ± {self.std:.{decimals}f}"
        unit = f" {self.unit}" if self.unit else ""
        return f"{'> ' if self.is_bound else ''}{self.mean:.{decimals}f}{spread}{unit} ({self.runs or 'n ?'})"


@dataclass(frozen=True)
class Grid:
    """What a sweep runs and what its tables show.

    Attributes:
        name: of its record and tables.
        title: of its tables.
        question: what it is meant to answer, in one sentence.
        cells: in the order of the table, row by row.
        metrics: one table each: names of `momatch.sweep.metrics.METRICS`, or "auroc".
        baseline: row and column that paired differences are taken against; None for none.
        seeds: by default.
        outliers: datasets to detect as outliers after training. A tuple is a list of alternatives: the first that is on disk
            and not the run's own dataset. Missing ones are skipped with a note.
        published: reference numbers for the tables.
    """

    name: str
    title: str
    question: str
    cells: tuple[Cell, ...]
    metrics: tuple[str, ...]
    baseline: tuple[str, str] | None
    seeds: tuple[int, ...]
    outliers: tuple[str | tuple[str, ...], ...] = ()
    published: tuple[Published, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows, from the top."""
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: those of the longest row in their order, then any others."""
        longest = max(self.rows, key=lambda row: sum(cell.row == row for cell in self.cells))
        first = [cell.column for cell in self.cells if cell.row == longest]
        return tuple(dict.fromkeys([*first, *(cell.column for cell in self.cells)]))

    def published_for(self, metric: str) -> tuple[Published, ...]:
        """The reference numbers of one metric."""
        return tuple(number for number in self.published if number.metric == metric)


def paper_grids() -> dict[str, Path]:
    """Name -> file of the paper's grids, found below the current directory or in the checkout that momatch runs from."""
    folders = [folder / PAPER_GRIDS for folder in (CHECKOUT, Path())]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def load_grid(grid: str) -> Grid:
    """A grid from a file, or one of the paper's by its name.

    Args:
        grid: the path of a .toml file, or the name of one of `paper_grids`.

    Raises:
        ValueError: if there is no such grid, or the file is not one (naming the key at fault).
    """
    path = Path(grid)
    if path.suffix.lower() != ".toml":
        path = _named(grid)
    if not path.is_file():
        raise ValueError(f"{path}: got no such file, expected a .toml file that describes a grid")
    try:
        # -sig: editors of some systems put a byte order mark in front.
        return parse_grid(path.stem, path.read_text(encoding="utf-8-sig"), source=str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8: {error}") from None


def _named(name: str) -> Path:
    known = paper_grids()
    if name in known:
        return known[name]
    if not known:
        raise FlagError(
            f"GRID: got {name!r}; the paper's grids come with momatch's repository ({PAPER_GRIDS}), so run this in a checkout, "
            "or give the path of a .toml file of your own (docs/experiments.md)"
        )
    hint = _suggestion(name, known) or f"expected one of {', '.join(known)}"
    raise FlagError(f"GRID: got {name!r}; {hint}, or the path of a .toml file")


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
        raise ValueError(f"{source}: not valid TOML: {error}") from None
    _check_keys(values, _KEYS, source)
    cells = _cells(values, source)
    baseline = _texts(values, "baseline", source, distinct=False)
    if baseline:
        fits = len(baseline) == 2 and baseline in [(cell.row, cell.column) for cell in cells]
        _require(fits, source, f"baseline: got {list(baseline)}, expected [row, column] of a cell")
    columns = _table(values, "columns", source)
    return Grid(
        name=name,
        title=_text(values, "title", source),
        question=_text(values, "question", source),
        cells=cells,
        metrics=_metrics(values, source),
        baseline=(baseline[0], baseline[1]) if baseline else None,
        seeds=_seeds(values.get("seeds", [0]), source),
        outliers=_outliers(values.get("outliers", []), source),
        published=tuple(_published(values.get("published", []), columns, source)),
    )


def _metrics(values: Mapping[str, Any], source: str) -> tuple[str, ...]:
    names = _texts(values, "metrics", source)
    _require(bool(names), source, 'metrics: got none, expected at least one, for example ["accuracy"]')
    for name in names:
        try:
            metrics_named(name)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
    return names


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
    for column, settings in columns.items():
        _refuse_reserved(settings, f"{source}: [columns] {column!r}")
    cells = []
    for row, row_settings in rows.items():
        where = f"{source}: [rows] {row!r}"
        own = {key: value for key, value in row_settings.items() if key != "columns"}
        _refuse_reserved(own, where)
        wanted = _texts(row_settings, "columns", where) if "columns" in row_settings else tuple(columns)
        for column in wanted:
            _check_column(column, columns, where)
        cells += [Cell(row, column, {**common, **own, **columns[column]}) for column in columns if column in wanted]
    _require(bool(cells), source, "got no cell: every row has an empty list of columns")
    return tuple(cells)


def _published(blocks: object, columns: Iterable[str], source: str) -> Iterator[Published]:
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"{source}: published: got {blocks!r}, expected blocks that begin with [[published]]")
    for number, block in enumerate(blocks, start=1):
        where = f"{source}: [[published]] {number}"
        _check_keys(block, _PUBLISHED_KEYS, where)
        runs = block.get("runs")
        _require(
            runs is None or (type(runs) is int and runs > 0), where, f"runs: got {runs!r}, expected an integer from 1"
        )
        shared = {key: _text(block, key, where) if key in block else "" for key in ("setup", "unit", "note")}
        rows = _table(block, "values", where)
        _require(bool(rows), where, "values: got none, expected row = { column = number or [mean, std], ... }")
        for metric in _metrics(block, where):
            for row in rows:
                for column, value in _table(rows, row, f"{where}: values").items():
                    _check_column(column, columns, f"{where}: values: {row!r}")
                    mean, std, is_bound = _number(value, f"{where}: values: {row!r}, {column!r}")
                    label = _text(block, "source", where)
                    yield Published(metric, row, column, label, mean, std, runs, is_bound=is_bound, **shared)


def _number(value: object, where: str) -> tuple[float, float | None, bool]:
    """Mean, standard deviation and whether the mean is a lower bound, of 7.7, [94.98, 0.07] or "> 20.47"."""
    if isinstance(value, str) and (match := re.fullmatch(r">\s*(\d+(?:\.\d+)?)", value)):
        return float(match[1]), None, True
    parts: list[Any] = value if isinstance(value, list) else [value]
    if len(parts) not in (1, 2) or not all(type(part) in (int, float) for part in parts):
        raise ValueError(f'{where}: got {value!r}, expected a number, [mean, std] or "> number"')
    return float(parts[0]), float(parts[1]) if len(parts) == 2 else None, False


def _refuse_reserved(settings: Mapping[str, Any], where: str) -> None:
    for key in RESERVED.keys() & settings.keys():
        raise ValueError(f"{where}: got the setting {key!r}, which a grid may not set; {RESERVED[key]}")


def _check_keys(values: Iterable[str], known: tuple[str, ...], source: str) -> None:
    for key in values:
        # The name of "metrics" in grids of momatch 0.1.
        hint = "did you mean 'metrics'?" if key == "figures" else _suggestion(key, known)
        _require(key in known, source, f"got the unknown key {key!r}; {hint or _listed(known)}")


def _check_column(column: str, known: Iterable[str], where: str) -> None:
    hint = _suggestion(column, known) or _listed(known)
    _require(column in known, where, f"got the unknown column {column!r}; {hint}")


def _table(values: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    value = values.get(key, {})
    _require(isinstance(value, dict), source, f"{key}: got {value!r}, expected {{ name = value, ... }}")
    return dict(value)


def _text(values: Mapping[str, Any], key: str, source: str) -> str:
    value = values.get(key)
    fits = isinstance(value, str) and bool(value.strip())
    _require(fits, source, f"{key}: got {value!r}, expected a text")
    return str(value)


def _texts(values: Mapping[str, Any], key: str, source: str, *, distinct: bool = True) -> tuple[str, ...]:
    value = values.get(key, [])
    fits = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    fits = fits and not (distinct and len(set(value)) < len(value))
    _require(fits, source, f"{key}: got {value!r}, expected a list of {'different ' if distinct else ''}texts")
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
    entries: list[str | tuple[str, ...]] = []
    for entry in value:
        names = entry if isinstance(entry, list) else [entry]
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(message)
        entries.append(tuple(names) if isinstance(entry, list) else names[0])
    return tuple(entries)


def _require(condition: bool, source: str, complaint: str) -> None:
    if not condition:
        raise ValueError(f"{source}: {complaint}")


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _listed(names: Iterable[str]) -> str:
    return f"expected one of {', '.join(names)}"
