"""What training asks of its data, by kind: `PixelInput` and `FeatureInput` answer the same questions.

How is the model built, what are its views, what guides its first pseudo-labels, what is saved at the end? On images the whole
classifier trains. On features it trains without its backbone, which was applied before, and is saved with it. `input_of` is the
one place that tells the two apart.
"""

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from momatch.augment import CachedView, StrongAugment, View, WeakAugment
from momatch.config import TrainConfig
from momatch.data.catalog import KNOWN
from momatch.data.dataset import Dataset
from momatch.data.feature_spec import FeatureSpec
from momatch.data.features import backbone_weights
from momatch.data.rows import Rows
from momatch.data.splits import SemiSupervised
from momatch.data.statistics import normalization
from momatch.models.classifier import CachedFeatures, Classifier
from momatch.models.model_files import build_classifier, fill
from momatch.models.spec import ModelSpec
from momatch.training.guide import neighbor_guide

#: This many images are enough for means and deviations.
STATISTICS_SAMPLES = 10_000
#: The projection starts at this share of its usual size. Training never unlearns what a random projection does along directions
#: in which the few labels differ by chance; started small, it leaves those directions weak.
INITIAL_SCALE = 0.05
#: The bits of a float16 that are its exponent.
_EXPONENT = 0x7C00


class Input(ABC):
    """A dataset as training sees it.

    Args:
        dataset: that is trained on.
    """

    #: What the rows are, before the word "images".
    words = ""
    #: What to say where test images are missing.
    no_test = "the dataset has no test images; train with test_fraction (--test-fraction), which holds some out"

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    @abstractmethod
    def check(self) -> None:
        """Check what loading did not.

        Raises:
            ValueError: if the rows cannot be trained on.
        """

    @abstractmethod
    def model_spec(self, config: TrainConfig, data: SemiSupervised) -> ModelSpec:
        """What the classifier of images, from raw pixels on, is built from."""

    @abstractmethod
    def build(self, model: ModelSpec, data: SemiSupervised, *, trust_code: bool = False) -> Classifier:
        """The classifier that trains, on the CPU, by torch's random state.

        Raises:
            UntrustedCodeError: if the backbone has to be imported and `trust_code` is not set.
            ValueError: if it cannot be built.
        """

    @abstractmethod
    def arrange(self, classifier: Classifier, config: TrainConfig) -> None:
        """Memory layout and compilation of the classifier that trains, on its device."""

    @abstractmethod
    def views(self, config: TrainConfig) -> tuple[View, View]:
        """The weak and the strong view."""

    @abstractmethod
    def guide(self, config: TrainConfig, data: SemiSupervised) -> Float[Tensor, "N_u K"] | None:
        """Class probabilities of the pool that the first pseudo-labels follow, on the CPU; None for none.

        Raises:
            ValueError: if the config asks for one that cannot be had.
        """

    @abstractmethod
    def saved(self, trained: Classifier) -> Classifier:
        """What is saved of a classifier that `build` made: one that takes raw images, in evaluation mode."""

    @abstractmethod
    def check_model(self, classifier: Classifier) -> None:
        """Check that a classifier of images can be applied to these rows.

        Raises:
            ValueError: if it cannot.
        """

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """What result.json says about this kind of data alone."""


def input_of(dataset: Dataset) -> Input:
    """The kind of input that a dataset is."""
    return PixelInput(dataset) if dataset.features is None else FeatureInput(dataset, dataset.features)


class PixelInput(Input):
    """Raw images: the whole classifier trains."""

    def check(self) -> None:
        """Any pixels can be trained on."""

    def model_spec(self, config: TrainConfig, data: SemiSupervised) -> ModelSpec:
        """From the config; normalised by the protocol's statistics or those of the pool."""
        channels, height, width = data.labeled.shape
        return ModelSpec(
            backbone=config.backbone,
            backbone_variant=config.backbone_variant,
            head=config.head,
            embedding_dim=config.embedding_dim,
            class_names=data.class_names,
            in_channels=channels,
            image_size=(height, width),
            normalization=normalization(self.dataset.name, _pool(data)),
            dataset=self.dataset.name,
        )

    def build(self, model: ModelSpec, data: SemiSupervised, *, trust_code: bool = False) -> Classifier:
        """The whole classifier."""
        return build_classifier(model, trust_code=trust_code)

    def arrange(self, classifier: Classifier, config: TrainConfig) -> None:
        """As the config says."""
        if config.channels_last:
            classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's annotations lack it
        if config.compile:
            classifier.backbone.compile()

    def views(self, config: TrainConfig) -> tuple[View, View]:
        """Weak and strong augmentation."""
        return image_views(config, flips(config.flip, self.dataset.name))

    def guide(self, config: TrainConfig, data: SemiSupervised) -> None:
        """There is none: before training, neighbours in pixels say little."""
        if config.graph_neighbors and config.policy != "supervised":
            raise ValueError(
                f"graph_neighbors: got {config.graph_neighbors} for images, expected 0: neighbours are looked for among "
                "features; make some with momatch embed"
            )

    def saved(self, trained: Classifier) -> Classifier:
        """The classifier itself."""
        return trained

    def check_model(self, classifier: Classifier) -> None:
        """Any classifier of images can."""

    def result(self) -> dict[str, Any]:
        """Nothing more."""
        return {}


class FeatureInput(Input):
    """Features: the part behind the backbone trains, and is saved with the backbone of the features file.

    Args:
        dataset: that is trained on.
        spec: how its features were made.
    """

    words = "features of "
    no_test = (
        "the features file has no test images; make it again with momatch embed --test-fraction, which holds some out"
    )

    def __init__(self, dataset: Dataset, spec: FeatureSpec) -> None:
        super().__init__(dataset)
        self.spec = spec
        self._whole: Classifier | None = None

    def check(self) -> None:
        """Every feature must be finite, as ``momatch embed`` leaves them.

        Opening the file reads none of them, and training would skip steps, or end in the words of whatever meets one first.
        """
        path = self.spec.path
        for name, split in self.dataset.splits.items():
            first = 0
            for chunk in split.rows.chunks():
                # Several times as fast as isfinite: the largest exponent of float16 is that of infinities and NaN.
                if int((chunk.view(torch.int16) & _EXPONENT).max()) == _EXPONENT:
                    row = first + int((~chunk.isfinite()).flatten(1).any(1).nonzero()[0])
                    raise ValueError(
                        f"{path}: {name}_features: got features of image {row} that are not finite, expected finite ones: the "
                        f"file is damaged (momatch data {path} --verify compares its checksums); embed the images again"
                    )
                first += len(chunk)

    def model_spec(self, config: TrainConfig, data: SemiSupervised) -> ModelSpec:
        """Backbone, size and normalisation from the features file, the rest from the config."""
        return whole_model_spec(config, self.spec, data.class_names)

    def build(self, model: ModelSpec, data: SemiSupervised, *, trust_code: bool = False) -> Classifier:
        """The part from features to log joints; projections start small and on standardised features."""
        self._whole = build_whole(model, self.spec, trust_code=trust_code)
        return without_backbone(self._whole, _pool(data))

    def arrange(self, classifier: Classifier, config: TrainConfig) -> None:
        """Vectors have one layout, and the network that would be compiled has been applied."""

    def views(self, config: TrainConfig) -> tuple[View, View]:
        """Weak: drawn from the plain and the weak views of the file. Strong: from its strong ones."""
        weak = 1 + self.spec.weak_views
        return CachedView(0, weak, default_view=0), CachedView(weak, self.spec.strong_views, default_view=1)

    def guide(self, config: TrainConfig, data: SemiSupervised) -> Float[Tensor, "N_u K"] | None:
        """Labels spread over a graph of nearest neighbours."""
        if not config.graph_neighbors or config.policy == "supervised":
            return None
        return neighbor_guide(data, weak_views=self.spec.weak_views, neighbors=config.graph_neighbors)

    def saved(self, trained: Classifier) -> Classifier:
        """The trained part behind the backbone, on the CPU."""
        assert self._whole is not None, "build comes first"
        return with_backbone(trained, self._whole).eval()

    def check_model(self, classifier: Classifier) -> None:
        """Only the classifier whose backbone made the features: those of another mean nothing to it."""
        own, theirs = classifier.backbone.state_dict(), backbone_weights(self.spec)
        if own.keys() != theirs.keys() or not all(torch.equal(own[name].cpu(), theirs[name]) for name in own):
            raise ValueError(
                f"{self.spec.path}: got features of a backbone ({self.spec.backbone}) with other weights than the model's, "
                "expected those of the model's own backbone; evaluate on the images, or on the features file that it was "
                "trained on"
            )

    def result(self) -> dict[str, Any]:
        """How many views there were, and which parameters are counted."""
        return {
            "feature_views": self.spec.num_views,
            "parameters_note": "those that trained, without the frozen backbone's",
        }


def flips(flip: str, dataset: str) -> bool:
    """Whether views of the images of `dataset` may be mirrored, by the setting `flip`."""
    if flip != "auto":
        return flip == "yes"
    return dataset not in KNOWN or KNOWN[dataset].flip


def image_views(config: TrainConfig, flip: bool) -> tuple[View, View]:
    """Weak and strong augmentation of images, as the config says."""
    return WeakAugment(flip=flip), StrongAugment(
        flip=flip, num_operations=config.strong_operations, cutout=config.cutout
    )


def whole_model_spec(config: TrainConfig, spec: FeatureSpec, class_names: tuple[str, ...]) -> ModelSpec:
    """What the whole classifier, from pixels to log joints, is built from where features train."""
    return ModelSpec(
        backbone=spec.backbone,
        backbone_variant=spec.backbone_variant,
        head=config.head,
        embedding_dim=config.embedding_dim,
        class_names=class_names,
        in_channels=spec.in_channels,
        image_size=spec.image_size,
        normalization=spec.normalization,
        dataset=spec.dataset,
    )


def build_whole(model: ModelSpec, spec: FeatureSpec, *, trust_code: bool = False) -> Classifier:
    """The whole classifier, with the backbone's weights from the features file and untrained behind it, on the CPU.

    Raises:
        UntrustedCodeError: if the file names a backbone that has to be imported and `trust_code` is not set.
        ValueError: if the backbone cannot be built, or the weights are not its own.
    """
    whole = build_classifier(model, trust_code=trust_code, source=spec.path, to_be_filled=True)
    misfit = f"{spec.path}: the weights in it are not those of backbone {spec.backbone!r}; has its code changed?"
    fill(whole.backbone, backbone_weights(spec), misfit)
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


def feature_statistics(rows: Rows) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
    """Mean and standard deviation of each feature over the plain views of an even share of `rows`; 1 for a constant feature."""
    share = rows.plain().even_share(STATISTICS_SAMPLES)
    features = torch.cat([chunk[:, 0] for chunk in share.chunks()]).double()
    std, mean = torch.std_mean(features, 0, correction=0)
    # What varies by less than half precision can tell is constant.
    return mean.float(), torch.where(std > 1e-3 * mean.abs(), std, 1.0).float()


def without_backbone(whole: Classifier, rows: Rows) -> Classifier:
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
    return Classifier(CachedFeatures(rows.shape[1]), copy.deepcopy(whole.head), projection)


def with_backbone(trained: Classifier, whole: Classifier) -> Classifier:
    """The trained part, copied, behind the backbone and preprocessing of `whole`: a classifier of images, on the CPU."""
    projection = trained.projection
    if projection is not None:
        assert isinstance(projection, StandardizedLinear), "without_backbone makes it"
        projection = projection.folded().cpu()
    return Classifier(whole.backbone, copy.deepcopy(trained.head).cpu(), projection, preprocess=whole.preprocess)


def _pool(data: SemiSupervised) -> Rows:
    """The pool; the labelled rows where every row is labelled and labelled ones stay out of it."""
    return data.unlabeled if len(data.unlabeled) else data.labeled
