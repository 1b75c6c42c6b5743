"""What there is of a run: in its directory, in a record, in its metrics."""

from dataclasses import replace

import pytest

from momatch.storage.run_config import encode_config
from momatch.sweep.record import Outcome
from momatch.sweep.run_state import look, progress, read_result, stands
from tests.sweep.sweeping import jobs_of, tiny


@pytest.fixture
def job(tmp_path):
    return jobs_of(tiny('outliers = ["mnist"]'), runs=tmp_path, seeds=(3,))[0]


def write_run(job, *, finished=False, **settings):
    job.directory.mkdir(parents=True)
    (job.directory / "config.json").write_bytes(encode_config(replace(job.config, **settings)))
    if finished:
        (job.directory / "result.json").write_text('{"test_accuracy": 0.5, "per_class_accuracy": [1, 2]}')


def test_look(job):
    assert look(job) == "new"
    write_run(job, device="cpu", checkpoint_interval=3)
    assert look(job) == "unfinished"
    (job.directory / "result.json").write_text("{}")
    assert look(job) == "finished"


def test_directory_of_another_run_is_refused(job):
    write_run(job, finished=True, lr=0.7)
    with pytest.raises(ValueError, match=r"other settings \(lr: 0.7 there, 0.1 here\); move it away"):
        look(job)


def test_damaged_config_is_refused(job):
    job.directory.mkdir(parents=True)
    (job.directory / "config.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        look(job)


def test_result_without_lists(job):
    write_run(job, finished=True)
    assert read_result(job.directory) == {"test_accuracy": 0.5}


def outcome(job, **given):
    place = job.places[0]
    values = {"row": place.row, "column": place.column, "seed": 3, "run": job.name, "settings": job.settings}
    return Outcome(**{**values, "result": {}, "evaluation": None, "error": None, **given})


def test_outcome_stands_while_nothing_changed(job):
    (place,) = job.places
    assert stands(job, place, outcome(job)), "the run is gone"
    write_run(job, finished=True)
    assert stands(job, place, outcome(job))


@pytest.mark.parametrize("change", [{"error": "x", "result": None}, {"run": "other"}, {"settings": {}}])
def test_other_outcome_does_not_stand(job, change):
    assert not stands(job, job.places[0], outcome(job, **change))


def test_outcome_of_a_run_that_was_begun_anew_does_not_stand(job):
    write_run(job)
    assert not stands(job, job.places[0], outcome(job))


def test_outcome_without_the_outliers_that_are_now_at_hand_does_not_stand(job):
    write_run(job, finished=True)
    place = replace(job.places[0], outliers=("mnist",))
    assert not stands(job, place, outcome(job))
    assert not stands(job, place, outcome(job, evaluation={"kmnist": {}}))
    assert stands(job, place, outcome(job, evaluation={"mnist": {}, "kmnist": {}}))


def test_progress_reads_the_last_whole_line(tmp_path):
    assert progress(tmp_path) == (0, 0.0)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5, "seconds"')
    assert progress(tmp_path) == (0, 0.0)
    path.write_text('{"step": 5, "seconds": 1.5}\n{"step": 10, "seconds": 3.0}\n{"st')
    assert progress(tmp_path) == (10, 3.0)
    path.write_text("nonsense\n")
    assert progress(tmp_path) == (0, 0.0)
