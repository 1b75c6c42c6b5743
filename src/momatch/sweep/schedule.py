"""The loop of a sweep: so many jobs at a time until all are through; a job that fails does not end the others."""

import time
from collections.abc import Callable, Sequence

from momatch.console.signals import StopSignals
from momatch.sweep.jobs import Job
from momatch.sweep.launch import Attempt, Launcher
from momatch.sweep.worker import GRACE, Found, one_line

#: Seconds between looks at the jobs under way.
_PAUSE = 0.2


def carry_out_all(
    jobs: Sequence[Job],
    launcher: Launcher,
    *,
    workers: int | None,
    finished: Callable[[Job, Found], None],
    watch: Callable[[Sequence[Job]], None],
) -> int | None:
    """Carry out jobs in their order. One whose run another process is at work on is put back to the end.

    Args:
        jobs: what to do.
        launcher: starts a job.
        workers: jobs at a time; None for all of them, where something else keeps the queue.
        finished: told what came of each job.
        watch: called again and again with the jobs under way.

    Returns:
        None when all are through; the number of the signal if one asked for an end: then the jobs under way were asked to
        save, and have ended.

    Raises:
        OSError: if `finished` cannot write what it is told; the jobs under way have been asked to save, and have ended.
    """
    waiting = list(jobs)
    running: dict[str, tuple[Job, Attempt]] = {}
    try:
        with StopSignals() as signals:
            while (waiting or running) and signals.received is None:
                while waiting and (workers is None or len(running) < workers):
                    job = waiting.pop(0)
                    _start(job, launcher, running, finished)
                for job, attempt in list(running.values()):
                    found = attempt.poll()
                    if found is None:
                        continue
                    del running[job.name]
                    if found.is_busy:
                        waiting.append(job)
                    else:
                        finished(job, found)
                watch([job for job, _ in running.values()])
                if running:
                    time.sleep(_PAUSE)
        return signals.received
    finally:
        _end(list(running.values()), finished)


def _start(
    job: Job, launcher: Launcher, running: dict[str, tuple[Job, Attempt]], finished: Callable[[Job, Found], None]
) -> None:
    try:
        running[job.name] = job, launcher(job)
    except OSError as error:
        finished(job, Found(error=one_line(f"cannot be started: {error}")))


def _end(running: Sequence[tuple[Job, Attempt]], finished: Callable[[Job, Found], None]) -> None:
    """Ask all that is under way to stop, and wait for it; a run that is through by then counts."""
    for _, attempt in running:
        attempt.stop()
    left = list(running)
    deadline = time.monotonic() + GRACE
    try:
        while left and time.monotonic() < deadline:
            for job, attempt in list(left):
                found = attempt.poll()
                if found is None:
                    continue
                left.remove((job, attempt))
                if found.error is None:
                    finished(job, found)
            time.sleep(_PAUSE if left else 0.0)
    finally:
        # Too slow, or a second Ctrl-C.
        for _, attempt in left:
            attempt.kill()
