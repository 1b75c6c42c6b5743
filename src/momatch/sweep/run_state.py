"""What there is of a run already: in its directory, or in the record of an earlier sweep. No torch."""

from pathlib import Path
from typing import Any, Literal

from momatch.storage.durable import parse_json, read_object
from momatch.storage.run_config import CONFIG, read_config
from momatch.sweep.jobs import Job, Place
from momatch.sweep.record import Outcome

State = Literal["new", "unfinished", "finished"]
#: Bytes at the end of metrics.jsonl that hold a whole line; a line with 1,000 thresholds has some 20,000.
_TAIL = 2**16


def look(job: Job) -> State:
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
            f"{job.directory}: there is a run of other settings ({key}: {there!r} there, {here!r} here); "
            "move it away, or give another --runs"
        )
    return "finished" if (job.directory / "result.json").exists() else "unfinished"


def read_result(directory: Path) -> dict[str, Any]:
    """The figures of a finished run, without lists by class.

    Raises:
        ValueError: if result.json is damaged or not there.
    """
    result = read_object(directory / "result.json")
    if result is None:
        raise ValueError(f"{directory}: there is no result.json, expected a finished run")
    return {key: value for key, value in result.items() if not isinstance(value, list)}


def stands(job: Job, place: Place, outcome: Outcome) -> bool:
    """Whether a recorded outcome still says what would come of a job at one of its places.

    It does if the run succeeded with the same settings and its directory is finished, or is gone. Of a run that is there,
    every dataset that it is to be told apart from must be in the outcome.
    """
    if outcome.error is not None or outcome.run != job.name or outcome.settings != job.settings:
        return False
    if not job.directory.exists():
        return True
    try:
        state = look(job)
    except (ValueError, OSError):
        return False
    if outcome.evaluation is None and job.evaluated(place):
        return False
    return state == "finished" and all(name in (outcome.evaluation or {}) for name in place.outliers)


def progress(directory: Path) -> tuple[int, float]:
    """Steps done and seconds they took, as the last whole line of metrics.jsonl says; (0, 0.0) before there is one."""
    try:
        with open(directory / "metrics.jsonl", "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            line = file.read().split(b"\n")[-2]
        values = parse_json(line)
        return int(values["step"]), float(values["seconds"])
    except (OSError, ValueError, LookupError, TypeError):
        # No line yet, or one that is being written: it is only for the eye.
        return 0, 0.0
