"""Where the runs of a sweep are carried out: in processes of this machine, or handed to a cluster by submitit."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from momatch.storage.durable import json_bytes, read_object, remove_file, write_synced
from momatch.sweep.jobs import Job
from momatch.sweep.worker import Found, carry_out, encode_job, one_line, thread_environment


@runtime_checkable
class Attempt(Protocol):
    """A job that was started."""

    def poll(self) -> Found | None:
        """What came of it; None while it goes on."""

    def stop(self) -> None:
        """Ask it to save and end."""

    def kill(self) -> None:
        """End it."""


#: Starts a job.
Launcher = Callable[[Job], Attempt]


class LocalAttempt:
    """A job in a process of its own on this machine.

    Its task, its outcome and what it prints are files of `folder`; what it printed stays there if it fails.

    Args:
        job: what to do.
        threads: that it may use.
        folder: for its files; made if need be.

    Raises:
        OSError: if a file cannot be written or the process not be started.
    """

    def __init__(self, job: Job, threads: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._task, self._outcome, self._log = (folder / f"{job.name}{end}" for end in (".task", ".outcome", ".log"))
        remove_file(self._outcome)
        write_synced(self._task, json_bytes({"job": encode_job(job), "threads": threads, "parent": os.getpid()}))
        with open(self._log, "wb") as log:
            self._process = self._start(threads, log)

    def _start(self, threads: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        # The child finds what this process finds; without -P a file of the current folder could hide a module.
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "momatch.sweep.worker", str(self._task), str(self._outcome)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths, **thread_environment(threads)},
            # Ctrl-C in the terminal goes to the sweep alone, which asks each run once: asked twice, it would not save itself.
            start_new_session=True,
        )

    def poll(self) -> Found | None:
        """What came of it; None while it goes on."""
        code = self._process.poll()
        if code is None:
            return None
        found = self._read(code)
        for path in (self._task, self._outcome, *([] if found.error else [self._log])):
            remove_file(path)
        # Not empty: another job's files.
        with contextlib.suppress(OSError):
            self._task.parent.rmdir()
        return found

    def _read(self, code: int) -> Found:
        try:
            values = read_object(self._outcome)
        except (ValueError, OSError) as error:
            return Found(error=one_line(str(error)))
        return Found(error=_ending(code, self._log)) if values is None else Found(**values)

    def stop(self) -> None:
        """Ask it to save and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def _ending(code: int, log: Path) -> str:
    """Why a process ended without an outcome."""
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        known = number in set(signal.Signals)
        reason = f"the process was ended by signal {number}" + (f" ({signal.Signals(number).name})" if known else "")
        return reason + (": perhaps the memory ran out" if number == signal.SIGKILL else "")
    return f"the process ended with exit code {code} and no outcome; what it printed: {log}"


class LocalLauncher:
    """Starts jobs in processes of this machine.

    Args:
        threads: of each run.
        folder: for the workers' files.
    """

    def __init__(self, threads: int, folder: Path) -> None:
        self._threads, self._folder = threads, folder

    def __call__(self, job: Job) -> Attempt:
        """Start the job."""
        return LocalAttempt(job, self._threads, self._folder)


class ClusterTask:
    """A job as submitit carries it out: called on the machine that it is given to.

    Args:
        job: what to do.
        threads: that it may use.
    """

    def __init__(self, job: Job, threads: int) -> None:
        self.job, self.threads = job, threads

    def __call__(self) -> Found:
        """Carry it out."""
        try:
            return carry_out(self.job, self.threads)
        except KeyboardInterrupt as error:
            return Found(error=one_line(str(error) or "stopped"))

    def checkpoint(self) -> Any:
        """Called by submitit when the time on a machine is up: the same job again, which goes on from its last checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class ClusterAttempt:
    """A job that was handed to submitit.

    Args:
        submitted: submitit's job.
    """

    def __init__(self, submitted: Any) -> None:
        self._submitted = submitted

    def poll(self) -> Found | None:
        """What came of it; None while it waits or goes on."""
        if not self._submitted.done():
            return None
        try:
            found = self._submitted.result()
        except Exception as error:  # submitit's own, and whatever unpickling may meet
            state, log = self._submitted.state, self._submitted.paths.stderr
            return Found(error=f"{one_line(str(error).partition('----')[0])}; state {state}, what it printed: {log}")
        return found if isinstance(found, Found) else Found(error=f"got {found!r} back, expected an outcome")

    def stop(self) -> None:
        """Take it from the queue, or ask it to save and end."""
        self._submitted.cancel()

    def kill(self) -> None:
        """End it."""
        self._submitted.cancel()


class ClusterLauncher:
    """Hands jobs to Slurm, or to processes of this machine in the same way ("submitit-local", to try it out).

    Args:
        threads: of each run.
        folder: for submitit's files; all machines must see it, as they must see runs and data.
        slurm: hand to Slurm.
        parameters: of submitit's executor, such as slurm_partition.

    Raises:
        ImportError: if submitit is not installed.
        ValueError: if submitit does not know a parameter, or there is no Slurm.
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
            raise ValueError(f"--launcher: submitit refuses: {one_line(str(error))}") from None

    def __call__(self, job: Job) -> Attempt:
        """Submit the job."""
        return ClusterAttempt(self._executor.submit(ClusterTask(job, self._threads)))
