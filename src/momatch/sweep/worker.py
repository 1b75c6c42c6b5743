"""One run of a sweep in a process of its own: train or resume it, evaluate it, hand its result back.

Nothing at the top imports torch: the number of its threads is set first.
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
from momatch.sweep.jobs import Job, Trial, read_result, run_state

#: Read by the libraries of numpy and torch when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
#: Seconds that a run has to save its state after SIGTERM.
GRACE = 120.0
#: Seconds to wait for a run that another process is writing: the workers of a killed sweep end a moment after it.
_RELEASE = 60.0


@dataclass(frozen=True)
class JobResult:
    """The result of a job; exactly one of `result` and `error` is set.

    Attributes:
        result: the run's result.json without per-class lists.
        evaluation: origin of outliers -> metrics; None if the job needs no outlier detection.
        error: why it failed, in one line.
        is_busy: it failed because another process, perhaps another sweep, is working on the run; try again later.
    """

    result: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    error: str | None = None
    is_busy: bool = False


def run_job(job: Job, threads: int) -> JobResult:
    """Train the job's run, resume it or reuse it if finished, and evaluate it. A failure is a result, not an exception.

    Args:
        job: what to run.
        threads: of torch.

    Raises:
        Interrupted: after SIGINT or SIGTERM, with everything saved.
    """
    try:
        return _run_job(job, threads)
    except Exception as error:
        # ValueError and OSError are about data, settings and disks and explain themselves; others may be bugs.
        if isinstance(error, ValueError | OSError):
            return JobResult(error=one_line(str(error)), is_busy=_is_busy(job.directory))
        traceback.print_exc()
        return JobResult(error=one_line(f"{type(error).__name__}: {error}"))


def _run_job(job: Job, threads: int) -> JobResult:
    limit_threads(threads)
    state = run_state(job)
    if state != "new":
        _await_release(job.directory)
        state = run_state(job)
    import torch

    from momatch.training.fit import fit
    from momatch.training.run import Run

    torch.set_num_threads(threads)
    if state != "finished":
        fit(replace(job.config, resume=state == "unfinished"), trust_code=job.trust_code)
    result = read_result(job.directory)
    if not job.needs_evaluation:
        return JobResult(result)
    from momatch.inference.evaluate import evaluate_run

    # Where this sweep looked for the datasets, which need not be where the run found them.
    data_dir = str(data_root(job.config.data_dir))
    metrics = evaluate_run(Run.load(job.directory, trust_code=job.trust_code), outliers=job.outliers, data_dir=data_dir)
    return JobResult(result, finite(metrics["outliers"]))


def limit_threads(threads: int) -> None:
    """Limit the threads of libraries that are not loaded yet."""
    os.environ.update(thread_environment(threads))


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that limit the threads of a new process."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def one_line(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split()) or "no reason given"


def _await_release(directory: Path) -> None:
    """Wait until no other process is writing the run.

    Raises:
        OSError: if one still is after `_RELEASE` seconds.
    """
    if _is_busy(directory, _RELEASE):
        raise OSError(f"{directory}: another process is working on this run")


def _is_busy(directory: Path, seconds: float = 0.0) -> bool:
    """Whether another process holds the run's lock for at least that long; this process has released its own by now."""
    path = directory / "run.lock"
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        # A file system without locks: training reports it.
        return False
    lock.release()
    return False


def stop_without(parent: int) -> None:
    """Stop this process once `parent` is no longer its parent: SIGTERM first, SIGKILL after `GRACE`."""

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
    """The job that `encode_job` encoded."""
    trials = tuple(Trial(**{**entry, "outliers": tuple(entry["outliers"])}) for entry in values["trials"])
    return Job(TrainConfig.from_dict(values["config"]), trials, values["trust_code"])


def main(arguments: list[str]) -> int:
    """Run the job in the file TASK and write its result to the file RESULT; returns the exit code."""
    task, output = (Path(argument) for argument in arguments)
    values = parse_json(task.read_bytes())
    stop_without(values["parent"])
    try:
        result = run_job(decode_job(values["job"]), values["threads"])
    except KeyboardInterrupt as error:
        # The run is saved; the next sweep resumes it.
        return int(getattr(error, "exit_code", 130))
    replace_files({output: json_bytes(asdict(result))})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
