"""Worker processes: how they are started, how they end, what they leave behind; and submitit's."""

import os
import signal
import sys
import time
from dataclasses import replace

import pytest

from momatch.sweep.launch import ClusterLauncher, LocalLauncher
from momatch.sweep.worker import stop_without
from tests.sweep.sweeping import jobs_of, tiny


@pytest.fixture
def job(tmp_path):
    return jobs_of(tiny(), runs=tmp_path / "runs")[0]


def ended(running, seconds=240):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = running.poll()
        if result is not None:
            return result
        time.sleep(0.05)
    raise AssertionError("the worker does not end")


def test_killed_worker_is_a_failure_with_its_reason(job, tmp_path):
    running = LocalLauncher(1, tmp_path / "workers")(job)
    assert running.poll() is None
    running.kill()
    result = ended(running)
    assert result.result is None
    assert result.error == "the process was ended by signal 9 (SIGKILL): perhaps out of memory"
    assert [path.name for path in (tmp_path / "workers").iterdir()] == [f"{job.name}.log"]


def test_asked_to_stop(job, tmp_path):
    running = LocalLauncher(1, tmp_path / "workers")(job)
    running.stop()
    assert "signal 15 (SIGTERM)" in ended(running).error


def test_worker_that_exits_without_a_result_leaves_its_output(job, tmp_path, monkeypatch):
    (tmp_path / "momatch").mkdir()
    (tmp_path / "momatch" / "__init__.py").write_text("raise SystemError('broken installation')")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    result = ended(LocalLauncher(1, tmp_path / "workers")(job))
    log = tmp_path / "workers" / f"{job.name}.log"
    assert result.error == f"the process exited with code 1 and no result; see its output in {log}"
    assert "broken installation" in log.read_text()


@pytest.mark.slow
def test_worker_trains_with_its_threads_and_leaves_nothing_else(job, tmp_path):
    result = ended(LocalLauncher(2, tmp_path / "workers")(job))
    assert result.error is None
    assert result.result["threads"] == 2
    assert not (tmp_path / "workers").exists()


def test_worker_stops_without_its_parent(monkeypatch):
    told = []
    monkeypatch.setattr(os, "kill", lambda process, number: told.append(number))
    monkeypatch.setattr("momatch.sweep.worker.GRACE", 0.0)
    stop_without(os.getppid() + 1)
    deadline = time.monotonic() + 20
    while len(told) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told == [signal.SIGTERM, signal.SIGKILL]


def test_missing_submitit_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ImportError, match=r"pip install 'momatch\[cluster\]'"):
        ClusterLauncher(1, tmp_path, slurm=True, parameters={})


def test_missing_slurm_is_named(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="--launcher: submitit reports"):
        ClusterLauncher(1, tmp_path, slurm=True, parameters={})


@pytest.mark.slow
def test_submitit_runs_jobs_and_reports_failures(job, tmp_path):
    pytest.importorskip("submitit")
    launcher = ClusterLauncher(1, tmp_path / "submitit", slurm=False, parameters={"timeout_min": 10})
    wrong = replace(job, config=replace(job.config, run_dir=str(tmp_path / "no"), dataset=str(tmp_path / "no.npz")))
    submitted = launcher(job), launcher(wrong)
    good, bad = (ended(running) for running in submitted)
    assert good.error is None
    assert good.result["steps"] == 2
    assert "no.npz" in bad.error
