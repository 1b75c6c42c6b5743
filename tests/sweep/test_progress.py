"""What is shown while a sweep is running, and the time left."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from momatch.sweep.grid import parse_grid
from momatch.sweep.progress import SweepProgress, TimeLeft
from momatch.sweep.record import Outcome
from tests.sweep.sweeping import TINY, jobs_of, tiny


@pytest.fixture
def jobs(tmp_path):
    found = jobs_of(tiny(), tiny(name="other"), runs=tmp_path)
    return [replace(job, config=replace(job.config, steps=100)) for job in found]


def outcomes(job, accuracy=None, error=None):
    result = None if accuracy is None else {"test_accuracy": accuracy, "seconds": 50.0}
    return {
        trial: Outcome(trial.row, trial.column, trial.seed, job.name, job.settings, result, None, error)
        for trial in job.trials
    }


def shown(jobs, *, terminal, width=200):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, height=100, color_system=None)
    progress = SweepProgress([tiny(), tiny(name="other")], jobs, workers=2, console=console)
    with progress:
        progress.add(jobs[0], outcomes(jobs[0], 0.975), quiet=True)
        progress.watch(jobs[1:3])
        progress.add(jobs[1], outcomes(jobs[1], error="disk full"))
        progress.watch(jobs[2:3])
        progress.add(jobs[3], outcomes(jobs[3], 0.965))
    return console.file.getvalue()


def test_plain_lines(jobs):
    lines = shown(jobs, terminal=False).splitlines()
    assert lines == [
        "2 of 6: tiny: a, 1st, seed 0 (also other: a, 1st): failed: disk full; 1 running, 3 waiting, 1 failed, "
        "about 1 min 40 s left",
        "3 of 6: tiny: a, none, seed 1 (also other: a, none): accuracy 96.50 % in 50 s; 1 running, 2 waiting, 1 failed, "
        "about 1 min 15 s left",
    ]


def test_tables_in_a_terminal(jobs):
    (jobs[2].directory).mkdir()
    (jobs[2].directory / "metrics.jsonl").write_text(json.dumps({"step": 40, "seconds": 20.0}) + "\n")
    text = shown(jobs, terminal=True)
    last = text[text.rindex("3 of 6 runs done") :]
    assert "1 running, 2 waiting, 1 failed, about 1 min 05 s left" in last
    assert "97.00 2/2" in last, "the mean of both seeds"
    assert "0/2 1 failed" in last
    assert "0/2 40%" in last
    assert "other: accuracy, %" in last


def test_names_are_no_markup(tmp_path):
    text = TINY.replace('"a"', '"[red]a[/]"').replace('"1st"', '"[b]"')
    grid = parse_grid("odd", text, source="odd")
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=50, color_system=None)
    with SweepProgress([grid], jobs_of(grid, runs=tmp_path), workers=1, console=console):
        pass
    assert "[red]a[/]" in console.file.getvalue()
    assert "[b]" in console.file.getvalue()


def test_time_left_knows_cells_and_else_the_mean(jobs):
    time_left = TimeLeft()
    assert time_left.estimate(jobs, {}, 2) is None
    time_left.learn(jobs[0].trials[0], 10, 10.0)
    time_left.learn(jobs[1].trials[0], 10, 30.0)
    assert time_left.estimate([jobs[0]], {}, 1) == 100
    assert time_left.estimate([jobs[4]], {}, 1) == 300, "the other seed of the same cell"
    assert time_left.estimate([jobs[2]], {}, 1) == 200
    assert time_left.estimate([jobs[0], jobs[1], jobs[2]], {}, 2) == 300
    assert time_left.estimate([jobs[0], jobs[1], jobs[2]], {}, None) == 300, "all at a time"
    assert time_left.estimate([jobs[1]], {}, 8) == 300, "a run has one worker"
    time_left.learn(jobs[1].trials[0], 0, 30.0)
    assert time_left.estimate([jobs[1]], {}, 1) == 300


def test_time_left_counts_what_comes_on_top_of_the_steps(jobs):
    now = [0.0]
    time_left = TimeLeft(lambda: now[0])
    time_left.begin(jobs[0])
    time_left.begin(jobs[1])
    now[0] = 130.0
    time_left.end(jobs[0], 100.0)
    assert time_left.estimate([jobs[4]], {}, 1) == 130, "a second a step and half a minute on top"
    time_left.begin(jobs[4])
    now[0] = 170.0
    assert time_left.estimate([], {jobs[4].name: jobs[4]}, 1) == 100, "it has had its 40 s, but no step yet"
    time_left.end(jobs[1], None)
    assert time_left.estimate([jobs[2]], {}, 1) == 130, "a failure teaches nothing"


def test_time_left_of_jobs_that_are_only_evaluated(jobs):
    now = [0.0]
    time_left = TimeLeft(lambda: now[0])
    for job in jobs[:3]:
        job.directory.mkdir()
        (job.directory / "metrics.jsonl").write_text(json.dumps({"step": 100, "seconds": 900.0}) + "\n")
    time_left.begin(jobs[0])
    now[0] = 20.0
    time_left.end(jobs[0], 900.0)
    assert time_left.estimate([jobs[1], jobs[2]], {}, 1) == 40
    time_left.begin(jobs[1])
    now[0] = 25.0
    assert time_left.estimate([jobs[2]], {jobs[1].name: jobs[1]}, 1) == 35
