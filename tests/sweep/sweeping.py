"""Shared by the tests of sweeps: a grid of runs that take a moment, jobs made of it, and a launcher without processes."""

from pathlib import Path

from momatch.config.layers import Layer
from momatch.sweep.grid import parse_grid
from momatch.sweep.jobs import Wishes, plan_jobs
from momatch.sweep.worker import carry_out

TINY = """
title = "Tiny"
question = "Does it run?"
figures = ["accuracy"]
seeds = [0, 1]
baseline = ["a", "none"]

[settings]
image_size = 8
labeled_batch_size = 4
unlabeled_batch_size = 4
steps = 2

[rows]
"a" = { head = "aagmm" }
"k" = { head = "kmeans", columns = ["1st"] }

[columns]
"none" = { moment_order = 0 }
"1st" = { moment_order = 1 }
"""


def tiny(extra: str = "", name: str = "tiny"):
    """The grid; `extra` lines come before its tables."""
    return parse_grid(name, extra + TINY, source=name)


def wishes(runs: Path, **given):
    return Wishes(
        **{"preset": Layer({}, "preset"), "overrides": {}, "seeds": None, "runs": runs, "data_dir": None, **given}
    )


def jobs_of(*grids, runs: Path, **given):
    return plan_jobs(grids, wishes(runs, **given))[0]


class Inline:
    """Carries out each job at once, in this process; counts them."""

    def __init__(self, *_):
        self.names = []

    def __call__(self, job):
        self.names.append(job.name)
        return Through(carry_out(job, 1))


class Through:
    """An attempt that is through."""

    def __init__(self, found):
        self.found, self.stopped = found, False

    def poll(self):
        return self.found

    def stop(self):
        self.stopped = True

    def kill(self):
        pass
