"""One run: trained, taken as it is, resumed, evaluated, failed; and what goes to the worker process and back."""

import os
from dataclasses import replace

import numpy as np
import pytest
from filelock import FileLock

from momatch.storage.durable import json_bytes, parse_json
from momatch.storage.run_config import encode_config
from momatch.sweep import worker
from momatch.sweep.jobs import Trial
from momatch.sweep.worker import decode_job, encode_job, main, run_job
from tests.sweep.sweeping import jobs_of, tiny


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def job(tmp_path):
    return jobs_of(tiny(), runs=tmp_path / "runs")[1]


def test_trained_and_then_taken_as_it_is(job, monkeypatch):
    result = run_job(job, 1)
    assert result.error is None
    assert result.evaluation is None
    assert result.result["steps"] == 2
    assert result.result["threads"] == 1
    assert "per_class_accuracy" not in result.result
    monkeypatch.setattr("momatch.training.fit.fit", lambda config, **options: pytest.fail("trained twice"))
    assert run_job(job, 1) == result


def test_unfinished_run_is_resumed(job):
    whole = run_job(job, 1)
    (job.directory / "result.json").unlink()
    assert run_job(job, 1).result["test_accuracy"] == whole.result["test_accuracy"]
    assert "resumed at step 2" in (job.directory / "run.log").read_text()


def test_evaluated_against_outliers_and_held_out_classes(job, tmp_path):
    noise = tmp_path / "noise.npz"
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    np.savez(noise, images=images, labels=np.arange(20) % 2)
    place = replace(job.trials[0], outliers=(str(noise),))
    job = replace(job, config=replace(job.config, held_out_classes="8,9"), trials=(place,))
    result = run_job(job, 1)
    assert result.error is None
    assert set(result.evaluation) == {"held-out classes", str(noise)}
    assert 0.0 <= result.evaluation[str(noise)]["refitted"]["nearest"]["auroc"] <= 1.0


@pytest.mark.parametrize("is_begun", [True, False])
def test_run_that_another_process_writes_is_busy(job, monkeypatch, is_begun):
    monkeypatch.setattr(worker, "_RELEASE", 0.0)
    job.directory.mkdir(parents=True)
    if is_begun:
        (job.directory / "config.json").write_bytes(encode_config(job.config))
    with FileLock(job.directory / "run.lock"):
        result = run_job(job, 1)
    assert result.is_busy
    assert "another process is" in result.error


def test_failure_is_an_output(job, capsys):
    job.directory.mkdir(parents=True)
    (job.directory / "mine.txt").touch()
    result = run_job(job, 1)
    assert result.result is None
    assert "got a directory with 'mine.txt' that is not a run" in result.error
    assert not result.is_busy
    assert "\n" not in result.error
    assert capsys.readouterr().err == ""


def test_bug_is_an_outcome_with_a_traceback_in_the_log(job, monkeypatch, capsys):
    def broken(config, **options):
        raise RuntimeError("not\nexpected")

    monkeypatch.setattr("momatch.training.fit.fit", broken)
    assert run_job(job, 1).error == "RuntimeError: not expected"
    assert "Traceback" in capsys.readouterr().err


def test_job_survives_the_way_to_the_worker(job):
    trials = (Trial("g", "a ± b", 'quote "', 2**40, ("x", "y")), job.trials[0])
    job = replace(job, trials=trials, config=replace(job.config, seed=2**40))
    assert decode_job(parse_json(json_bytes(encode_job(job)))) == job


def test_main_writes_the_output(job, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "stop_without", lambda parent: None)
    task, output = tmp_path / "task", tmp_path / "output"
    task.write_bytes(json_bytes({"job": encode_job(job), "threads": 1, "parent": os.getppid()}))
    assert main([str(task), str(output)]) == 0
    assert parse_json(output.read_bytes())["result"]["steps"] == 2


def test_stopped_run_has_no_output(job, tmp_path, monkeypatch):
    from momatch.console.signals import Interrupted

    def stopped(config, **options):
        raise Interrupted("stopped", 15)

    monkeypatch.setattr(worker, "stop_without", lambda parent: None)
    monkeypatch.setattr("momatch.training.fit.fit", stopped)
    task, output = tmp_path / "task", tmp_path / "output"
    task.write_bytes(json_bytes({"job": encode_job(job), "threads": 1, "parent": os.getppid()}))
    assert main([str(task), str(output)]) == 143
    assert not output.exists()
