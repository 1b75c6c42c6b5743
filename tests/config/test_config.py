"""`TrainConfig`: each check with its message, the way to and from plain values, and that every field is documented."""

import json
import re
from dataclasses import FrozenInstanceError, fields

import pytest
from docstring_parser import parse

from momatch.config import RUNTIME_KEYS, TrainConfig

NAMES = [field.name for field in fields(TrainConfig)]
AT_LEAST_1 = ["steps", "labeled_batch_size", "accumulate", "log_interval", "keep_checkpoints", "max_skipped_steps"]
AT_LEAST_0 = [
    "labels_per_class", "embedding_dim", "outlier_refit_interval", "warmup_steps", "seed", "eval_interval",
    "checkpoint_interval", "unlabeled_batch_size", "moment_weight", "unlabeled_weight", "fairness_weight", "weight_decay",
    "clip_norm",
]  # fmt: skip
FRACTIONS = ["cutoff", "outlier_quantile", "ema_decay", "momentum", "test_fraction"]


def test_docstring_documents_every_field_in_order():
    documented = parse(TrainConfig.__doc__).params
    assert [entry.arg_name for entry in documented] == NAMES
    for entry in documented:
        assert re.fullmatch(r"\S.*[.\)]", entry.description, flags=re.DOTALL), entry.arg_name


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
        ({"policy": "qqq"}, "policy: got 'qqq', expected one of 'flexmatch'"),
        ({"lr": 0.0}, "lr: got 0.0, expected a positive number"),
        ({"head_lr_factor": -1.0}, "head_lr_factor: got -1.0, expected a positive number"),
        ({"moment_order": 5}, "moment_order: got 5, expected 0 to 4"),
        ({"outlier_percentile": 101.0}, "outlier_percentile: got 101.0, expected 0 to 100"),
        ({"image_size": 0}, "image_size: got 0, expected at least 1"),
        ({"unlabeled_batch_size": 0}, "unlabeled_batch_size: got 0 with policy 'flexmatch', expected at least 1"),
        ({"head": "linear", "moment_order": 1}, "moment_order: got 1 with head 'linear', expected 0"),
        ({"resume": True, "overwrite": True}, "resume and overwrite: got both"),
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
    config = TrainConfig(head="linear", policy="supervised", embedding_dim=0, seed=3).resolved()
    assert (config.moment_order, config.unlabeled_batch_size) == (0, 0)
    assert config.run_dir == "runs/digits-4-linear-wide-order0-supervised-seed3"
    assert config.resolved() == config
    assert TrainConfig().resolved().moment_order == 1
    assert TrainConfig(moment_order=0, run_dir="mine").resolved().moment_order == 0
    assert TrainConfig(run_dir="mine").resolved().run_dir == "mine"
    assert TrainConfig(dataset="a/pets.csv").resolved().run_dir.startswith("runs/pets-4-")
