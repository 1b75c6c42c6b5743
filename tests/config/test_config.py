"""`TrainConfig`: each check with its message, the way to and from plain values, and that every field is documented."""

import json
import re
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from docstring_parser import parse

from momatch.config import RUNTIME_KEYS, LossSettings, OptimizerSettings, TrainConfig
from momatch.config.algorithms import OPTIONS, OWN_SETTINGS
from momatch.config.settings import BUILT_IN, GROUPS, UPRIGHT, WITHOUT_CENTERS
from momatch.data.catalog import KNOWN
from momatch.heads import HEADS

NAMES = [field.name for field in fields(TrainConfig)]
AT_LEAST_1 = ["steps", "labeled_batch_size", "accumulate", "log_interval", "keep_checkpoints", "max_skipped_steps"]
AT_LEAST_0 = [
    "labels_per_class", "embedding_dim", "outlier_refit_interval", "warmup_steps", "seed", "eval_interval",
    "checkpoint_interval", "unlabeled_batch_size", "moment_weight", "unlabeled_weight", "fairness_weight", "weight_decay",
    "clip_norm",
]  # fmt: skip
FRACTIONS = ["cutoff", "outlier_quantile", "ema_decay", "momentum", "test_fraction"]


def test_docstrings_document_every_field_in_order():
    documented = [entry for group in GROUPS.values() for entry in parse(group.__doc__).params]
    documented += parse(TrainConfig.__doc__).params
    assert [entry.arg_name for entry in documented] == NAMES
    for entry in documented:
        assert re.fullmatch(r"\S.*[.\)]", entry.description, flags=re.DOTALL), entry.arg_name


def test_heads_without_centers_are_those_of_the_method():
    assert {name for name, head in HEADS.items() if not head.has_centers} == WITHOUT_CENTERS


@pytest.mark.parametrize("values", [{"image_size": 2**31 - 1}, {"strong_operations": 2**31 - 1}])
def test_sizes_that_no_memory_holds_are_refused(values):
    (key,) = values
    with pytest.raises(ValueError, match=rf"{key}: got 2147483647, expected"):
        TrainConfig(**values)


def test_groups_part_the_settings():
    grouped = [field.name for group in GROUPS.values() for field in fields(group)]
    # Which preset the settings started from is not a setting of its own.
    assert [*grouped, "preset_name"] == NAMES
    assert all(issubclass(TrainConfig, group) for group in GROUPS.values())


def test_a_group_checks_its_own_settings():
    assert LossSettings(outliers="chi2").for_head("aagmm").outlier_score == "nearest"
    assert LossSettings().for_head("linear").moment_order == 0
    with pytest.raises(ValueError, match="outliers: got 'chi2' with head 'linear'"):
        LossSettings(outliers="chi2").for_head("linear")
    with pytest.raises(ValueError, match="steps: got 0"):
        OptimizerSettings(steps=0)
    assert OptimizerSettings().for_algorithm("supervised").unlabeled_batch_size == 0


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig) if field.type in (float, int)])
def test_every_number_has_an_upper_bound(name):
    value = 2**70 if type(getattr(TrainConfig(), name)) is int else 1e300
    with pytest.raises(ValueError, match=f"{name}: got"):
        TrainConfig.from_dict({name: value})


def test_largest_rates_are_finite_in_single_precision():
    largest = 1e6
    config = TrainConfig(lr=largest, head_lr_factor=largest, weight_decay=largest)
    # The product enters the update of AdamW.
    assert config.lr * config.head_lr_factor * config.weight_decay < 3.4e38


def test_runtime_keys_are_fields():
    assert set(NAMES) >= RUNTIME_KEYS
    assert not RUNTIME_KEYS & {"seed", "steps", "lr", "dataset", "precision"}


def test_round_trip():
    config = TrainConfig(dataset="mnist", lr=0.1, moment_order=2, run_dir="a b", image_size=32)
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert list(config.to_dict()) == NAMES


def test_is_frozen():
    with pytest.raises(FrozenInstanceError):
        TrainConfig().steps = 3


def test_integers_where_numbers_are_wanted_become_numbers():
    config = TrainConfig.from_dict({"lr": 1, "clip_norm": 0})
    assert (type(config.lr), type(config.clip_norm)) == (float, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": "600"}, "steps: got '600' of type str, expected int"),
        ({"steps": True}, "steps: got True of type bool, expected int"),
        ({"steps": 3.0}, "steps: got 3.0 of type float, expected int"),
        ({"refit": 1}, "refit: got 1 of type int, expected bool"),
        ({"lr": "0.1"}, "lr: got '0.1' of type str, expected float"),
        ({"lr": float("nan")}, "lr: got nan, expected a finite number"),
        ({"weight_decay": float("inf")}, "weight_decay: got inf, expected a finite number"),
        ({"dataset": None}, "dataset: got None of type NoneType, expected str"),
        ({"image_size": "8"}, "image_size: got '8' of type str, expected int or None"),
        ({"head": "agmm"}, "head: got 'agmm', expected one of 'aagmm', 'kmeans', 'linear'; did you mean 'aagmm'?"),
        ({"algorithm": "qqq"}, "algorithm: got 'qqq', expected one of 'supervised', 'pseudolabel'"),
        (
            {"algorithm": "mixmatch", "smoothing": 0.5},
            "smoothing: got 0.5 with algorithm 'mixmatch', expected it not to be set",
        ),
        ({"lr": 0.0}, "lr: got 0.0, expected a positive number"),
        ({"head_lr_factor": -1.0}, "head_lr_factor: got -1.0, expected a positive number"),
        ({"moment_order": 5}, "moment_order: got 5, expected 0 to 4"),
        ({"outlier_percentile": 101.0}, "outlier_percentile: got 101.0, expected 0 to 100"),
        ({"image_size": 0}, "image_size: got 0, expected at least 1"),
        ({"unlabeled_batch_size": 0}, "unlabeled_batch_size: got 0 with algorithm 'flexmatch', expected at least 1"),
        ({"head": "linear", "moment_order": 1}, "moment_order: got 1 with head 'linear', expected 0"),
        ({"resume": True, "overwrite": True}, "resume and overwrite: got both"),
        ({"resume": "auto", "overwrite": True}, "resume and overwrite: got both"),
        ({"resume": "aut"}, "resume: got 'aut', expected one of False, True, 'auto'; did you mean 'auto'?"),
        ({"resume": 1}, "resume: got 1, expected one of False, True, 'auto'"),
        ({"lr": 1e300}, "lr: got 1e+300, expected at most 1,000,000"),
        ({"steps": 2**31}, "steps: got 2147483648, expected at most 2,147,483,647"),
        ({"labeled_batch_size": 2**20 + 1}, "labeled_batch_size: got 1048577, expected at most 1,048,576"),
        *(({name: 0}, f"{name}: got 0, expected at least 1") for name in AT_LEAST_1),
        *(({name: -1}, f"{name}: got -1") for name in AT_LEAST_0),
        *(({name: 1.5}, f"{name}: got 1.5, expected 0 to 1") for name in FRACTIONS),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_message(values, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        TrainConfig.from_dict(values)
    # config_layers reads the key from the front of the message.
    assert str(caught.value).partition(":")[0].split(" and ")[0] in NAMES


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("labels-per-class", "did you mean 'labels_per_class'?"),
        ("learning_rate", "known keys: dataset, data_dir"),
        ("Steps", "did you mean 'steps'?"),
    ],
)
def test_unknown_key_has_a_suggestion(key, hint):
    with pytest.raises(ValueError, match=re.escape(f"my.toml: got the unknown key {key!r}; {hint}")):
        TrainConfig.from_dict({key: 1}, source="my.toml")


def test_resolved_fills_in_what_depends_on_other_settings():
    config = TrainConfig(head="linear", algorithm="supervised", embedding_dim=0, seed=3).resolved()
    assert (config.moment_order, config.unlabeled_batch_size) == (0, 0)
    assert config.run_dir == "runs/digits-4-linear-wide-order0-supervised-seed3"
    assert config.resolved() == config
    assert TrainConfig().resolved().moment_order == 1
    assert TrainConfig(moment_order=0, run_dir="mine").resolved().moment_order == 0
    assert TrainConfig(run_dir="mine").resolved().run_dir == "mine"
    assert TrainConfig(dataset="a/pets.csv", labels_per_class=4).resolved().labels_per_class == 4
    assert TrainConfig(dataset="a/pets.csv").resolved().run_dir.startswith("runs/pets-0-")


def test_runs_on_different_data_have_different_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    datasets = ["photos", "site1/photos", "site2/photos", "photos.csv", "site1/photos.csv", "mnist", "./mnist"]
    names = [TrainConfig(dataset=dataset).resolved().run_dir for dataset in datasets]
    assert len(set(names)) == len(names)
    # The same data by another path is the same run.
    for same in (tmp_path / "site1" / "photos", "site2/../site1/photos", "./site1/photos/"):
        assert TrainConfig(dataset=str(same)).resolved().run_dir == names[1]
    assert TrainConfig(dataset="mnist").resolved().run_dir == "runs/mnist-4-aagmm-8d-order1-flexmatch-seed0"


def test_built_in_datasets_are_those_of_the_catalog():
    assert set(KNOWN) == BUILT_IN
    assert {name for name, known in KNOWN.items() if not known.flip} == UPRIGHT


@pytest.mark.parametrize(("dataset", "weight"), [("digits", 0.0), ("mnist", 0.0), ("cifar10", 0.5), ("photos", 0.5)])
def test_images_that_turning_would_change_are_not_turned(dataset, weight):
    config = TrainConfig(dataset=dataset, algorithm="remixmatch")
    assert config.resolved().rotation_weight == weight
    assert replace(config, rotation_weight=0.3).resolved().rotation_weight == 0.3
    assert replace(config, algorithm="flexmatch").resolved().rotation_weight is None


def test_former_name_of_the_algorithm_still_works():
    with pytest.warns(DeprecationWarning, match="policy is now called algorithm"):
        config = TrainConfig(policy="freematch")
    assert config == TrainConfig(algorithm="freematch")
    # Files of earlier releases are read without a word.
    assert TrainConfig.from_dict({"policy": "freematch"}) == config
    assert "policy" not in config.to_dict()
    with pytest.raises(
        ValueError, match="config: got algorithm 'uda' and policy 'freematch', which is its former name"
    ):
        TrainConfig.from_dict({"policy": "freematch", "algorithm": "uda"})


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_settings_of_an_algorithm_are_filled_in(algorithm):
    config = TrainConfig(dataset="cifar10", algorithm=algorithm).resolved()
    assert config == config.resolved()
    for key in OWN_SETTINGS:
        assert getattr(config, key) == OPTIONS[algorithm].get(key, getattr(TrainConfig, key))
    assert config.unlabeled_weight == OPTIONS[algorithm].get("unlabeled_weight", 1.0)
    if algorithm != "supervised":
        assert TrainConfig(algorithm=algorithm, unlabeled_weight=7.0).resolved().unlabeled_weight == 7.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "supervised", "unlabeled_weight": 3.0}, "unlabeled_weight: got 3.0 with algorithm 'supervised'"),
        ({"algorithm": "fixmatch", "fairness_weight": 0.5}, "fairness_weight: got 0.5 .* it is a setting of freematch"),
        (
            {"algorithm": "mixmatch", "policy": "uda"},
            "algorithm: got 'mixmatch' and policy 'uda', which is its former name",
        ),
    ],
)
def test_a_setting_without_effect_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


def test_an_algorithm_of_ones_own_names_its_run():
    one, other = (TrainConfig(algorithm=f"{module}:Mine").resolved() for module in ("a", "b"))
    assert "-Mine-" in one.run_dir
    assert one.run_dir != other.run_dir
