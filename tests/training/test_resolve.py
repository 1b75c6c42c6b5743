"""One set of settings, one run: momatch train, momatch sweep and momatch.fit agree about it, also for a features file."""

import json
from dataclasses import fields, replace

import pytest

from momatch import TrainConfig, fit
from momatch.cli.main import main
from momatch.config.layers import Layer, combine, preset_layer
from momatch.config.presets import PRESETS
from momatch.embedding import embed
from momatch.sweep.grid import load_grid
from momatch.sweep.jobs import SweepOptions, plan_jobs
from momatch.training.resolve import resolve_config, resolve_layers
from tests.embedding.setting import small_options


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return str(embed(small_options(tmp_path_factory.mktemp("features"))).spec.path)


def from_command_line(capsys, *words):
    assert main(["train", *words, "--print-config"]) == 0
    return TrainConfig.from_dict(json.loads(capsys.readouterr().out))


def from_sweep(tmp_path, **settings):
    """The run of AAGMM 8-D with FlexMatch in the shipped grid of policies."""
    jobs, _ = plan_jobs([load_grid("policies")], SweepOptions(Layer({}), settings, (0,), tmp_path, None))
    (config,) = [job.config for job in jobs if (job.config.head, job.config.algorithm) == ("aagmm", "flexmatch")]
    return config


def test_a_features_file_gives_the_same_run_everywhere(features, capsys, tmp_path):
    wanted = from_command_line(capsys, "--dataset", features)
    assert {key: getattr(wanted, key) for key in PRESETS["features"]} == PRESETS["features"]
    assert wanted.backbone == "tests.embedding.setting:corners"
    assert resolve_config(TrainConfig(dataset=features)) == wanted
    assert resolve_config(TrainConfig.preset("features", dataset=features)) == wanted
    cell = from_command_line(capsys, "--dataset", features, "--embedding-dim", "8", "--moment-order", "1")
    assert cell.steps == PRESETS["features"]["steps"]
    assert from_sweep(tmp_path, dataset=features).first_difference(cell) is None


def test_fit_takes_the_preset_of_a_features_file(features, tmp_path):
    config = TrainConfig(dataset=features, steps=2, run_dir=str(tmp_path / "run"), progress=False, device="cpu")
    run = fit(config, trust_code=True)
    assert (run.config.steps, run.config.embedding_dim, run.config.graph_neighbors) == (2, 64, 20)
    assert run.config.preset_name == "features"
    # What is stored is complete: it goes on as it is, and so does the line that started it.
    for again in (replace(run.config, resume=True), replace(config, resume=True)):
        assert fit(again, trust_code=True).config == run.config


def test_what_is_given_beats_the_preset(features, capsys, tmp_path):
    # 1,200 is the default of steps, which the preset changes.
    assert from_command_line(capsys, "--dataset", features, "--steps", "1200").steps == 1200
    assert from_sweep(tmp_path, dataset=features, steps=1200).steps == 1200
    given = TrainConfig.preset("features", dataset=features, steps=1200, lr=0.5)
    assert (given.steps, given.lr, given.embedding_dim) == (1200, 0.5, 64)
    assert resolve_config(given).steps == 1200
    assert resolve_config(TrainConfig(dataset=features, lr=0.5)).lr == 0.5
    plain = resolve_config(TrainConfig.preset("digits", dataset=features))
    assert (plain.steps, plain.graph_neighbors) == (1200, 0)
    other = resolve_config(TrainConfig.preset("mnist-cpu", dataset=features, backbone="cnn-tiny"))
    assert (other.steps, other.embedding_dim, other.backbone) == (1500, 8, "tests.embedding.setting:corners")


def test_settling_twice_changes_nothing(features):
    once = resolve_config(TrainConfig(dataset=features, graph_neighbors=5))
    assert resolve_config(once) == once
    images = TrainConfig(dataset="digits", steps=7)
    assert resolve_config(images) == images.resolved() == combine([Layer({"steps": 7})])


def test_a_preset_that_is_named_counts_in_sweeps_too(features, capsys, tmp_path):
    wanted = from_command_line(capsys, "--dataset", features, "--preset", "digits")
    (config,) = [
        job.config
        for job in plan_jobs(
            [load_grid("policies")],
            SweepOptions(preset_layer("digits"), {"dataset": features}, (0,), tmp_path, None),
        )[0]
        if (job.config.head, job.config.algorithm) == ("aagmm", "flexmatch")
    ]
    assert (config.embedding_dim, config.steps) == (wanted.embedding_dim, wanted.steps) == (8, 1200)


def test_resume_without_a_directory_finds_the_run_of_the_same_command(features, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--dataset", features, "--steps", "2", "--device", "cpu", "--no-progress", "--trust-code"]
    assert main(["train", *words]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert main(["train", *words, "--resume"]) == 0
    assert list((tmp_path / "runs").iterdir()) == [made]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 16}, "--image-size: got 16, expected it not to be set: .* pass the size to momatch embed"),
        ({"test_fraction": 0.2}, "--test-fraction: got 0.2, expected it not to be set: .* momatch embed"),
        ({"backbone": "mlp"}, "--backbone: got 'mlp', expected 'tests.embedding.setting:corners', as in"),
    ],
)
def test_errors_about_a_features_file_name_the_flag(features, settings, message):
    with pytest.raises(ValueError, match=message):
        resolve_layers([Layer({"dataset": features, **settings})])


def test_presets_in_python():
    paper = TrainConfig.preset("paper-cifar10", seed=3)
    assert (paper.steps, paper.seed, paper.preset_name) == (2**20, 3, "paper-cifar10")
    assert TrainConfig.preset("digits") == TrainConfig(preset_name="digits")
    with pytest.raises(ValueError, match=r"preset: got 'feature', expected one of .* did you mean 'features'"):
        TrainConfig.preset("feature")
    with pytest.raises(ValueError, match="got the unknown key 'stepps'; did you mean 'steps'"):
        TrainConfig.preset("digits", stepps=3)
    assert "preset_name" in {field.name for field in fields(TrainConfig)}
