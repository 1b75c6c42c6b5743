"""The loop: order, number at a time, failures, signals."""

import os
import signal

import pytest

from momatch.sweep import schedule
from momatch.sweep.schedule import carry_out_all
from momatch.sweep.worker import Found
from tests.sweep.sweeping import Through, jobs_of, tiny


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(schedule, "_PAUSE", 0.0)


@pytest.fixture
def jobs(tmp_path):
    return jobs_of(tiny(), runs=tmp_path)


class Patient(Through):
    """An attempt that is through when it was looked at so often, or once it was asked to stop."""

    def __init__(self, found, looks):
        super().__init__(found)
        self.looks, self.killed = looks, False

    def poll(self):
        self.looks -= 1
        return self.found if self.looks < 0 or self.stopped else None

    def kill(self):
        self.killed = True


class Launch:
    def __init__(self, looks=2, found=None):
        self.attempts, self.looks = {}, looks
        self.found = found or Found({})

    def __call__(self, job):
        self.attempts[job.name] = Patient(self.found, self.looks)
        return self.attempts[job.name]


def run(jobs, launch, workers=2, watch=None):
    ended, most = [], []

    def look(running):
        most.append(len(running))
        if watch is not None:
            watch(running)

    stopped = carry_out_all(
        jobs, launch, workers=workers, finished=lambda job, found: ended.append((job.name, found)), watch=look
    )
    return stopped, ended, max(most)


@pytest.mark.parametrize(("workers", "most"), [(1, 1), (2, 2), (4, 4), (None, 6)])
def test_so_many_at_a_time(jobs, workers, most):
    stopped, ended, seen = run(jobs, Launch(), workers)
    assert stopped is None
    assert [name for name, _ in ended] == [job.name for job in jobs]
    assert seen == most


def test_failure_does_not_end_the_others(jobs):
    def launch(job):
        if job is jobs[1]:
            raise OSError("no more processes")
        return Through(Found(error="diverged") if job is jobs[0] else Found({}))

    _, ended, _ = run(jobs, launch)
    assert len(ended) == 6
    assert dict(ended)[jobs[0].name].error == "diverged"
    assert dict(ended)[jobs[1].name].error == "cannot be started: no more processes"


def test_run_that_another_process_writes_is_waited_for(jobs):
    started = []

    def launch(job):
        started.append(job.name)
        busy = job is jobs[0] and started.count(job.name) < 3
        return Through(Found(error="another process is at work", is_busy=True) if busy else Found({}))

    _, ended, _ = run(jobs[:3], launch, workers=1)
    assert started == [job.name for job in (jobs[0], jobs[1], jobs[2], jobs[0], jobs[0])]
    assert [name for name, _ in ended] == [job.name for job in (jobs[1], jobs[2], jobs[0])]
    assert all(found.error is None for _, found in ended)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_what_is_under_way_and_starts_nothing_more(jobs, number, capsys):
    launch = Launch(looks=10**9)
    stopped, ended, _ = run(jobs, launch, watch=lambda running: os.kill(os.getpid(), number))
    assert stopped == number
    assert len(launch.attempts) == 2
    assert all(attempt.stopped and not attempt.killed for attempt in launch.attempts.values())
    assert len(ended) == 2, "a run that came to its end meanwhile counts"
    assert signal.getsignal(number) != signal.SIG_IGN


def test_stopped_run_is_no_failure(jobs, capsys):
    launch = Launch(looks=10**9, found=Found(error="stopped"))
    _, ended, _ = run(jobs, launch, watch=lambda running: os.kill(os.getpid(), signal.SIGTERM))
    assert ended == []


def test_record_that_cannot_be_written_stops_the_runs(jobs):
    launch = Launch(looks=0)

    def finished(job, found):
        launch.looks = 10**9
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        carry_out_all(jobs, launch, workers=2, finished=finished, watch=lambda running: None)
    assert list(launch.attempts.values())[1].stopped


def test_run_that_does_not_stop_is_ended(jobs, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "GRACE", 0.0)
    launch = Launch(looks=10**9)
    run(jobs, launch, watch=lambda running: os.kill(os.getpid(), signal.SIGTERM))
    assert all(attempt.killed for attempt in launch.attempts.values())
