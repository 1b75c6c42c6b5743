"""Training on features: the classifier trains without its backbone, and is saved with it.

What the file decides (backbone, views) is no setting of the run any more: `adopt` writes it into the config, so that a run's
record says what it was trained on.
"""

import copy
from dataclasses import fields, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from momatch.augment import CachedView
from momatch.config import TrainConfig
from momatch.data.dataset import Dataset
from momatch.data.feature_facts import FeatureFacts
from momatch.data.features import backbone_weights
from momatch.data.rows import ImageRows
from momatch.models.classifier import CachedFeatures, Classifier
from momatch.models.model_files import build_classifier, fill
from momatch.models.spec import ModelSpec

#: So many images are enough for means and deviations.
STATISTICS_SAMPLES = 10_000
#: The projection starts at this share of its usual size. What it does to directions in which the few labels differ by chance is
#: never unlearnt, and with the constraint, which bounds what is learnt, it would drown that.
INITIAL_SCALE = 0.05
#: The bits of a float16 that are its exponent.
_EXPONENT = 0x7C00


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
    for key, value in {"image_size": config.image_size, "test_fraction": config.test_fraction or None}.items():
        if value is not None:
            height, width = facts.image_size
            raise ValueError(
                f"{key}: got {value}, expected nothing: {facts.path} holds features of images of {width}x{height}, parted when "
                "they were made; give it to momatch embed"
            )
    if config.compile:
        raise ValueError("compile: got True, expected False: features went through the network before")
    return replace(config, **facts.settings)


def model_facts(config: TrainConfig, facts: FeatureFacts, class_names: tuple[str, ...]) -> ModelSpec:
    """What the whole classifier, from pixels to log joints, is built from."""
    return ModelSpec(
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


def build_whole(model: ModelSpec, facts: FeatureFacts, *, trust_code: bool = False) -> Classifier:
    """The whole classifier, with the backbone's weights from the features file and untrained behind it, on the CPU.

    Raises:
        UntrustedCodeError: if the file names a backbone that has to be imported and `trust_code` is not set.
        ValueError: if the backbone cannot be built, or the weights are not its own.
    """
    whole = build_classifier(model, trust_code=trust_code, source=facts.path, to_be_filled=True)
    misfit = f"{facts.path}: the weights in it are not those of backbone {facts.backbone!r}; has its code changed?"
    fill(whole.backbone, backbone_weights(facts), misfit)
    return whole


class StandardizedLinear(nn.Linear):
    """A linear layer of standardised features: W (x - mean) / std + b.

    Backbones leave features on scales of their own, and one learning rate must serve all. Once trained it is a plain linear
    layer (`folded`).

    Args:
        linear: its weight and bias are copied.
        mean: (F,) of the features.
        std: (F,), positive.
    """

    mean: Float[Tensor, " F"]
    std: Float[Tensor, " F"]

    def __init__(self, linear: nn.Linear, mean: Float[Tensor, " F"], std: Float[Tensor, " F"]) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self.load_state_dict(linear.state_dict())
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, input: Float[Tensor, "n F"]) -> Float[Tensor, "n D"]:
        """Embeddings of features."""
        return super().forward((input - self.mean) / self.std)

    def folded(self) -> nn.Linear:
        """The linear layer of raw features that does the same."""
        linear = nn.Linear(self.in_features, self.out_features, device=self.weight.device)
        weight = self.weight.detach().double() / self.std.double()
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(self.bias.double() - weight @ self.mean.double())
        return linear


def feature_statistics(rows: ImageRows) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
    """Mean and standard deviation of each feature over the plain views of an even share of `rows`; 1 for a constant feature."""
    share = rows.plain().even_share(STATISTICS_SAMPLES)
    features = torch.cat([chunk[:, 0] for chunk in share.chunks()]).double()
    std, mean = torch.std_mean(features, 0, correction=0)
    # What varies by less than half precision can tell is constant.
    return mean.float(), torch.where(std > 1e-3 * mean.abs(), std, 1.0).float()


def without_backbone(whole: Classifier, rows: ImageRows) -> Classifier:
    """The part of `whole` that trains, from features to log joints, untrained; nothing is shared with it.

    Args:
        whole: the classifier of images.
        rows: features to train on, whose scales it is given.
    """
    projection = whole.projection
    if projection is not None:
        assert isinstance(projection, nn.Linear), "Classifier.build makes it"
        projection = StandardizedLinear(projection, *feature_statistics(rows))
        with torch.no_grad():
            projection.weight.mul_(INITIAL_SCALE)
    return Classifier(CachedFeatures(rows.image_shape[1]), copy.deepcopy(whole.head), projection)


def with_backbone(trained: Classifier, whole: Classifier) -> Classifier:
    """The trained part, copied, behind the backbone and preprocessing of `whole`: a classifier of images, on the CPU."""
    projection = trained.projection
    if projection is not None:
        assert isinstance(projection, StandardizedLinear), "without_backbone makes it"
        projection = projection.folded().cpu()
    return Classifier(whole.backbone, copy.deepcopy(trained.head).cpu(), projection, preprocess=whole.preprocess)


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


def check_finite(dataset: Dataset) -> None:
    """Check that every feature of a features file is finite, as ``momatch embed`` leaves them.

    Opening the file reads none of them, and training would skip steps, or end in the words of whatever meets one first.

    Raises:
        ValueError: if one is not.
    """
    assert dataset.features is not None, "the caller has looked"
    path = dataset.features.path
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        first = 0
        for chunk in () if split is None else ImageRows([split.images]).chunks():
            # Several times as fast as isfinite: the largest exponent of float16 is that of infinities and NaN.
            if int((chunk.view(torch.int16) & _EXPONENT).max()) == _EXPONENT:
                row = first + int((~chunk.isfinite()).flatten(1).any(1).nonzero()[0])
                raise ValueError(
                    f"{path}: {name}_features: got features of image {row} that are not finite, expected finite ones: the file "
                    f"is damaged (momatch data {path} --verify compares its checksums); embed the images anew"
                )
            first += len(chunk)


def cached_views(facts: FeatureFacts) -> tuple[CachedView, CachedView]:
    """What weak and strong views are drawn from: the plain one and the weak ones; the strong ones.

    Raises:
        ValueError: if there is no strong view.
    """
    weak = 1 + facts.weak_views
    return CachedView(0, weak, default_view=0), CachedView(weak, facts.strong_views, default_view=1)
