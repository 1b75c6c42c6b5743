"""The record of a sweep: the metrics of every run, enough to make all tables again without the runs."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

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
        _check_keys(values, Record)
        seeds = tuple(_typed("seed", seed, int) for seed in _typed("seeds", values["seeds"], list))
        outcomes = tuple(_outcome(entry) for entry in _typed("outcomes", values["outcomes"], list))
        return Record(
            grid=_typed("grid", values["grid"], str),
            preset=_typed("preset", values["preset"], str),
            overrides=_typed("overrides", values["overrides"], dict),
            seeds=seeds,
            outcomes=outcomes,
            environment=_typed("made", values["environment"], dict),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}; the file is damaged; {_REMEDY}") from error


#: Key of an outcome -> what it may be in JSON.
_OUTCOME_TYPES: dict[str, tuple[type, ...]] = {
    "row": (str,),
    "column": (str,),
    "seed": (int,),
    "run": (str,),
    "settings": (dict,),
    "result": (dict, type(None)),
    "evaluation": (dict, type(None)),
    "error": (str, type(None)),
}


def _outcome(values: Any) -> Outcome:
    values = _typed("outcome", values, dict)
    _check_keys(values, Outcome)
    outcome = Outcome(**{key: _typed(key, values[key], *types) for key, types in _OUTCOME_TYPES.items()})
    if (outcome.result is None) == (outcome.error is None):
        raise ValueError(
            f"outcome: got {outcome.run!r} with both a result and an error, or with neither; expected one of them"
        )
    return outcome


def _check_keys(values: dict[str, Any], kind: type[Record] | type[Outcome]) -> None:
    expected = {field.name for field in fields(kind)}
    if values.keys() != expected:
        raise ValueError(f"{kind.__name__.lower()}: got the keys {sorted(values)}, expected {sorted(expected)}")


def _typed(name: str, value: Any, *types: type) -> Any:
    # Not isinstance: true is an int to Python, but no seed.
    if type(value) not in types:
        expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
        raise ValueError(f"{name}: got a {type(value).__name__}, expected {expected}")
    return value
