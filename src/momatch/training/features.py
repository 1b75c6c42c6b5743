"""Training on features: the classifier trains without its backbone, and is saved with it.

What the file decides (backbone, views) is no setting of the run any more: `adopt` writes it into the config, so that a run's
record says what it was trained on.
"""

from dataclasses import fields, replace

import torch

from momatch.augment import CachedView
from momatch.classifier import CachedFeatures, Classifier
from momatch.config import TrainConfig
from momatch.data.feature_facts import FeatureFacts
from momatch.data.features import backbone_weights
from momatch.training.model_files import ModelFacts, build_classifier


def adopt(config: TrainConfig, facts: FeatureFacts) -> TrainConfig:
    """The config with what the features file decides.

    Raises:
        ValueError: if the config asks for something else.
    """
    defaults = {field.name: field.default for field in fields(config)}
    for key, value in facts.settings.items():
        given = getattr(config, key)
        if given not in (value, defaults[key]):
            raise ValueError(
                f"{key}: got {given!r}, expected {value!r}, with which {facts.path} was made; leave it out, or embed the "
                "images anew with momatch embed"
            )
    if config.compile:
        raise ValueError("compile: got True, expected False: features went through the network before")
    return replace(config, **facts.settings)


def model_facts(config: TrainConfig, facts: FeatureFacts, class_names: tuple[str, ...]) -> ModelFacts:
    """What the whole classifier, from pixels to log joints, is built from."""
    return ModelFacts(
        backbone=facts.backbone,
        backbone_variant=facts.backbone_variant,
        head=config.head,
        embedding_dim=config.embedding_dim,
        class_names=class_names,
        in_channels=facts.in_channels,
        image_size=facts.image_size,
        normalization=facts.normalization,
        dataset=facts.dataset,
    )


def build_whole(model: ModelFacts, facts: FeatureFacts) -> Classifier:
    """The whole classifier, with the backbone's weights from the features file and untrained behind it, on the CPU.

    Raises:
        ValueError: if the backbone cannot be built, or the weights are not its own.
    """
    # The weights are about to be replaced: the pretrained ones need not be there.
    options = {"pretrained": False} if model.backbone == "efficientnet-lite0" else {}
    whole = build_classifier(model, backbone_options=options)
    load_backbone(whole, facts)
    return whole


def load_backbone(classifier: Classifier, facts: FeatureFacts) -> None:
    """Give a classifier's backbone the weights that the features were made with.

    Raises:
        ValueError: if they are not those of this network.
    """
    weights = backbone_weights(facts)
    for name, own in classifier.backbone.state_dict(keep_vars=True).items():
        if name in weights and own.dtype != weights[name].dtype:
            own.data = own.data.to(weights[name].dtype)
    try:
        classifier.backbone.load_state_dict(weights)
    except RuntimeError as error:
        first = " ".join(line.strip() for line in str(error).splitlines()[1:2])
        raise ValueError(
            f"{facts.path}: the weights in it are not those of backbone {facts.backbone!r}; has its code changed? {first}"
        ) from error


def without_backbone(whole: Classifier, num_features: int) -> Classifier:
    """The part that trains: features to log joints. Projection and head are those of `whole`."""
    return Classifier(CachedFeatures(num_features), whole.head, whole.projection)


def with_backbone(trained: Classifier, whole: Classifier) -> Classifier:
    """The trained part behind the backbone and preprocessing of `whole`; nothing is copied but to the CPU."""
    parts = [None if part is None else part.cpu() for part in (trained.head, trained.projection)]
    assert parts[0] is not None
    return Classifier(whole.backbone, parts[0], parts[1], preprocess=whole.preprocess)


def check_backbone(classifier: Classifier, facts: FeatureFacts) -> None:
    """Check that features are those that this classifier's backbone makes: another one's mean nothing to it.

    Raises:
        ValueError: if they are not.
    """
    own, theirs = classifier.backbone.state_dict(), backbone_weights(facts)
    if own.keys() != theirs.keys() or not all(torch.equal(own[name].cpu(), theirs[name]) for name in own):
        raise ValueError(
            f"{facts.path}: got features of a backbone ({facts.backbone}) with other weights than the model's, expected "
            "those of the model's own backbone; evaluate on the images, or on the features file that it was trained on"
        )


def cached_views(facts: FeatureFacts) -> tuple[CachedView, CachedView]:
    """What weak and strong views are drawn from: the plain one and the weak ones; the strong ones.

    Raises:
        ValueError: if there is no strong view.
    """
    weak = 1 + facts.weak_views
    return CachedView(0, weak, default_view=0), CachedView(weak, facts.strong_views, default_view=1)
