"""Precedence, who is to blame for a wrong value, and what a resumed run may be given."""

import json
import re

import pytest

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.config.layers import (
    FlagError,
    Layer,
    code_named_in,
    combine,
    combine_resumed,
    preset_layer,
    read_config_file,
)

PRESET = Layer({"steps": 10, "seed": 1, "lr": 0.5}, "preset 'p'")
FILE = Layer({"steps": 20, "seed": 2}, "my.toml")


def test_flags_beat_file_beats_preset_beats_defaults():
    config = combine([PRESET, FILE, Layer({"steps": 30})])
    assert (config.steps, config.seed, config.lr, config.cutoff) == (30, 2, 0.5, 0.95)


def test_another_algorithm_does_not_take_the_defaults_of_the_former_one():
    printed = Layer(combine([Layer({"algorithm": "comatch", "smoothing": 0.5})]).to_dict(), "file")
    config = combine([printed, Layer({"algorithm": "mixmatch", "smoothing": None})])
    assert (config.algorithm, config.unlabeled_weight, config.memory_size) == ("mixmatch", 75.0, None)
    # What was chosen is not dropped in silence.
    with pytest.raises(ValueError, match=r"file: smoothing: got 0\.5 with algorithm 'mixmatch'"):
        combine([printed, Layer({"algorithm": "mixmatch"})])
    assert combine([printed]).to_dict() == printed.values


def test_flag_that_equals_the_default_beats_the_file():
    assert combine([PRESET, FILE, Layer({"steps": 600})]).steps == 600


def test_result_is_resolved():
    assert combine([]).run_dir == TrainConfig().resolved().run_dir
    assert combine([Layer({"algorithm": "supervised"}), Layer({"unlabeled_batch_size": 0})]).unlabeled_batch_size == 0


@pytest.mark.parametrize(
    ("layers", "kind", "message"),
    [
        ([Layer({"stepz": 3}, "my.toml")], ValueError, "my.toml: got the unknown key 'stepz'; did you mean 'steps'?"),
        ([Layer({"steps": "x"}, "my.toml")], ValueError, "my.toml: steps: got 'x' of type str, expected int"),
        ([FILE, Layer({"steps": -1})], FlagError, "--steps: got -1, expected at least 1"),
        ([Layer({"steps": -1}, "my.toml"), Layer({"seed": 4})], ValueError, "my.toml: steps: got -1"),
        (
            [Layer({"moment_order": 2}, "my.toml"), Layer({"head": "linear"})],
            ValueError,
            "my.toml: moment_order: got 2",
        ),
        ([Layer({"labels_per_class": -1})], FlagError, "--labels-per-class: got -1"),
        ([Layer({"resume": True, "overwrite": True})], FlagError, "--resume and --overwrite: got both"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_blame(layers, kind, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        combine(layers)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(message)


def test_bad_value_that_is_overridden_does_no_harm():
    assert (
        combine([Layer({"unlabeled_batch_size": 0}, "my.toml"), Layer({"algorithm": "supervised"})]).algorithm
        == "supervised"
    )


@pytest.mark.parametrize("name", ["my.toml", "my.JSON"])
def test_files(tmp_path, name):
    path = tmp_path / name
    path.write_text('\ufeffsteps = 3\nhead = "linear"\n' if "toml" in name else '{"steps": 3, "head": "linear"}')
    assert read_config_file(path) == {"steps": 3, "head": "linear"}


def test_config_of_a_run_without_its_place(tmp_path):
    stored = TrainConfig(steps=7, run_dir="there", resume=True).to_dict()
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"format": "momatch run", "version": 1, "config": stored}))
    values = read_config_file(path)
    assert values["steps"] == 7
    assert not {"run_dir", "resume", "overwrite"} & set(values)
    assert TrainConfig.from_dict(values) == TrainConfig(steps=7)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("my.yaml", b"steps: 3", "expected a config file that ends in .toml or .json"),
        ("my.toml", b"steps = ", "not valid TOML"),
        ("my.json", b"{", "not valid JSON"),
        ("my.json", b"[" * 100_000, "not valid JSON"),
        ("my.json", b"[1]", "got a list, expected an object"),
        ("my.toml", b"\xff", "not valid TOML"),
        ("my.toml", None, "file not found"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_config_file(path)
    assert str(caught.value).startswith(str(path))


def test_unknown_preset_has_a_suggestion():
    with pytest.raises(FlagError, match=re.escape("expected one of digits, mnist-cpu")) as caught:
        preset_layer("mnist_cpu")
    assert "did you mean 'mnist-cpu'?" in str(caught.value)


STORED = TrainConfig(steps=50, seed=9, head="linear", run_dir="old/place", overwrite=True, data_dir="data").resolved()


def resumed(layers, stored):
    return combine_resumed(layers, combine(layers), stored)


def test_resumed_run_has_its_stored_settings():
    config = resumed([Layer({"run_dir": "new/place", "resume": True, "device": "cpu"})], STORED)
    assert (config.steps, config.seed, config.head, config.data_dir) == (50, 9, "linear", "data")
    assert (config.run_dir, config.resume, config.overwrite, config.device) == ("new/place", True, False, "cpu")


def test_the_same_command_with_resume_goes_on():
    layers = [Layer({"steps": 40}, "my.toml"), Layer({"steps": 50, "seed": 9, "head": "linear", "resume": True})]
    assert resumed(layers, STORED).steps == 50
    supervised = TrainConfig(algorithm="supervised", unlabeled_batch_size=64).resolved()
    again = Layer({"algorithm": "supervised", "unlabeled_batch_size": 64, "moment_order": None, "resume": True})
    assert resumed([again], supervised).unlabeled_batch_size == 0


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Layer({"steps": 600, "run_dir": "r"}), "--steps: got 600, expected 50, as when the run in r was started"),
        (Layer({"head": "aagmm"}), "--head: got 'aagmm', expected 'linear'"),
        (Layer({"seed": 0}, "my.toml"), "my.toml: seed: got 0, expected 9"),
    ],
)
def test_resume_refuses_other_settings(layer, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        resumed([layer], STORED)
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, FlagError) == (layer.source is None)


def test_every_runtime_key_may_differ():
    values = {"data_dir": "d", "device": "cpu", "checkpoint_interval": 7, "keep_checkpoints": 5, "progress": False}
    values |= {"tracker": "tensorboard", "run_dir": "r", "resume": True, "overwrite": False, "preset_name": "digits"}
    assert values.keys() == RUNTIME_KEYS
    config = resumed([Layer(values)], STORED)
    assert {key: getattr(config, key) for key in values} == values


def test_what_a_command_line_names_may_be_imported():
    assert code_named_in({"steps": 3}) is False
    assert code_named_in({"policy": "mine:Match", "backbone": "mine:net", "steps": 3}) == "mine:net,mine:Match"
