"""The record of a sweep: the metrics of every run, enough to make all tables again without the runs."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from momatch.config.algorithms import renamed
from momatch.storage.durable import finite, json_bytes, read_object, replace_files

#: Written into the file, so that no other JSON is taken for a record.
FORMAT = "momatch sweep"
VERSION = 1
_REMEDY = "move it away and run the sweep again: finished runs are read, not trained again"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one cell with one seed.

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

    def __post_init__(self) -> None:
        # Records of earlier releases have the former name of a setting.
        object.__setattr__(self, "settings", renamed(self.settings))


@dataclass(frozen=True)
class Record:
    """The results of a sweep so far.

    Attributes:
        grid: name of the grid.
        preset: name of the settings below the grid's.
        overrides: settings of the command line, on top of all others.
        seeds: that were requested.
        outcomes: those known so far, in the order of the grid, then of the seeds.
        environment: command, date, commit, cpu, cores, system, python, torch, numpy, momatch, workers, threads. "made" in the
            file.
    """

    grid: str
    preset: str
    overrides: dict[str, Any]
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    environment: dict[str, Any]


def write_record(path: Path, record: Record) -> None:
    """Replace the record in a file atomically; folders are created as needed. Numbers that are not finite become null.

    Raises:
        OSError: if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values = asdict(record)
    values["made"] = values.pop("environment")
    replace_files({path: json_bytes({"format": FORMAT, "version": VERSION, **finite(values)})})


def read_record(path: Path) -> Record:
    """Read what `write_record` wrote.

    Raises:
        ValueError: if there is no file, or it is damaged, of another version or not a record.
        OSError: if it cannot be read.
    """
    try:
        content = read_object(path)
    except ValueError as error:
        raise ValueError(f"{error}; {_REMEDY}") from error
    if content is None:
        raise ValueError(f"{path}: there is no such file, expected the record of a sweep")
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path}: got the format {content.get('format')!r}, expected {FORMAT!r}: not the record of a sweep"
        )
    if content.get("version") != VERSION:
        raise ValueError(
            f"{path}: got version {content.get('version')!r}, expected {VERSION}; another version of momatch wrote it: "
            "use that one, or run the sweep again"
        )
    values = {"environment" if key == "made" else key: value for key, value in content.items()}
    del values["format"], values["version"]
    try:
        values["seeds"] = tuple(_seed(entry) for entry in _list(values, "seeds"))
        values["outcomes"] = tuple(_outcome(entry) for entry in _list(values, "outcomes"))
        _check_distinct(values["outcomes"])
        return _build(Record, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; the file is damaged; {_REMEDY}") from error


def _outcome(values: Any) -> Outcome:
    _check_type("outcome", values, dict)
    outcome = _build(Outcome, values)
    if (outcome.result is None) == (outcome.error is None):
        raise ValueError(
            f"outcome: got {outcome.run!r} with both a result and an error, or with neither; expected one of them"
        )
    return outcome


def _check_distinct(outcomes: tuple[Outcome, ...]) -> None:
    known: set[tuple[str, str, int]] = set()
    for outcome in outcomes:
        which = (outcome.row, outcome.column, outcome.seed)
        if which in known:
            raise ValueError(
                f"outcomes: got {outcome.row}, {outcome.column}, seed {outcome.seed} twice, expected it once"
            )
        known.add(which)


def _seed(value: Any) -> int:
    _check_type("seed", value, int)
    return int(value)


def _list(values: dict[str, Any], key: str) -> list[Any]:
    _check_type(key, values.get(key), list)
    return list(values[key])


_Kind = TypeVar("_Kind", Record, Outcome)


def _build(kind: type[_Kind], values: dict[str, Any]) -> _Kind:
    """`kind` from the values of a JSON object, which must have its keys and types."""
    expected = {field.name: field.type for field in fields(kind)}
    if values.keys() != expected.keys():
        raise ValueError(f"{kind.__name__.lower()}: got the keys {sorted(values)}, expected {sorted(expected)}")
    for key, value in values.items():
        _check_type(key, value, expected[key])
    return kind(**values)


def _check_type(name: str, value: Any, expected: Any) -> None:
    options = get_args(expected) if get_origin(expected) is UnionType else (expected,)
    types = [get_origin(option) or option for option in options]
    # Not isinstance: true is an int to Python, but no seed.
    if type(value) not in types:
        names = " or ".join("null" if kind is NoneType else kind.__name__ for kind in types)
        raise ValueError(f"{name}: got a {type(value).__name__}, expected {names}")
