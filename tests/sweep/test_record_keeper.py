"""The record while a sweep is running: what is kept, what is dropped, what is refused."""

from dataclasses import replace

import pytest

from momatch.sweep.record import read_record
from momatch.sweep.sweep import RecordKeeper
from momatch.sweep.worker import JobResult
from tests.sweep.sweeping import jobs_of, tiny

RESULT = JobResult({"test_accuracy": 0.5})


def keeper(folder, jobs, grid=None, overrides=None, date="today"):
    return RecordKeeper(
        grid or tiny(), jobs, folder, preset="digits", overrides=overrides or {}, environment={"date": date}
    )


def fill(record_keeper, jobs, result=RESULT):
    for job in jobs:
        record_keeper.add(job, job.trials[0], result)


def test_record_is_on_disk_after_every_outcome_in_the_grids_order(tmp_path):
    jobs = jobs_of(tiny(), runs=tmp_path / "runs")
    record_keeper = keeper(tmp_path / "out", jobs)
    fill(record_keeper, reversed(jobs[:4]))
    record = read_record(tmp_path / "out" / "tiny.json")
    places = [(outcome.row, outcome.column, outcome.seed) for outcome in record.outcomes]
    assert places == [("a", "none", 0), ("a", "none", 1), ("a", "1st", 0), ("k", "1st", 0)]
    assert record.seeds == (0, 1)
    assert record == record_keeper.record()


def test_second_sweep_takes_over_and_keepers_other_seeds(tmp_path):
    before = jobs_of(tiny(), runs=tmp_path / "runs", seeds=(0, 4))
    fill(keeper(tmp_path, before, date="yesterday"), before)
    jobs = jobs_of(tiny(), runs=tmp_path / "runs", seeds=(0, 2))
    record_keeper = keeper(tmp_path, jobs)
    known = [job for job in jobs if record_keeper.known(job, job.trials[0]) is not None]
    assert known == jobs[:3]
    assert record_keeper.record().environment == {"date": "yesterday"}, "nothing was added"
    fill(record_keeper, jobs[3:])
    record = read_record(record_keeper.path)
    assert record.seeds == (0, 2, 4)
    assert len(record.outcomes) == 9
    assert record.environment == {"date": "today"}


def test_failed_run_is_tried_again(tmp_path):
    jobs = jobs_of(tiny(), runs=tmp_path / "runs")
    fill(keeper(tmp_path, jobs), jobs, JobResult(error="disk full"))
    assert all(keeper(tmp_path, jobs).known(job, job.trials[0]) is None for job in jobs)


def test_results_of_a_cell_that_has_changed_are_not_dropped(tmp_path):
    before = jobs_of(tiny(), runs=tmp_path / "runs", seeds=(0, 1))
    fill(keeper(tmp_path, before), before)
    written = (tmp_path / "tiny.json").read_bytes()
    changed = replace(tiny().cells[0], settings=tiny().cells[0].settings | {"lr": 0.2})
    grid = replace(tiny(), cells=(changed, *tiny().cells[1:]))
    words = r"results of a, none, which the grid now has with other settings \(lr: the default then, 0.2 now\).*another --out"
    with pytest.raises(ValueError, match=words):
        keeper(tmp_path, jobs_of(grid, runs=tmp_path / "runs"), grid)
    fewer = replace(tiny(), cells=tiny().cells[1:])
    with pytest.raises(ValueError, match="results of a, none, which the grid now does not have"):
        keeper(tmp_path, jobs_of(fewer, runs=tmp_path / "runs"), fewer)
    assert (tmp_path / "tiny.json").read_bytes() == written


def test_failures_of_a_cell_that_has_changed_are_dropped(tmp_path):
    before = jobs_of(tiny(), runs=tmp_path / "runs")
    fill(keeper(tmp_path, before), before, JobResult(error="diverged"))
    fewer = replace(tiny(), cells=tiny().cells[1:])
    record = keeper(tmp_path, jobs_of(fewer, runs=tmp_path / "runs"), fewer).record()
    assert [(outcome.row, outcome.column) for outcome in record.outcomes] == [("a", "1st")] * 2 + [("k", "1st")] * 2


def test_new_cells_are_added_to_a_record(tmp_path):
    fewer = replace(tiny(), cells=tiny().cells[1:])
    before = jobs_of(fewer, runs=tmp_path / "runs")
    fill(keeper(tmp_path, before, fewer), before)
    assert len(keeper(tmp_path, jobs_of(tiny(), runs=tmp_path / "runs")).record().outcomes) == 4


def test_other_overrides_are_refused(tmp_path):
    jobs = jobs_of(tiny(), runs=tmp_path / "runs")
    fill(keeper(tmp_path, jobs, overrides={"lr": 0.2, "device": "cpu"}), jobs)
    assert keeper(tmp_path, jobs, overrides={"lr": 0.2, "tracker": "none"}).record().outcomes, "where and how, not what"
    with pytest.raises(ValueError, match=r"got no --set, but this record was made with --set lr=0\.2"):
        keeper(tmp_path, jobs)


def test_foreign_file_is_refused(tmp_path):
    (tmp_path / "tiny.json").write_text("[]")
    with pytest.raises(ValueError, match=r"tiny.json.*damaged"):
        keeper(tmp_path, jobs_of(tiny(), runs=tmp_path / "runs"))


def test_each_trial_gets_the_outliers_of_its_grid(tmp_path):
    plain, wanting = tiny(), tiny('outliers = ["digits"]', name="wanting")
    (job, *_) = jobs_of(plain, wanting, runs=tmp_path / "runs")
    job = replace(job, trials=(job.trials[0], replace(job.trials[1], outliers=("mnist",))))
    result = JobResult({}, {"mnist": {"n": 3}, "kmnist": {"n": 4}})
    keepers = {name: keeper(tmp_path, [job], grid) for name, grid in (("tiny", plain), ("wanting", wanting))}
    without, with_outliers = (keepers[trial.grid].add(job, trial, result) for trial in job.trials)
    assert without.evaluation is None
    assert with_outliers.evaluation == {"mnist": {"n": 3}}
