import io
import re

import pytest

from momatch.console import progress as module
from momatch.console.progress import CountProgress, Progress
from momatch.console.wording import format_duration

METRICS = {
    "step": 20,
    "loss": 0.412,
    "supervised_loss": 0.21,
    "unlabeled_loss": 0.18,
    "constraint_loss": 0.022,
    "fairness_loss": 0.0,
    "utilisation": 0.812,
    "pseudo_label_accuracy": 0.979,
    "lr": 0.03,
    "skipped_steps": 0,
}


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def forward(seconds):
        now[0] += seconds

    return forward


def screen(raw):
    """The lines that a person sees: a carriage return and the erasing of a line are obeyed."""
    lines = []
    for line in raw.split("\n"):
        shown = re.split(r"\r\x1b\[2K", line)[-1]
        lines.append(re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\r", "", shown).rstrip())
    return lines


@pytest.fixture
def terminal(monkeypatch):
    """Opens a live display of some width; returns it and what is on the screen."""

    def open_one(columns, **arguments):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        stream = io.StringIO()
        return Progress(stream=stream, live=True, **arguments), lambda: screen(stream.getvalue())

    return open_one


def plain(**arguments):
    stream = io.StringIO()
    return Progress(stream=stream, **arguments), lambda: stream.getvalue().splitlines()


def test_a_plain_line_says_it_all(clock):
    progress, lines = plain(total_steps=5000)
    clock(20)
    progress.update(100, METRICS | {"test_accuracy": 0.964}, images=12000)
    progress.close()
    assert lines() == [
        "step 100/5000  test 96.4%  16 min 20 s left  600 img/s  loss 0.412 = sup 0.210 + unl 0.180 + mom 0.022  "
        "81.2% of pseudo-labels used, 97.9% correct"
    ]


def test_each_update_is_a_line_and_the_test_accuracy_stays(clock):
    progress, lines = plain(total_steps=60)
    for step, accuracy in ((20, 0.0), (40, None), (60, 0.5)):
        clock(1)
        progress.update(step, METRICS | {"test_accuracy": accuracy}, images=100)
    assert [re.search(r"test ([\d.]+%)", line)[1] for line in lines()] == ["0.0%", "0.0%", "50.0%"]


def test_after_a_resume_pace_is_that_of_this_process(clock):
    progress, lines = plain(total_steps=2000, start_step=1000)
    clock(10)
    progress.update(1010, METRICS, images=1200)
    assert "120 img/s" in lines()[0]
    assert "16 min 30 s left" in lines()[0]  # 990 steps of a second


def test_pace_forgets_a_slow_start(clock):
    progress, lines = plain(total_steps=1000)
    clock(3600)
    progress.update(10, METRICS, images=1200)
    for step in range(20, 320, 10):
        clock(1)
        progress.update(step, METRICS, images=1200)
    assert "1,200 img/s" in lines()[-1]
    assert "1 min 09 s left" in lines()[-1]  # 690 steps, ten a second


def test_the_end_says_how_long_it_took(clock):
    progress, lines = plain(total_steps=20)
    clock(3725)
    progress.update(20, METRICS, images=3)
    assert "took 1 h 02 min  0.0 img/s" in lines()[0]


def test_long_runs_are_told_in_days(clock):
    progress, lines = plain(total_steps=2**20)
    clock(1)
    progress.update(1, METRICS, images=960)
    assert "12 d 03 h left" in lines()[0]


def test_nothing_is_made_up_before_the_first_step(clock):
    progress, lines = plain(total_steps=20, start_step=7)
    progress.update(7, {}, images=0)
    assert lines() == ["step 7/20"]


def test_unknown_values_are_left_out_and_a_nan_loss_is_shown(clock):
    progress, lines = plain(total_steps=20)
    metrics = {"loss": float("nan"), "supervised_loss": float("inf"), "unlabeled_loss": None}
    progress.update(1, metrics | {"utilisation": 0.5, "pseudo_label_accuracy": float("nan")}, images=0)
    progress.update(2, {"utilisation": float("nan"), "test_accuracy": float("nan"), "skipped_steps": 3}, images=0)
    assert lines() == ["step 1/20  loss nan (sup inf)  50.0% of pseudo-labels used", "step 2/20  3 steps skipped"]


def test_weighted_parts_are_not_said_to_add_up(clock):
    progress, lines = plain(total_steps=20)
    progress.update(1, {"loss": 0.3, "supervised_loss": 0.2, "constraint_loss": 12345.0}, images=0)
    assert lines()[0].startswith("step 1/20  loss 0.300 (sup 0.200, mom 1.23e+04)")


def test_a_reader_that_is_gone_does_not_end_the_run():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    progress = Progress(20, stream=Gone())
    progress.update(1, METRICS, images=1)
    progress.message("saved")
    closed = io.StringIO()
    closed.close()
    progress = Progress(20, stream=closed, live=False)
    progress.update(1, METRICS, images=1)
    progress.close()


def test_the_standard_error_is_the_default(capsys):
    progress = Progress(20)
    progress.message("hello")
    assert capsys.readouterr().err == "hello\n"


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_a_terminal_has_one_line_that_fits(terminal, clock, columns):
    progress, shown = terminal(columns, total_steps=5000)
    for step in range(0, 2000, 20):
        clock(1)
        progress.update(step, METRICS | {"test_accuracy": 0.964}, images=2400)
    progress.close()
    line, *rest = shown()
    assert rest == [""]  # where the prompt will stand
    assert len(line) <= columns
    assert line.startswith("step 1980/5000")
    assert ("test 96.4%  2 min 31 s left" in line) == (columns >= 80)
    assert ("97.9% correct" in line) == (columns == 200)


def test_what_is_said_after_the_last_step_stands_below_the_line(terminal, clock):
    progress, shown = terminal(80, total_steps=50)
    clock(1)
    progress.update(50, METRICS, images=10)
    progress.message("finished")
    progress.close()
    line, *rest = shown()
    assert line.startswith("step 50/50  took 1.0 s")
    assert rest == ["finished", ""]


def test_messages_stand_above_the_live_line(terminal, clock):
    progress, shown = terminal(60, total_steps=50)
    clock(1)
    progress.update(10, METRICS, images=10)
    message = "step 10: the checkpoint [saved] " + 50 * "x"  # longer than the line, and no markup
    progress.message(message)
    clock(1)
    progress.update(50, METRICS, images=10)
    progress.close()
    progress.close()
    first, line, rest = shown()
    assert first == message
    assert line.startswith("step 50/50  took 2.0 s")
    assert rest == ""


def test_a_terminal_keeps_its_cursor_and_a_run_outlives_its_terminal(monkeypatch, clock):
    stream = io.StringIO()
    progress = Progress(50, stream=stream, live=True)
    progress.update(1, METRICS, images=0)
    assert "\x1b[?25l" not in stream.getvalue()

    def gone(text):
        raise BrokenPipeError

    monkeypatch.setattr(stream, "write", gone)
    progress.update(2, METRICS, images=0)
    progress.message("saved")
    progress.close()


def test_counts_are_lines_now_and_then(clock, capsys):
    with CountProgress(100, label="embed", done=10) as progress:
        for _ in range(9):
            clock(10)
            progress.add(10)
    assert capsys.readouterr().err.splitlines() == [
        "embed: 40 of 100 images  1 min 00 s left  1.0 image/s",
        "embed: 70 of 100 images  30 s left  1.0 image/s",
        "embed: 100 of 100 images  took 1 min 30 s  1.0 image/s",
    ]
    assert progress.done == 100
    with CountProgress(100, label="embed", enabled=False) as progress:
        clock(100)
        progress.add(5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (45.0, "45 s"),
        (185.0, "3 min 05 s"),
        (7620.0, "2 h 07 min"),
        (273_600.0, "3 d 04 h"),
        (59.6, "1 min 00 s"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text
