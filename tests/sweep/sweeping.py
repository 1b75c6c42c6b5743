"""Shared by the tests of sweeps: a grid of tiny runs, its jobs, and a launcher without processes."""

from pathlib import Path

from momatch.config.layers import Layer
from momatch.sweep.grid import parse_grid
from momatch.sweep.jobs import SweepOptions, plan_jobs
from momatch.sweep.worker import run_job

TINY = """
title = "Tiny"
question = "Does it run?"
metrics = ["accuracy"]
seeds = [0, 1]
baseline = ["a", "none"]

[settings]
image_size = 8
labeled_batch_size = 4
unlabeled_batch_size = 4
steps = 2
judge = "head"

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


def options(runs: Path, **given):
    return SweepOptions(
        **{"preset": Layer({}, "preset"), "overrides": {}, "seeds": None, "runs": runs, "data_dir": None, **given}
    )


def jobs_of(*grids, runs: Path, **given):
    return plan_jobs(grids, options(runs, **given))[0]


class Inline:
    """Runs each job at once, in this process; counts them."""

    def __init__(self, *_):
        self.names = []

    def __call__(self, job):
        self.names.append(job.name)
        return Ended(run_job(job, 1))


class Ended:
    """A job that has ended."""

    def __init__(self, result):
        self.result, self.stopped = result, False

    def poll(self):
        return self.result

    def stop(self):
        self.stopped = True

    def kill(self):
        pass
