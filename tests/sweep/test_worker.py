"""One run: trained, taken as it is, resumed, evaluated, failed; and what goes to a worker's process and back."""

import os
from dataclasses import replace

import numpy as np
import pytest
from filelock import FileLock

from momatch.storage.durable import json_bytes, parse_json
from momatch.storage.run_config import encode_config
from momatch.sweep import worker
from momatch.sweep.jobs import Place
from momatch.sweep.worker import carry_out, decode_job, encode_job, main
from tests.sweep.sweeping import jobs_of, tiny


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def job(tmp_path):
    return jobs_of(tiny(), runs=tmp_path / "runs")[1]


def test_trained_and_then_taken_as_it_is(job, monkeypatch):
    found = carry_out(job, 1)
    assert found.error is None
    assert found.evaluation is None
    assert found.result["steps"] == 2
    assert found.result["threads"] == 1
    assert "per_class_accuracy" not in found.result
    monkeypatch.setattr("momatch.training.fit.fit", lambda config, **options: pytest.fail("trained twice"))
    assert carry_out(job, 1) == found


def test_unfinished_run_is_resumed(job):
    whole = carry_out(job, 1)
    (job.directory / "result.json").unlink()
    assert carry_out(job, 1).result["test_accuracy"] == whole.result["test_accuracy"]
    assert "resumed at step 2" in (job.directory / "run.log").read_text()


def test_evaluated_against_outliers_and_held_out_classes(job, tmp_path):
    noise = tmp_path / "noise.npz"
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    np.savez(noise, images=images, labels=np.arange(20) % 2)
    place = replace(job.places[0], outliers=(str(noise),))
    job = replace(job, config=replace(job.config, held_out_classes="8,9"), places=(place,))
    found = carry_out(job, 1)
    assert found.error is None
    assert set(found.evaluation) == {"held-out classes", str(noise)}
    assert 0.0 <= found.evaluation[str(noise)]["refitted"]["nearest"]["auroc"] <= 1.0


@pytest.mark.parametrize("is_begun", [True, False])
def test_run_that_another_process_writes_is_busy(job, monkeypatch, is_begun):
    monkeypatch.setattr(worker, "_RELEASE", 0.0)
    job.directory.mkdir(parents=True)
    if is_begun:
        (job.directory / "config.json").write_bytes(encode_config(job.config))
    with FileLock(job.directory / "run.lock"):
        found = carry_out(job, 1)
    assert found.is_busy
    assert "another process is at work" in found.error


def test_failure_is_an_outcome(job, capsys):
    job.directory.mkdir(parents=True)
    (job.directory / "mine.txt").touch()
    found = carry_out(job, 1)
    assert found.result is None
    assert "got a directory with 'mine.txt' that is no run" in found.error
    assert not found.is_busy
    assert "\n" not in found.error
    assert capsys.readouterr().err == ""


def test_bug_is_an_outcome_with_a_traceback_in_the_log(job, monkeypatch, capsys):
    def broken(config, **options):
        raise RuntimeError("not\nexpected")

    monkeypatch.setattr("momatch.training.fit.fit", broken)
    assert carry_out(job, 1).error == "RuntimeError: not expected"
    assert "Traceback" in capsys.readouterr().err


def test_job_survives_the_way_to_the_worker(job):
    places = (Place("g", "a ± b", 'quote "', 2**40, ("x", "y")), job.places[0])
    job = replace(job, places=places, config=replace(job.config, seed=2**40))
    assert decode_job(parse_json(json_bytes(encode_job(job)))) == job


def test_main_writes_the_outcome(job, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "stop_without", lambda parent: None)
    task, outcome = tmp_path / "task", tmp_path / "outcome"
    task.write_bytes(json_bytes({"job": encode_job(job), "threads": 1, "parent": os.getppid()}))
    assert main([str(task), str(outcome)]) == 0
    assert parse_json(outcome.read_bytes())["result"]["steps"] == 2


def test_stopped_run_has_no_outcome(job, tmp_path, monkeypatch):
    from momatch.console.signals import Interrupted

    def stopped(config, **options):
        raise Interrupted("stopped", 15)

    monkeypatch.setattr(worker, "stop_without", lambda parent: None)
    monkeypatch.setattr("momatch.training.fit.fit", stopped)
    task, outcome = tmp_path / "task", tmp_path / "outcome"
    task.write_bytes(json_bytes({"job": encode_job(job), "threads": 1, "parent": os.getppid()}))
    assert main([str(task), str(outcome)]) == 143
    assert not outcome.exists()
