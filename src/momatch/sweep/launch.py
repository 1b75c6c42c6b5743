"""Running the jobs of a sweep: several at a time, in processes of this machine or handed to a cluster by submitit."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from momatch.console.signals import StopSignals
from momatch.storage.durable import json_bytes, read_object, remove_file, write_synced
from momatch.sweep.jobs import Job
from momatch.sweep.worker import GRACE, JobResult, encode_job, one_line, run_job, thread_environment

#: Seconds between two looks at the running jobs.
_PAUSE = 0.2


@runtime_checkable
class RunningJob(Protocol):
    """A job that was started."""

    def poll(self) -> JobResult | None:
        """Its result; None while it is running."""

    def stop(self) -> None:
        """Ask it to save and exit."""

    def kill(self) -> None:
        """End it at once."""


#: Starts a job.
Launcher = Callable[[Job], RunningJob]


def run_jobs(
    jobs: Sequence[Job],
    launcher: Launcher,
    *,
    workers: int | None,
    finished: Callable[[Job, JobResult], None],
    watch: Callable[[Sequence[Job]], None],
) -> int | None:
    """Run jobs in their order; a failure does not stop the others. A run that another process is writing is tried again last.

    Args:
        jobs: to run.
        launcher: starts a job.
        workers: jobs at a time; None for all, if a cluster keeps the queue.
        finished: called with the result of each job.
        watch: called repeatedly with the running jobs.

    Returns:
        None when all are done; the number of the signal that stopped the sweep, after the running jobs have saved and exited.

    Raises:
        OSError: from `finished`, after the running jobs have saved and exited.
    """
    waiting = list(jobs)
    running: dict[str, tuple[Job, RunningJob]] = {}
    try:
        with StopSignals() as signals:
            while (waiting or running) and signals.received is None:
                while waiting and (workers is None or len(running) < workers):
                    job = waiting.pop(0)
                    try:
                        running[job.name] = job, launcher(job)
                    except OSError as error:
                        finished(job, JobResult(error=one_line(f"cannot be started: {error}")))
                for job, process in list(running.values()):
                    result = process.poll()
                    if result is None:
                        continue
                    del running[job.name]
                    if result.is_busy:
                        waiting.append(job)
                    else:
                        finished(job, result)
                watch([job for job, _ in running.values()])
                if running:
                    time.sleep(_PAUSE)
        return signals.received
    finally:
        _stop(list(running.values()), finished)


def _stop(running: Sequence[tuple[Job, RunningJob]], finished: Callable[[Job, JobResult], None]) -> None:
    """Ask all running jobs to stop and wait for them; one that finishes meanwhile counts."""
    for _, process in running:
        process.stop()
    left = list(running)
    deadline = time.monotonic() + GRACE
    try:
        while left and time.monotonic() < deadline:
            for job, process in list(left):
                result = process.poll()
                if result is None:
                    continue
                left.remove((job, process))
                if result.error is None:
                    finished(job, result)
            time.sleep(_PAUSE if left else 0.0)
    finally:
        # Too slow, or a second Ctrl-C.
        for _, process in left:
            process.kill()


class LocalProcess:
    """A job in a process of its own on this machine.

    Its task, result and output are files in `folder`; the output is kept if the job fails.

    Args:
        job: to run.
        threads: of the run.
        folder: for the files; created as needed.

    Raises:
        OSError: if a file cannot be written or the process cannot be started.
    """

    def __init__(self, job: Job, threads: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._task, self._result, self._log = (folder / f"{job.name}{end}" for end in (".task", ".result", ".log"))
        remove_file(self._result)
        write_synced(self._task, json_bytes({"job": encode_job(job), "threads": threads, "parent": os.getpid()}))
        with open(self._log, "wb") as log:
            self._process = self._start(threads, log)

    def _start(self, threads: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        # The child finds what this process finds; without -P a file in the current folder could hide a module.
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "momatch.sweep.worker", str(self._task), str(self._result)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths, **thread_environment(threads)},
            # Ctrl-C in the terminal reaches the sweep alone, which asks each run once: asked twice, it would not save itself.
            start_new_session=True,
        )

    def poll(self) -> JobResult | None:
        """Its result; None while it is running."""
        code = self._process.poll()
        if code is None:
            return None
        result = self._read(code)
        for path in (self._task, self._result, *([] if result.error else [self._log])):
            remove_file(path)
        # Not empty: other jobs' files.
        with contextlib.suppress(OSError):
            self._task.parent.rmdir()
        return result

    def _read(self, code: int) -> JobResult:
        try:
            values = read_object(self._result)
        except (ValueError, OSError) as error:
            return JobResult(error=one_line(str(error)))
        return JobResult(error=_exit_reason(code, self._log)) if values is None else JobResult(**values)

    def stop(self) -> None:
        """Ask it to save and exit."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


def _exit_reason(code: int, log: Path) -> str:
    """Why a process exited without a result."""
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        known = number in set(signal.Signals)
        reason = f"the process was ended by signal {number}" + (f" ({signal.Signals(number).name})" if known else "")
        return reason + (": perhaps out of memory" if number == signal.SIGKILL else "")
    return f"the process exited with code {code} and no result; see its output in {log}"


class LocalLauncher:
    """Starts jobs in processes of this machine.

    Args:
        threads: of each run.
        folder: for the workers' files.
    """

    def __init__(self, threads: int, folder: Path) -> None:
        self._threads, self._folder = threads, folder

    def __call__(self, job: Job) -> RunningJob:
        """Start the job."""
        return LocalProcess(job, self._threads, self._folder)


class ClusterTask:
    """A job as submitit runs it, on the machine that the cluster chooses.

    Args:
        job: to run.
        threads: of the run.
    """

    def __init__(self, job: Job, threads: int) -> None:
        self.job, self.threads = job, threads

    def __call__(self) -> JobResult:
        """Run it."""
        try:
            return run_job(self.job, self.threads)
        except KeyboardInterrupt as error:
            return JobResult(error=one_line(str(error) or "stopped"))

    def checkpoint(self) -> Any:
        """Called by submitit when the job's time is up: submit it again, to resume from its last checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class ClusterJob:
    """A job that was handed to submitit.

    Args:
        submitted: submitit's job.
    """

    def __init__(self, submitted: Any) -> None:
        self._submitted = submitted

    def poll(self) -> JobResult | None:
        """Its result; None while it is queued or running."""
        if not self._submitted.done():
            return None
        try:
            result = self._submitted.result()
        except Exception as error:  # submitit's own, and whatever unpickling may meet
            state, log = self._submitted.state, self._submitted.paths.stderr
            return JobResult(
                error=f"{one_line(str(error).partition('----')[0])}; state {state}, see its output in {log}"
            )
        return result if isinstance(result, JobResult) else JobResult(error=f"got {result!r}, expected a result")

    def stop(self) -> None:
        """Take it off the queue, or ask it to save and exit."""
        self._submitted.cancel()

    def kill(self) -> None:
        """The same: submitit knows one way to end a job."""
        self._submitted.cancel()


class ClusterLauncher:
    """Hands jobs to Slurm, or in the same way to processes of this machine ("submitit-local", to try it out).

    Args:
        threads: of each run.
        folder: for submitit's files; like runs and data it must be visible from all machines.
        slurm: submit to Slurm.
        parameters: of submitit's executor, such as slurm_partition.

    Raises:
        ImportError: if submitit is not installed.
        ValueError: if submitit does not accept a parameter, or Slurm is not available.
    """

    def __init__(self, threads: int, folder: Path, *, slurm: bool, parameters: dict[str, Any]) -> None:
        try:
            import submitit
        except ImportError:
            raise ImportError(
                "--launcher: got slurm or submitit-local, which need the package submitit; "
                "install it with: pip install 'momatch[cluster]'",
                name="submitit",
            ) from None
        self._threads = threads
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster="slurm" if slurm else "local")
            self._executor.update_parameters(**parameters)
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"--launcher: submitit reports: {one_line(str(error))}") from None

    def __call__(self, job: Job) -> RunningJob:
        """Submit the job."""
        return ClusterJob(self._executor.submit(ClusterTask(job, self._threads)))
