"""How long a sweep will still take, from the steps that runs have done, the seconds they took, and what came on top.

On top come the start of a process, loading and evaluation: all of the time from a launch to its outcome but the steps.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from momatch.sweep.jobs import Job, Place
from momatch.sweep.run_state import progress


class Pace:
    """Seconds a step, by cell where a run of it is known, else on average; and seconds on top of the steps of a job.

    Args:
        clock: seconds that go by.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str, str], float] = {}
        #: Name of a job under way -> when it was begun, and the steps that were done by then.
        self._begun: dict[str, tuple[float, int]] = {}
        self._on_top: list[float] = []

    def begin(self, job: Job) -> None:
        """Take in that a job is under way; only the first time counts."""
        if job.name not in self._begun:
            self._begun[job.name] = self._clock(), progress(job.directory)[0]

    def end(self, job: Job, seconds: float | None) -> None:
        """Take in that a job is through.

        Args:
            job: that is through.
            seconds: that all steps of its run took; None if it failed.
        """
        begun, done = self._begun.pop(job.name, (None, 0))
        if seconds is None:
            return
        self.learn(job.places[0], job.config.steps, seconds)
        if begun is not None:
            trained = seconds * max(0, job.config.steps - done) / job.config.steps
            self._on_top.append(max(0.0, self._clock() - begun - trained))

    def learn(self, place: Place, steps: int, seconds: float) -> None:
        """Take in that so many steps of a cell took so many seconds."""
        if steps > 0 and seconds > 0:
            self._known[_cell(place)] = seconds / steps

    def left(self, waiting: Sequence[Job], running: Mapping[str, Job], workers: int | None) -> float | None:
        """Seconds until the last job is through; None while nothing is known.

        Args:
            waiting: jobs that are not begun.
            running: jobs under way, by name.
            workers: jobs at a time; None for all of them.
        """
        for job in running.values():
            self.learn(job.places[0], *progress(job.directory))
        if not self._known:
            return None
        under_way = [self._rest(job) for job in running.values()]
        still = [self._seconds(job, progress(job.directory)[0]) for job in waiting]
        lanes = max(1, workers if workers is not None else len(under_way) + len(still))
        return max([(sum(under_way) + sum(still)) / lanes, *under_way, *still])

    def _rest(self, job: Job) -> float:
        """Of a job under way: what its launch takes as a whole less the time since, but no less than its steps need."""
        now, reached = self._clock(), progress(job.directory)[0]
        begun, done = self._begun.get(job.name, (now, reached))
        return max(self._steps(job, reached), self._seconds(job, done) - (now - begun))

    def _seconds(self, job: Job, done: int) -> float:
        return self._steps(job, done) + (fmean(self._on_top) if self._on_top else 0.0)

    def _steps(self, job: Job, done: int) -> float:
        a_step = self._known.get(_cell(job.places[0]), fmean(self._known.values()))
        return max(0, job.config.steps - done) * a_step


def _cell(place: Place) -> tuple[str, str, str]:
    return place.grid, place.row, place.column


def duration(seconds: float) -> str:
    """Seconds as a clock shows them: 0:41, 1:05:00; days where there are some."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02}:{rest:02}" if hours or days else f"{minutes}:{rest:02}"
    return f"{days} d {clock}" if days else clock
