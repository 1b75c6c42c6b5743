"""Presets: overrides of `TrainConfig`'s defaults, with a one-line description for ``--help``.

Presets do not set `moment_order`, so that ``--preset paper-cifar10 --head linear`` is the paper's baseline: the order defaults
to 1 for heads with centers and 0 for the linear head (`TrainConfig.resolved`).

The ``paper-`` presets use the FlexMatch benchmark protocol with the values from USB; other algorithms change it by
`momatch.config.algorithms.PROTOCOLS`. The paper's five seeds are
3474173998, 273230791, 3586106167, 1325645050 and 2564231920.
"""

import difflib
from typing import Any

_PROTOCOL: dict[str, Any] = {
    "labels_per_class": 4,
    "labeled_in_pool": True,
    "flip": "yes",
    "strong_operations": 3,
    "cutout": 0.5,
    "backbone_variant": "published",
    "head": "aagmm",
    "embedding_dim": 8,
    "algorithm": "flexmatch",
    "cutoff": 0.95,
    "steps": 2**20,
    "labeled_batch_size": 64,
    "unlabeled_batch_size": 7 * 64,
    "forward": "joint",
    "optimizer": "sgd",
    "lr": 0.03,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "clip_norm": 1.0,
    "schedule": "cosine",
    "warmup_steps": 0,
    "ema_decay": 0.999,
    "precision": "float32",
    "eval_interval": 5120,
    "checkpoint_interval": 5120,
    "log_interval": 256,
}

_CPU: dict[str, Any] = {"eval_interval": 500, "checkpoint_interval": 250}

#: Name -> settings that differ from the defaults.
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist-cpu": _CPU | {"dataset": "mnist", "backbone": "cnn-tiny", "steps": 1500},
    "fashion-cpu": _CPU | {"dataset": "fashion-mnist", "backbone": "cnn-tiny", "steps": 1500},
    # At 24 pixels a step takes half as long as at 32, and trials were as accurate in the same time (docs/experiments.md).
    "cifar10-cpu": _CPU
    | {"dataset": "cifar10", "backbone": "cnn-small", "image_size": 24, "steps": 20_000, "ema_decay": 0.999},
    # A weak constraint: on a linear projection of many features, a strong one outweighs the labels.
    "features": {
        "embedding_dim": 64,
        "moment_weight": 0.01,
        "graph_neighbors": 20,
        "steps": 300,
        "labeled_batch_size": 64,
        "unlabeled_batch_size": 192,
        "lr": 0.01,
        "weight_decay": 5e-4,
        "ema_decay": 0.99,
        "eval_interval": 100,
        "checkpoint_interval": 100,
    },
    "paper-cifar10": _PROTOCOL | {"dataset": "cifar10", "backbone": "wrn-28-2"},
    "paper-stl10": _PROTOCOL | {"dataset": "stl10", "backbone": "wrn-37-2"},
}

#: Name -> description in ``--help``.
DESCRIPTIONS: dict[str, str] = {
    "digits": "the defaults: scikit-learn's digits, no download, under a minute on a CPU.",
    "mnist-cpu": "MNIST with a small network, minutes on a CPU.",
    "fashion-cpu": "Fashion-MNIST with a small network, minutes on a CPU.",
    "cifar10-cpu": "CIFAR-10, scaled down to run on a CPU; results are not the paper's.",
    "features": "for features files from momatch embed, seconds on a CPU; the default for them.",
    "paper-cifar10": "the paper's protocol with WRN-28-2: 2^20 steps, days on a GPU.",
    "paper-stl10": "the paper's protocol with WRN-37-2 at 96 pixels: 2^20 steps, days on a GPU.",
}


def preset_settings(name: str) -> dict[str, Any]:
    """The settings of a preset, with its name as `preset_name`.

    Raises:
        ValueError: if the preset is unknown; suggests a close match.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"preset: got {name!r}, expected one of {', '.join(PRESETS)}{hint}")
    return {**PRESETS[name], "preset_name": name}
