"""What is shown while a sweep goes on, and the time that is left."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from momatch.sweep.grid import parse_grid
from momatch.sweep.live import Board
from momatch.sweep.pace import Pace, duration
from momatch.sweep.record import Outcome
from tests.sweep.sweeping import TINY, jobs_of, tiny


@pytest.fixture
def jobs(tmp_path):
    found = jobs_of(tiny(), tiny(name="other"), runs=tmp_path)
    return [replace(job, config=replace(job.config, steps=100)) for job in found]


def outcomes(job, accuracy=None, error=None):
    result = None if accuracy is None else {"test_accuracy": accuracy, "seconds": 50.0}
    return {
        place: Outcome(place.row, place.column, place.seed, job.name, job.settings, result, None, error)
        for place in job.places
    }


def shown(jobs, *, terminal, width=200):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, height=100, color_system=None)
    board = Board([tiny(), tiny(name="other")], jobs, workers=2, console=console)
    with board:
        board.found(jobs[0], outcomes(jobs[0], 0.975), quietly=True)
        board.watch(jobs[1:3])
        board.found(jobs[1], outcomes(jobs[1], error="disk full"))
        board.watch(jobs[2:3])
        board.found(jobs[3], outcomes(jobs[3], 0.965))
    return console.file.getvalue()


def test_plain_lines(jobs):
    lines = shown(jobs, terminal=False).splitlines()
    assert lines == [
        "2 of 6: tiny: a, 1st, seed 0 (also other: a, 1st): failed: disk full; 1 running, 3 waiting, 1 failed, "
        "about 1:40 left",
        "3 of 6: tiny: a, none, seed 1 (also other: a, none): accuracy 96.50 % in 0:50; 1 running, 2 waiting, 1 failed, "
        "about 1:15 left",
    ]


def test_tables_in_a_terminal(jobs):
    (jobs[2].directory).mkdir()
    (jobs[2].directory / "metrics.jsonl").write_text(json.dumps({"step": 40, "seconds": 20.0}) + "\n")
    text = shown(jobs, terminal=True)
    last = text[text.rindex("3 of 6 runs through") :]
    assert "1 running, 2 waiting, 1 failed, about 1:05 left" in last
    assert "97.00 2/2" in last, "the mean of both seeds"
    assert "0/2 1 failed" in last
    assert "0/2 40%" in last
    assert "other: accuracy, %" in last


def test_names_are_no_markup(tmp_path):
    text = TINY.replace('"a"', '"[red]a[/]"').replace('"1st"', '"[b]"')
    grid = parse_grid("odd", text, source="odd")
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=50, color_system=None)
    with Board([grid], jobs_of(grid, runs=tmp_path), workers=1, console=console):
        pass
    assert "[red]a[/]" in console.file.getvalue()
    assert "[b]" in console.file.getvalue()


def test_pace_knows_cells_and_else_the_mean(jobs):
    pace = Pace()
    assert pace.left(jobs, {}, 2) is None
    pace.learn(jobs[0].places[0], 10, 10.0)
    pace.learn(jobs[1].places[0], 10, 30.0)
    assert pace.left([jobs[0]], {}, 1) == 100
    assert pace.left([jobs[4]], {}, 1) == 300, "the other seed of the same cell"
    assert pace.left([jobs[2]], {}, 1) == 200
    assert pace.left([jobs[0], jobs[1], jobs[2]], {}, 2) == 300
    assert pace.left([jobs[0], jobs[1], jobs[2]], {}, None) == 300, "all at a time"
    assert pace.left([jobs[1]], {}, 8) == 300, "a run has one worker"
    pace.learn(jobs[1].places[0], 0, 30.0)
    assert pace.left([jobs[1]], {}, 1) == 300


def test_pace_counts_what_comes_on_top_of_the_steps(jobs):
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.begin(jobs[0])
    pace.begin(jobs[1])
    now[0] = 130.0
    pace.end(jobs[0], 100.0)
    assert pace.left([jobs[4]], {}, 1) == 130, "a second a step and half a minute on top"
    pace.begin(jobs[4])
    now[0] = 170.0
    assert pace.left([], {jobs[4].name: jobs[4]}, 1) == 100, "it has had its 40 s, but no step yet"
    pace.end(jobs[1], None)
    assert pace.left([jobs[2]], {}, 1) == 130, "a failure teaches nothing"


def test_pace_of_jobs_that_are_only_evaluated(jobs):
    now = [0.0]
    pace = Pace(lambda: now[0])
    for job in jobs[:3]:
        job.directory.mkdir()
        (job.directory / "metrics.jsonl").write_text(json.dumps({"step": 100, "seconds": 900.0}) + "\n")
    pace.begin(jobs[0])
    now[0] = 20.0
    pace.end(jobs[0], 900.0)
    assert pace.left([jobs[1], jobs[2]], {}, 1) == 40
    pace.begin(jobs[1])
    now[0] = 25.0
    assert pace.left([jobs[2]], {jobs[1].name: jobs[1]}, 1) == 35


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (41, "0:41"), (3599.6, "1:00:00"), (90061, "1 d 1:01:01"), (86400, "1 d 0:00:00")],
)
def test_duration(seconds, text):
    assert duration(float(seconds)) == text
