import fcntl
import io
import os
import pty
import re
import struct
import termios

import pytest

from momatch.console import progress as module
from momatch.console.progress import Progress

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


class Terminal:
    """A pseudo-terminal of some width: the stream that a program writes to, and what a person sees."""

    def __init__(self, columns):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
        self.stream = os.fdopen(theirs, "w")

    def raw(self):
        self.stream.flush()
        os.set_blocking(self._ours, False)
        chunks = []
        try:
            while chunk := os.read(self._ours, 65536):
                chunks.append(chunk)
        except BlockingIOError:
            pass
        return b"".join(chunks).decode()

    def close(self):
        self.stream.close()
        os.close(self._ours)


def screen(raw):
    """The lines that are left when carriage returns have been obeyed."""
    lines = []
    for line in raw.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


@pytest.fixture
def terminal():
    opened = []

    def open_one(columns):
        opened.append(Terminal(columns))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def plain(**arguments):
    stream = io.StringIO()
    return Progress(stream=stream, **arguments), lambda: stream.getvalue().splitlines()


def test_a_plain_line_says_it_all(clock):
    progress, lines = plain(total_steps=5000)
    clock(20)
    progress.update(100, METRICS | {"test_accuracy": 0.964}, images=12000)
    progress.close()
    assert lines() == [
        "step 100/5000  loss 0.412 = sup 0.210 + unl 0.180 + mom 0.022  81.2% of pseudo-labels used, 97.9% right  "
        "test 96.4%  600 img/s  16:20 left"
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
    assert "16:30 left" in lines()[0]  # 990 steps of a second


def test_pace_forgets_a_slow_start(clock):
    progress, lines = plain(total_steps=1000)
    clock(3600)
    progress.update(10, METRICS, images=1200)
    for step in range(20, 320, 10):
        clock(1)
        progress.update(step, METRICS, images=1200)
    assert "1200 img/s" in lines()[-1]
    assert "1:09 left" in lines()[-1]  # 690 steps, ten a second


def test_the_end_says_how_long_it_took(clock):
    progress, lines = plain(total_steps=20)
    clock(3725)
    progress.update(20, METRICS, images=3)
    assert lines()[0].endswith("  0.0 img/s  took 1:02:05")


def test_long_runs_are_told_in_days(clock):
    progress, lines = plain(total_steps=2**20)
    clock(1)
    progress.update(1, METRICS, images=960)
    assert lines()[0].endswith("12 d 3 h left")


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


def test_weighted_parts_are_not_said_to_add_up():
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


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 110, 140])
def test_a_terminal_has_one_line_that_fits(terminal, clock, columns):
    one = terminal(columns)
    progress = Progress(5000, stream=one.stream)
    for step in range(0, 2000, 20):
        clock(1)
        progress.update(step, METRICS | {"test_accuracy": 0.964}, images=2400)
    progress.close()
    raw = one.raw()
    assert max(len(part) for part in re.split(r"[\r\n]+", raw)) < columns
    shown = screen(raw)
    assert len(shown) == 2  # the line and the one that the prompt will stand on
    assert shown[1] == ""
    assert "1980/5000" in shown[0]
    assert "2:31 left" in shown[0]
    assert "test 96.4%" in shown[0]
    assert ("81% used 98% right" in shown[0]) == (80 <= columns < 140)
    assert ("81% of pseudo-labels used, 98% right" in shown[0]) == (columns >= 140)
    assert ("0.21+0.18+0.02" in shown[0]) == (columns in (80, 100))
    assert ("sup 0.21+unl 0.18+mom 0.02" in shown[0]) == (columns >= 110)
    assert ("2.4k/s" in shown[0]) == (columns in (60, 80))
    assert ("2.4k img/s" in shown[0]) == (columns >= 100)


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 140])
@pytest.mark.parametrize("total", [1200, 20000, 2**20])
@pytest.mark.parametrize("fairness", [0.0, 0.31])
def test_values_that_come_do_not_change_what_the_line_is_about(terminal, clock, columns, total, fairness):
    one = terminal(columns)
    progress = Progress(total, stream=one.stream)
    shown = []
    for step, more in (
        (1, {"pseudo_label_accuracy": None}),
        (20, {"test_accuracy": 0.97}),
        (40, {"loss": 1234.5, "unlabeled_loss": 98765.4}),
        (60, {"test_accuracy": 1.0, "utilisation": 1.0, "pseudo_label_accuracy": 1.0}),
        (total - 1, {"loss": None, "supervised_loss": None, "unlabeled_loss": None, "constraint_loss": None}),
    ):
        clock(9)
        progress.update(step, METRICS | {"loss": 0.412 + fairness, "fairness_loss": fairness} | more, images=72900)
        shown.append(screen(one.raw())[-1])
    progress.close()
    assert max(map(len, shown)) < columns
    assert len({re.sub(r"[^a-z]+", " ", re.sub(r"\d[\d.]*(e\d|[kMhmd])?", "", line)).strip() for line in shown}) == 1
    if columns >= 80:
        assert all(re.search(r"used.* right.* test .*/s.* left", line) for line in shown)
        assert all(len(re.findall(r"[\d.]+(?=[+])", line)) >= 2 for line in shown[:2])


def test_places_tell_the_parts_of_the_loss_apart(terminal, clock):
    one = terminal(80)
    progress = Progress(50, stream=one.stream)
    clock(1)
    progress.update(1, {"loss": 0.5, "supervised_loss": 0.2, "unlabeled_loss": 0.0, "constraint_loss": 0.3}, images=1)
    assert screen(one.raw())[-1].startswith("1/50 loss 0.20+0+0.30 test - 1.0/s")
    progress.update(2, {"loss": 0.5, "supervised_loss": 0.5, "unlabeled_loss": 0.5, "skipped_steps": 3}, images=1)
    assert screen(one.raw())[-1].startswith("2/50 loss 0.50,0.50,- test - ")
    assert screen(one.raw())[-1] == ""
    progress.close()


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "0:59"), (3599, "59:59"), (3725, "1h02m"), (40000, "11h"), (2**20, "12d")]
)
def test_time_left_is_short(terminal, clock, seconds, text):
    one = terminal(80)
    progress = Progress(2, stream=one.stream)
    clock(seconds)
    progress.update(1, METRICS | {"skipped_steps": 3}, images=2 * 10**7 * seconds)
    line = screen(one.raw())[-1]
    assert line.endswith(f" 20M/s {text} left")
    progress.close()


def test_skipped_steps_stand_at_the_end_where_there_is_room(terminal, clock):
    one = terminal(140)
    progress = Progress(50, stream=one.stream)
    clock(1)
    progress.update(1, METRICS | {"skipped_steps": 3}, images=1)
    assert screen(one.raw())[-1].endswith("0:49 left  3 steps skipped")
    progress.close()


def test_what_is_said_after_the_last_step_stands_below_the_line(terminal, clock):
    one = terminal(80)
    progress = Progress(50, stream=one.stream)
    clock(1)
    progress.update(50, METRICS, images=10)
    progress.message("finished")
    progress.close()
    line, *rest = screen(one.raw())
    assert line.startswith("50/50 loss 0.21+0.18+0.02 81% used 98% right")
    assert rest == ["finished", ""]


def test_a_terminal_that_does_not_tell_its_size_is_taken_for_80_columns(terminal, clock):
    one = terminal(0)
    progress = Progress(50, stream=one.stream)
    clock(1)
    progress.update(50, METRICS, images=1)
    progress.close()
    (line, rest) = screen(one.raw())
    assert line.startswith("50/50 loss 0.21+0.18+0.02")
    assert rest == ""
    assert 40 < len(line) < 80


def test_a_terminal_that_gets_narrow_is_followed(terminal, clock):
    one = terminal(150)
    progress = Progress(50, stream=one.stream)
    clock(1)
    progress.update(1, METRICS, images=1)
    fcntl.ioctl(one.stream, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 12, 0, 0))
    before = len(one.raw())
    progress.update(2, METRICS, images=1)
    assert before > 90
    assert one.raw().split("\r")[1].rstrip() == "2/50"
    progress.close()


def test_messages_stand_above_the_live_line(terminal, clock):
    one = terminal(100)
    progress = Progress(50, stream=one.stream)
    clock(1)
    progress.update(10, METRICS, images=10)
    progress.message("step 10: checkpoint saved")
    clock(1)
    progress.update(50, METRICS, images=10)
    progress.close()
    progress.close()
    shown = screen(one.raw())
    assert shown[0] == "step 10: checkpoint saved"
    assert shown[1].startswith("50/50  loss 0.41 = 0.21+0.18+0.02")
    assert shown[1].endswith("took 0:02")
    assert shown[2:] == [""]


def test_live_and_plain_can_be_asked_for(terminal, clock):
    one = terminal(100)
    progress = Progress(50, stream=one.stream, live=False)
    progress.update(1, {}, images=0)
    assert one.raw() == "step 1/50\r\n"
    stream = io.StringIO()
    progress = Progress(50, stream=stream, live=True)
    progress.update(1, METRICS, images=0)
    progress.close()
    assert "\r" in stream.getvalue()
