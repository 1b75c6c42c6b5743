"""One run of a sweep, in a process of its own: trained or resumed, evaluated, its outcome handed back.

Nothing at the top imports torch: its threads are limited first.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from momatch.config import TrainConfig
from momatch.data.locate import data_root
from momatch.storage.durable import finite, json_bytes, parse_json, replace_files
from momatch.sweep.jobs import Job, Place
from momatch.sweep.run_state import look, read_result

#: What numpy's and torch's libraries read when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
#: Seconds that a run may take to save itself once it is asked to stop.
GRACE = 120.0
#: Seconds to wait for a run that another process still writes: after a kill of the sweep its workers end a moment later.
_RELEASE = 60.0


@dataclass(frozen=True)
class Found:
    """What came of a job; exactly one of `result` and `error` is there.

    Attributes:
        result: the run's result.json without lists by class.
        evaluation: origin of outliers -> figures; None where there is nothing to tell apart.
        error: why it failed, in one line.
        is_busy: it failed because another process, perhaps another sweep, is at work on the run: it is worth waiting for.
    """

    result: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    error: str | None = None
    is_busy: bool = False


def carry_out(job: Job, threads: int) -> Found:
    """Train the job's run, or go on with it, or take it as it is, and evaluate it. Failures are an outcome, not an error.

    Args:
        job: what to do.
        threads: that torch may use.

    Raises:
        Interrupted: after SIGINT or SIGTERM, with everything saved.
    """
    try:
        return _carry_out(job, threads)
    except Exception as error:
        # ValueError and OSError are about data, settings and disks, and say all there is; others may be bugs.
        if isinstance(error, ValueError | OSError):
            return Found(error=one_line(str(error)), is_busy=_is_busy(job.directory))
        traceback.print_exc()
        return Found(error=one_line(f"{type(error).__name__}: {error}"))


def _carry_out(job: Job, threads: int) -> Found:
    limit_threads(threads)
    state = look(job)
    if state != "new":
        _await_release(job.directory)
        state = look(job)
    import torch

    from momatch.training.fit import fit
    from momatch.training.run import Run

    torch.set_num_threads(threads)
    if state != "finished":
        fit(replace(job.config, resume=state == "unfinished"))
    result = read_result(job.directory)
    if not any(job.evaluated(place) for place in job.places):
        return Found(result)
    from momatch.inference.evaluate import evaluate_run

    # Where this sweep looked for the datasets, which need not be where an earlier one found them.
    place = str(data_root(job.config.data_dir))
    figures = evaluate_run(Run.load(job.directory), outliers=job.outliers, data_dir=place)
    return Found(result, finite(figures["outliers"]))


def limit_threads(threads: int) -> None:
    """Tell the libraries that are not loaded yet how many threads they may use."""
    os.environ.update(thread_environment(threads))


def thread_environment(threads: int) -> dict[str, str]:
    """The variables that limit the threads of a process which is started with them."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def one_line(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split()) or "no reason given"


def _await_release(directory: Path) -> None:
    """Wait until no other process writes the run.

    Raises:
        OSError: if one goes on for long.
    """
    if _is_busy(directory, _RELEASE):
        raise OSError(f"{directory}: another process is at work on this run")


def _is_busy(directory: Path, seconds: float = 0.0) -> bool:
    """Whether another process writes the run, for so many seconds at least. This one has given its own lock back by then."""
    path = directory / "run.lock"
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        # No locks there: training has a word on it.
        return False
    lock.release()
    return False


def stop_without(parent: int) -> None:
    """Once the process `parent` is no longer this one's parent, ask this one to stop, and after `GRACE` end it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def encode_job(job: Job) -> dict[str, Any]:
    """The job as plain values for JSON."""
    return asdict(job)


def decode_job(values: Mapping[str, Any]) -> Job:
    """What `encode_job` made a value of."""
    places = tuple(Place(**{**entry, "outliers": tuple(entry["outliers"])}) for entry in values["places"])
    return Job(TrainConfig.from_dict(values["config"]), places)


def main(arguments: list[str]) -> int:
    """Do the task in one file and write what came of it to another: ``TASK.json OUTCOME.json``; returns the exit code."""
    task, outcome = (Path(argument) for argument in arguments)
    values = parse_json(task.read_bytes())
    stop_without(values["parent"])
    try:
        found = carry_out(decode_job(values["job"]), values["threads"])
    except KeyboardInterrupt as error:
        # Saved; the sweep that asked for it goes on with it another time.
        return int(getattr(error, "exit_code", 130))
    replace_files({outcome: json_bytes(asdict(found))})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
