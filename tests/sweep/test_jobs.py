"""From grids to runs: names, shared runs, layers, overrides, outliers."""

from dataclasses import replace
from pathlib import Path

import pytest

from momatch.config import TrainConfig
from momatch.config.layers import FlagError, Layer, preset_layer
from momatch.config.presets import PRESETS
from momatch.sweep.jobs import choose_outliers, plan_jobs
from reproduction.paper import paper_grid
from tests.sweep.sweeping import jobs_of, options, tiny


def planned(*names, preset="digits", **given):
    given = {"seeds": (0,), "runs": Path("runs"), **given}
    return plan_jobs([paper_grid(name) for name in names], options(preset=preset_layer(preset), **given))


def test_names_are_those_of_momatch_train():
    names = [job.name for job in planned("table1")[0]]
    assert len(names) == 12
    assert names[0] == "digits-4-linear-wide-order0-flexmatch-seed0"
    assert names[3] == "digits-4-aagmm-8d-order1-flexmatch-seed0"
    (job,) = [job for job in planned("table1", preset="mnist-cpu", seeds=(2,))[0] if "kmeans-8d-order2" in job.name]
    assert job.name == "mnist-4-kmeans-8d-order2-flexmatch-seed2-6f9ff5"
    assert job.directory == Path("runs") / job.name


def test_grids_share_their_runs():
    jobs, _ = planned("table1", "compactness", "policies")
    # Of 12 + 6 + 12 cells compactness is all in table1, and FlexMatch's three cells are.
    assert len(jobs) == 12 + 12 - 3
    (job,) = [job for job in jobs if job.name == "digits-4-aagmm-8d-order1-flexmatch-seed0"]
    assert [str(trial) for trial in job.trials] == [
        "table1: AAGMM 8-D, 1st, seed 0",
        "compactness: AAGMM 8-D, 1st, seed 0",
        "policies: FlexMatch, AAGMM 8-D, seed 0",
    ]


def test_first_seed_of_every_cell_comes_first(tmp_path):
    assert [job.config.seed for job in jobs_of(tiny(), runs=tmp_path)] == [0, 0, 0, 1, 1, 1]
    assert [job.config.seed for job in jobs_of(tiny(), runs=tmp_path, seeds=(7, 3))] == [7, 7, 7, 3, 3, 3]


def test_layers_and_settings(tmp_path):
    preset = Layer({"steps": 9, "lr": 0.2, "cutoff": 0.9}, "preset")
    job = jobs_of(tiny(), runs=tmp_path, preset=preset, overrides={"lr": 0.3}, data_dir="d", seeds=(5,))[0]
    config = job.config
    assert (config.steps, config.lr, config.cutoff, config.seed) == (2, 0.3, 0.9, 5)
    assert (config.data_dir, config.progress, config.resume) == ("d", False, False)
    assert job.settings == {
        "judge": "head",
        "image_size": 8,
        "labels_per_class": 4,
        "moment_order": 0,
        "cutoff": 0.9,
        "outlier_score": "nearest",
        "steps": 2,
        "labeled_batch_size": 4,
        "unlabeled_batch_size": 4,
        "lr": 0.3,
        "seed": 5,
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"stepz": 3}, "--set: got the unknown key 'stepz'; did you mean 'steps'"),
        ({"eval_interval": "x"}, "--set: eval_interval: got 'x' of type str, expected int"),
        ({"moment_order": 1}, "--set: got moment_order = 1, but the grid 'tiny' sets it"),
        ({"steps": 3}, "--set: got steps = 3, but the grid 'tiny' sets it"),
        ({"seed": 1}, "--set: got 'seed'.*--seeds"),
        ({"run_dir": "x"}, "--set: got 'run_dir'.*--runs"),
        ({"cutoff": 2.0}, "--set: cutoff: got 2.0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_override_is_refused(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        jobs_of(tiny(), runs=tmp_path, overrides=overrides)


@pytest.mark.parametrize(
    ("grid", "overrides"),
    [
        ("compactness", {"embedding_dim": 2}),
        ("policies", {"embedding_dim": 32}),
        ("outliers", {"head": "kmeans"}),
        ("memory", {"steps": 10}),
        ("density", {"held_out_classes": "1"}),
    ],
)
def test_override_of_what_names_stand_for_is_refused(grid, overrides):
    with pytest.raises(FlagError, match=f"the grid '{grid}' sets it"):
        planned(grid, overrides=overrides)


@pytest.mark.parametrize("overrides", [{"steps": 600}, {"image_size": 16}])
def test_override_of_what_the_grid_leaves_open(overrides):
    assert all(overrides.items() <= job.config.to_dict().items() for job in planned("density", overrides=overrides)[0])


def with_settings(grid, **settings):
    """The grid with settings added to all its cells."""
    cells = tuple(replace(cell, settings=cell.settings | settings) for cell in grid.cells)
    return replace(grid, cells=cells)


@pytest.mark.usefixtures("unchecked")
def test_wrong_cell_is_named(tmp_path):
    grid = with_settings(tiny(), algorithm="flexmuch")
    with pytest.raises(
        ValueError, match=r"grid 'tiny', 'a', 'none': algorithm: got 'flexmuch'.*did you mean 'flexmatch'"
    ):
        jobs_of(grid, runs=tmp_path)


def test_grid_given_twice_is_refused(tmp_path):
    with pytest.raises(FlagError, match="'tiny' twice"):
        jobs_of(tiny(), tiny(), runs=tmp_path)


def test_two_runs_of_one_name_are_refused(tmp_path, monkeypatch):
    # Names differ with the settings by a few letters of a hash, which could be the same for two.
    monkeypatch.setattr(TrainConfig, "_fingerprint", lambda self: "")
    grids = [with_settings(tiny(name=name), dataset=str(tmp_path / name / "photos.npz")) for name in ("one", "two")]
    with pytest.raises(ValueError, match=r"two: a, none.*of other settings \(dataset: .*different --runs"):
        jobs_of(*grids, runs=tmp_path)


def test_outliers_at_hand_are_chosen(tmp_path):
    images = tmp_path / "noise.npz"
    images.touch()
    grid = tiny(f'outliers = ["digits", ["mnist", "digits"], ["fashion-mnist", "{images}"], "mnist"]')
    chosen, remarks = choose_outliers(grid, "kmnist", str(tmp_path))
    assert chosen == ("digits", str(images))
    assert len(remarks) == 1
    assert "no outliers from mnist" in remarks[0]


def test_run_is_not_its_own_outlier(tmp_path):
    assert choose_outliers(tiny('outliers = ["digits"]'), "digits", str(tmp_path)) == ((), [])


def test_misspelt_outliers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'fashion-mnist'"):
        choose_outliers(tiny('outliers = ["fashion-mnst"]'), "digits", str(tmp_path))


def test_outliers_of_the_command_line_replace_those_of_grids_that_have_some(tmp_path):
    other = str(tmp_path / "other.npz")
    Path(other).touch()
    grids = [tiny(name="without"), tiny('outliers = ["digits"]', name="with")]
    for job in jobs_of(*grids, runs=tmp_path, outliers=(other,)):
        assert [trial.outliers for trial in job.trials] == [(), (other,)]


@pytest.mark.parametrize("preset", PRESETS)
def test_density_has_another_dataset_for_every_preset(preset, tmp_path, monkeypatch):
    monkeypatch.setattr("momatch.data.locate.find", lambda name, root: (name, root))
    jobs, remarks = planned("density", preset=preset)
    assert remarks == []
    for job in jobs:
        assert job.outliers == (("mnist",) if preset == "fashion-cpu" else ("fashion-mnist",))
        assert job.config.held_out_classes == "6,7,8,9"


def test_cells_with_the_same_settings_are_remarked_once(tmp_path):
    grid = with_settings(tiny(), head="aagmm", moment_order=1)
    jobs, remarks = plan_jobs([grid], options(tmp_path, seeds=(0, 1)))
    assert len(jobs) == 2
    words = "grid 'tiny': {} and a, none have the same settings: they share one run"
    assert remarks == [words.format("a, 1st"), words.format("k, 1st")]
