"""The presets are configs, and the paper's are its protocol."""

import pytest

from momatch.config import TrainConfig
from momatch.config.algorithms import OPTIONS, PROTOCOLS
from momatch.config.layers import Layer, combine, preset_layer
from momatch.config.presets import DESCRIPTIONS, PRESETS

#: The benchmark protocol (FlexMatch as in USB) with the paper's head, and every other setting at its default.
PROTOCOL = {
    "image_size": None,
    "labels_per_class": 4,
    "labeled_in_pool": True,
    "flip": "yes",
    "strong_operations": 3,
    "cutout": 0.5,
    "backbone_variant": "published",
    "head": "aagmm",
    "embedding_dim": 8,
    "constraint": "moments",
    "moment_order": 1,
    "moment_weight": 1.0,
    "algorithm": "flexmatch",
    "cutoff": 0.95,
    "unlabeled_weight": 1.0,
    "outliers": "none",
    "steps": 1_048_576,
    "labeled_batch_size": 64,
    "unlabeled_batch_size": 448,
    "accumulate": 1,
    "forward": "joint",
    "optimizer": "sgd",
    "lr": 0.03,
    "head_lr_factor": 1.0,
    "momentum": 0.9,
    "weight_decay": 0.0005,
    "clip_norm": 1.0,
    "schedule": "cosine",
    "warmup_steps": 0,
    "ema_decay": 0.999,
    "precision": "float32",
    "eval_interval": 5120,
    "log_interval": 256,
    "checkpoint_interval": 5120,
}
PAPER = {
    "paper-cifar10": {"dataset": "cifar10", "backbone": "wrn-28-2"},
    "paper-stl10": {"dataset": "stl10", "backbone": "wrn-37-2"},
}


def test_names():
    assert list(PRESETS) == [
        "digits",
        "mnist-cpu",
        "fashion-cpu",
        "cifar10-cpu",
        "features",
        "paper-cifar10",
        "paper-stl10",
    ]
    assert list(DESCRIPTIONS) == list(PRESETS)


@pytest.mark.parametrize("text", DESCRIPTIONS.values())
def test_description_is_one_sentence(text):
    assert text.endswith(".")
    assert text.count(". ") == 0
    assert "\n" not in text


@pytest.mark.parametrize("name", PAPER)
def test_paper_presets_are_the_protocol(name):
    got = TrainConfig.from_dict(PRESETS[name]).resolved().to_dict()
    expected = TrainConfig().resolved().to_dict() | PROTOCOL | PAPER[name]
    assert got.pop("run_dir").startswith(f"runs/{PAPER[name]['dataset']}-4-aagmm-8d-order1-flexmatch-seed0-")
    expected.pop("run_dir")
    assert got == expected


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("algorithm", OPTIONS)
def test_each_algorithm_has_its_published_values_in_the_papers_presets(name, algorithm):
    """In Python as on the command line; whatever else is given goes before them."""
    expected = {**OPTIONS[algorithm], **PROTOCOLS[name].get(algorithm, {})}
    in_python = TrainConfig.preset(name, algorithm=algorithm).resolved()
    in_layers = combine([preset_layer(name), Layer({"algorithm": algorithm})])
    assert in_python == in_layers
    for key, value in expected.items():
        assert getattr(in_python, key) == value, key
    assert combine([preset_layer(name), Layer({"algorithm": algorithm, "cutoff": 0.5})]).cutoff == 0.5
    # A run's own config has every setting already.
    stored = {**in_python.to_dict(), "cutoff": 0.7}
    assert combine([Layer(stored, "config.json")]).cutoff == 0.7


def test_mixmatch_in_the_papers_presets():
    cifar10, stl10 = (TrainConfig.preset(name, algorithm="mixmatch").resolved() for name in PAPER)
    assert (cifar10.unlabeled_batch_size, cifar10.unlabeled_weight, cifar10.mix_alpha) == (64, 75.0, 0.75)
    assert (stl10.unlabeled_batch_size, stl10.unlabeled_weight) == (64, 50.0)
    assert TrainConfig.preset("paper-stl10", algorithm="comatch").contrast_weight == 5.0
    assert TrainConfig.preset("paper-cifar10", algorithm="uda").cutoff == 0.8


def test_paper_baseline_needs_no_second_flag():
    settings = PRESETS["paper-cifar10"] | {"head": "linear", "embedding_dim": 0}
    assert TrainConfig.from_dict(settings).resolved().moment_order == 0


@pytest.mark.parametrize(
    ("name", "dataset", "backbone"),
    [
        ("digits", "digits", "cnn-tiny"),
        ("mnist-cpu", "mnist", "cnn-tiny"),
        ("fashion-cpu", "fashion-mnist", "cnn-tiny"),
        ("cifar10-cpu", "cifar10", "cnn-small"),
    ],
)
def test_cpu_presets_are_small(name, dataset, backbone):
    config = TrainConfig.from_dict(PRESETS[name]).resolved()
    assert (config.dataset, config.backbone, config.labels_per_class) == (dataset, backbone, 4)
    assert config.steps <= 20_000


def test_small_network_is_named_as_such():
    assert "not the paper's" in DESCRIPTIONS["cifar10-cpu"]
