"""How long a sweep will still take, from the steps that runs have done and the seconds they took."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from momatch.experiments.jobs import Job, Place
from momatch.experiments.run_state import progress


class Pace:
    """Seconds a step, by cell where a run of it is known, else on average."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], float] = {}

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
        under_way = [self._seconds(job) for job in running.values()]
        still = [self._seconds(job) for job in waiting]
        lanes = max(1, workers if workers is not None else len(under_way) + len(still))
        return max([(sum(under_way) + sum(still)) / lanes, *under_way, *still])

    def _seconds(self, job: Job) -> float:
        done, _ = progress(job.directory)
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
