"""From given settings to the config of a run, for ``momatch train``, ``momatch sweep`` and `momatch.fit` alike. No torch.

A features file (``momatch embed``) decides some settings, rules out others, and brings the preset ``features`` where no preset
is named. All of that stands here.
"""

from collections.abc import Sequence
from dataclasses import fields

from momatch.config import TrainConfig
from momatch.config.layers import Layer, combine, error_at, merged, preset_layer
from momatch.data.feature_spec import FeatureSpec, read_feature_spec

#: The preset that a features file brings.
FEATURES_PRESET = "features"


def resolve_layers(layers: Sequence[Layer], features: FeatureSpec | None = None) -> TrainConfig:
    """The resolved config that layers of settings give.

    Args:
        layers: from the weakest to the strongest.
        features: of the features that will be trained on; None to look whether the dataset is a features file.

    Raises:
        ValueError: as `combine`, or if a setting is given that the features file has decided.
    """
    given = merged(layers)
    name = given.get("dataset")
    if features is None and isinstance(name, str):
        features = read_feature_spec(name)
    if features is None:
        return combine(layers)
    _refuse_what_is_done(layers, features)
    if given.get("preset_name") is None:
        layers = [preset_layer(FEATURES_PRESET), *layers]
    return combine(layers, Layer(features.settings, str(features.path)))


def resolve_config(config: TrainConfig, features: FeatureSpec | None = None) -> TrainConfig:
    """The resolved config of a run that is started with `config`.

    Where it trains on features and `config` was not made by `TrainConfig.preset`, fields that equal their defaults count as not
    given, and the preset ``features`` fills them in. So ``TrainConfig(dataset="features.npz")`` is what ``momatch train
    --dataset features.npz`` is.

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


def _refuse_what_is_done(layers: Sequence[Layer], features: FeatureSpec) -> None:
    """Refuse settings of what was done when the features were made."""
    given = merged(layers)
    height, width = features.image_size
    made = f"{features.path} holds features of images of {width}x{height}"
    remedies = {
        "image_size": f"{made}; give the size to momatch embed",
        "test_fraction": f"{made}, and test images are held out when features are made: give it to momatch embed",
        "compile": f"{made}, which went through the network before",
    }
    for key, remedy in remedies.items():
        if given.get(key):
            raise error_at(layers, f"{key}: got {given[key]}, expected nothing: {remedy}")
