"""The loop over jobs: order, number at a time, failures, signals."""

import os
import signal

import pytest

from momatch.sweep.launch import run_jobs
from momatch.sweep.worker import JobResult
from tests.sweep.sweeping import Ended, jobs_of, tiny


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("momatch.sweep.launch._PAUSE", 0.0)


@pytest.fixture
def jobs(tmp_path):
    return jobs_of(tiny(), runs=tmp_path)


class Patient(Ended):
    """A job that ends after a number of polls, or once it is asked to stop."""

    def __init__(self, result, polls):
        super().__init__(result)
        self.polls, self.killed = polls, False

    def poll(self):
        self.polls -= 1
        return self.result if self.polls < 0 or self.stopped else None

    def kill(self):
        self.killed = True


class FakeLauncher:
    def __init__(self, polls=2, result=None):
        self.started, self.polls = {}, polls
        self.result = result or JobResult({})

    def __call__(self, job):
        self.started[job.name] = Patient(self.result, self.polls)
        return self.started[job.name]


def run(jobs, launcher, workers=2, watch=None):
    ended, most = [], []

    def look(running):
        most.append(len(running))
        if watch is not None:
            watch(running)

    stopped = run_jobs(
        jobs, launcher, workers=workers, finished=lambda job, result: ended.append((job.name, result)), watch=look
    )
    return stopped, ended, max(most)


@pytest.mark.parametrize(("workers", "most"), [(1, 1), (2, 2), (4, 4), (None, 6)])
def test_so_many_at_a_time(jobs, workers, most):
    stopped, ended, seen = run(jobs, FakeLauncher(), workers)
    assert stopped is None
    assert [name for name, _ in ended] == [job.name for job in jobs]
    assert seen == most


def test_failure_does_not_end_the_others(jobs):
    def launcher(job):
        if job is jobs[1]:
            raise OSError("no more processes")
        return Ended(JobResult(error="diverged") if job is jobs[0] else JobResult({}))

    _, ended, _ = run(jobs, launcher)
    assert len(ended) == 6
    assert dict(ended)[jobs[0].name].error == "diverged"
    assert dict(ended)[jobs[1].name].error == "cannot be started: no more processes"


def test_run_that_another_process_writes_is_waited_for(jobs):
    started = []

    def launcher(job):
        started.append(job.name)
        busy = job is jobs[0] and started.count(job.name) < 3
        return Ended(JobResult(error="another process is at work", is_busy=True) if busy else JobResult({}))

    _, ended, _ = run(jobs[:3], launcher, workers=1)
    assert started == [job.name for job in (jobs[0], jobs[1], jobs[2], jobs[0], jobs[0])]
    assert [name for name, _ in ended] == [job.name for job in (jobs[1], jobs[2], jobs[0])]
    assert all(result.error is None for _, result in ended)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_what_is_under_way_and_starts_nothing_more(jobs, number, capsys):
    launcher = FakeLauncher(polls=10**9)
    stopped, ended, _ = run(jobs, launcher, watch=lambda running: os.kill(os.getpid(), number))
    assert stopped == number
    assert len(launcher.started) == 2
    assert all(job.stopped and not job.killed for job in launcher.started.values())
    assert len(ended) == 2, "a run that came to its end meanwhile counts"
    assert signal.getsignal(number) != signal.SIG_IGN


def test_stopped_run_is_no_failure(jobs, capsys):
    launcher = FakeLauncher(polls=10**9, result=JobResult(error="stopped"))
    _, ended, _ = run(jobs, launcher, watch=lambda running: os.kill(os.getpid(), signal.SIGTERM))
    assert ended == []


def test_record_that_cannot_be_written_stops_the_runs(jobs):
    launcher = FakeLauncher(polls=0)

    def finished(job, result):
        launcher.polls = 10**9
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run_jobs(jobs, launcher, workers=2, finished=finished, watch=lambda running: None)
    assert list(launcher.started.values())[1].stopped


def test_run_that_does_not_stop_is_ended(jobs, monkeypatch, capsys):
    monkeypatch.setattr("momatch.sweep.launch.GRACE", 0.0)
    launcher = FakeLauncher(polls=10**9)
    run(jobs, launcher, watch=lambda running: os.kill(os.getpid(), signal.SIGTERM))
    assert all(job.killed for job in launcher.started.values())
