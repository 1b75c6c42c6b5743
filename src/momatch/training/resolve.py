"""Resolve the config of a run, for ``momatch train``, ``momatch sweep`` and `momatch.fit`. Does not import torch.

A features file (``momatch embed``) fixes some settings, rules out others, and makes ``features`` the default preset.
"""

from collections.abc import Sequence
from dataclasses import fields

from momatch.config import TrainConfig
from momatch.config.layers import Layer, combine, error_at, merged, preset_layer
from momatch.config.settings import default_labels
from momatch.data.feature_spec import FeatureSpec, read_feature_spec

#: Default preset for features files.
FEATURES_PRESET = "features"


def resolve_layers(layers: Sequence[Layer], features: FeatureSpec | None = None) -> TrainConfig:
    """Resolve layers of settings.

    Args:
        layers: in order of increasing precedence.
        features: spec of the features to train on; None to read it if the dataset is a features file.

    Raises:
        ValueError: as `combine`, or if a setting contradicts the features file.
    """
    given = merged(layers)
    name = given.get("dataset")
    if features is None and isinstance(name, str):
        features = read_feature_spec(name)
    if features is None:
        return combine(layers)
    _check_features(layers, features)
    if given.get("labels_per_class") is None:
        layers = [*layers, Layer({"labels_per_class": default_labels(features.dataset)}, str(features.path))]
    if given.get("preset_name") is None:
        layers = [preset_layer(FEATURES_PRESET), *layers]
    return combine(layers, Layer(features.settings, str(features.path)))


def resolve_config(config: TrainConfig, features: FeatureSpec | None = None) -> TrainConfig:
    """Resolve a config.

    For a features file, unless `config` was made by `TrainConfig.preset`, fields at their defaults are taken from the preset
    ``features``, so that ``TrainConfig(dataset="features.npz")`` equals ``momatch train --dataset features.npz``.

    Args:
        config: the settings.
        features: as for `resolve_layers`.

    Raises:
        ValueError: as `resolve_layers`.
    """
    if features is None:
        features = read_feature_spec(config.dataset)
    if features is None:
        return config.resolved()
    given = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if getattr(config, field.name) != field.default
        or (config.preset_name is not None and field.name not in features.settings)
    }
    return resolve_layers([Layer(given, "config")], features)


def _check_features(layers: Sequence[Layer], features: FeatureSpec) -> None:
    """Reject settings that only `momatch embed` can apply."""
    given = merged(layers)
    height, width = features.image_size
    made = f"{features.path} holds features of {width}x{height} images"
    remedies = {
        "image_size": f"{made}; pass the size to momatch embed",
        "test_fraction": f"{made}, and test images are held out when embedding; pass it to momatch embed",
        "weights": f"{made}, and the weights of their backbone; pass the file to momatch embed",
        "untrained": f"{made}, and the weights of their backbone; pass it to momatch embed",
        "compile": f"{made}, so the backbone is not run in training",
    }
    for key, remedy in remedies.items():
        if given.get(key):
            raise error_at(layers, f"{key}: got {given[key]}, expected it not to be set: {remedy}")
