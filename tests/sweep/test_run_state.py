"""How far a run is by its directory, its record and its metrics."""

from dataclasses import replace

import pytest

from momatch.storage.run_config import encode_config
from momatch.sweep.jobs import read_progress, read_result, run_state
from momatch.sweep.record import Outcome
from momatch.sweep.sweep import is_current
from tests.sweep.sweeping import jobs_of, tiny


@pytest.fixture
def job(tmp_path):
    return jobs_of(tiny('outliers = ["mnist"]'), runs=tmp_path, seeds=(3,))[0]


def write_run(job, *, finished=False, **settings):
    job.directory.mkdir(parents=True)
    (job.directory / "config.json").write_bytes(encode_config(replace(job.config, **settings)))
    if finished:
        (job.directory / "result.json").write_text('{"test_accuracy": 0.5, "per_class_accuracy": [1, 2]}')


def test_states(job):
    assert run_state(job) == "new"
    write_run(job, device="cpu", checkpoint_interval=3)
    assert run_state(job) == "unfinished"
    (job.directory / "result.json").write_text("{}")
    assert run_state(job) == "finished"


def test_directory_of_another_run_is_refused(job):
    write_run(job, finished=True, lr=0.7)
    with pytest.raises(ValueError, match=r"other settings \(lr: 0.7 there, 0.1 here\); move it away"):
        run_state(job)


def test_damaged_config_is_refused(job):
    job.directory.mkdir(parents=True)
    (job.directory / "config.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        run_state(job)


def test_result_without_lists(job):
    write_run(job, finished=True)
    assert read_result(job.directory) == {"test_accuracy": 0.5}


def outcome(job, **given):
    trial = job.trials[0]
    values = {"row": trial.row, "column": trial.column, "seed": 3, "run": job.name, "settings": job.settings}
    return Outcome(**{**values, "result": {}, "evaluation": None, "error": None, **given})


def test_outcome_is_current_while_nothing_changed(job):
    (trial,) = job.trials
    assert is_current(job, trial, outcome(job)), "the run is gone"
    write_run(job, finished=True)
    assert is_current(job, trial, outcome(job))


@pytest.mark.parametrize("change", [{"error": "x", "result": None}, {"run": "other"}, {"settings": {}}])
def test_other_outcome_is_not_current(job, change):
    assert not is_current(job, job.trials[0], outcome(job, **change))


def test_outcome_of_a_run_that_was_begun_anew_is_not_current(job):
    write_run(job)
    assert not is_current(job, job.trials[0], outcome(job))


def test_outcome_without_the_outliers_that_are_now_at_hand_is_not_current(job):
    write_run(job, finished=True)
    trial = replace(job.trials[0], outliers=("mnist",))
    assert not is_current(job, trial, outcome(job))
    assert not is_current(job, trial, outcome(job, evaluation={"kmnist": {}}))
    assert is_current(job, trial, outcome(job, evaluation={"mnist": {}, "kmnist": {}}))


def test_progress_reads_the_last_whole_line(tmp_path):
    assert read_progress(tmp_path) == (0, 0.0)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5, "seconds"')
    assert read_progress(tmp_path) == (0, 0.0)
    path.write_text('{"step": 5, "seconds": 1.5}\n{"step": 10, "seconds": 3.0}\n{"st')
    assert read_progress(tmp_path) == (10, 3.0)
    path.write_text("nonsense\n")
    assert read_progress(tmp_path) == (0, 0.0)
