"""How training depends on the kind of data: `PixelInput` for images, `FeatureInput` for cached features.

They differ in how the model is built, augmented, guided and saved. On images the whole classifier is trained. On features only
the part after the backbone is trained, and it is saved together with the backbone. `input_of` chooses between the two.
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
from momatch.data.rows import CHUNK_BYTES, Rows
from momatch.data.splits import SemiSupervised
from momatch.data.statistics import normalization
from momatch.models.classifier import CachedFeatures, Classifier
from momatch.models.model_files import build_classifier, fill
from momatch.models.outputs import standardize_backbone
from momatch.models.spec import ModelSpec
from momatch.outliers import find_stages
from momatch.training.guide import PoolGuide, pool_guide

#: Number of images used for feature means and standard deviations.
STATISTICS_SAMPLES = 10_000
#: Factor on the projection's initial weights. With few labels, training does not undo the random initial weights in most
#: directions; starting small keeps this noise small.
INITIAL_SCALE = 0.05
#: Exponent bits of a float16.
_EXPONENT = 0x7C00


class Input(ABC):
    """A dataset with the model and augmentation for its kind of data.

    Args:
        dataset: to train on.
    """

    #: Prefix of "... images" in the log.
    words = ""
    #: Training changes what the network's stages show.
    stages_change = True
    #: Message if there are no test images.
    no_test = "the dataset has no test images; train with test_fraction (--test-fraction) to hold some out"

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    @abstractmethod
    def check(self) -> None:
        """Validate the rows beyond what loading checks.

        Raises:
            ValueError: if they are invalid.
        """

    @abstractmethod
    def model_spec(self, config: TrainConfig, data: SemiSupervised) -> ModelSpec:
        """Spec of the full classifier, from raw images."""

    @abstractmethod
    def build(
        self, model: ModelSpec, data: SemiSupervised, config: TrainConfig, *, trust_code: bool | str = False
    ) -> Classifier:
        """Build the classifier to train, on the CPU, initialised from torch's random state.

        Raises:
            UntrustedCodeError: if the backbone must be imported and `trust_code` is not set.
            ValueError: if it cannot be built.
        """

    @abstractmethod
    def arrange(self, classifier: Classifier, config: TrainConfig) -> None:
        """Set the memory layout of the classifier and compile it, on its device."""

    @abstractmethod
    def views(self, config: TrainConfig) -> tuple[View, View]:
        """Weak and strong augmentation."""

    @abstractmethod
    def guide(self, config: TrainConfig, data: SemiSupervised) -> PoolGuide | None:
        """Class probabilities of the pool that guide the pseudo-labels; None for none.

        Raises:
            ValueError: if the config asks for a guide that is not available.
        """

    @abstractmethod
    def saved(self, trained: Classifier) -> Classifier:
        """The classifier to save: takes raw images, in evaluation mode."""

    @abstractmethod
    def check_model(self, classifier: Classifier) -> None:
        """Check that a full classifier can be evaluated on these rows.

        Raises:
            ValueError: if it cannot.
        """

    @abstractmethod
    def stage_names(self, classifier: Classifier) -> tuple[str, ...]:
        """The stages of the backbone that the judge of outliers sees.

        Args:
            classifier: the one that is trained.
        """

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Entries of result.json specific to this kind of data."""


def input_of(dataset: Dataset) -> Input:
    """The input for a dataset, by its kind."""
    return PixelInput(dataset) if dataset.features is None else FeatureInput(dataset, dataset.features)


class PixelInput(Input):
    """Raw images: trains the whole classifier."""

    def check(self) -> None:
        """Nothing to check."""

    def model_spec(self, config: TrainConfig, data: SemiSupervised) -> ModelSpec:
        """Spec from the config; normalised by known statistics of the dataset or by those of the pool."""
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

    def build(
        self, model: ModelSpec, data: SemiSupervised, config: TrainConfig, *, trust_code: bool | str = False
    ) -> Classifier:
        """The whole classifier."""
        options = {"weights": config.weights, "untrained": config.untrained}
        classifier = build_classifier(model, trust_code=trust_code, backbone_options=options)
        standardize_backbone(classifier, _pool(data))
        return classifier

    def arrange(self, classifier: Classifier, config: TrainConfig) -> None:
        """Apply `channels_last` and `compile`."""
        if config.channels_last:
            classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's annotations lack it
        if config.compile:
            classifier.backbone.compile()

    def views(self, config: TrainConfig) -> tuple[View, View]:
        """Weak and strong image augmentation."""
        return image_views(config, flips(config.flip, self.dataset.name))

    def guide(self, config: TrainConfig, data: SemiSupervised) -> None:
        """None: nearest neighbours of raw pixels are not informative."""
        if config.graph_neighbors and config.algorithm != "supervised":
            raise ValueError(
                f"graph_neighbors: got {config.graph_neighbors} for images, expected 0: neighbours are searched among "
                "features; create them with momatch embed"
            )

    def saved(self, trained: Classifier) -> Classifier:
        """The classifier itself."""
        return trained

    def check_model(self, classifier: Classifier) -> None:
        """Nothing to check."""

    def stage_names(self, classifier: Classifier) -> tuple[str, ...]:
        """Those that the backbone declares, or that a pass over two images shows."""
        images = self.dataset.train.rows.gather(torch.arange(min(2, len(self.dataset.train))))
        assert classifier.preprocess is not None, "the spec has the dataset's statistics"
        return find_stages(classifier.backbone, classifier.preprocess(images.to(next(classifier.parameters()).device)))

    def result(self) -> dict[str, Any]:
        """No extra entries."""
        return {}


class FeatureInput(Input):
    """Cached features: trains the part after the backbone, and saves it with the backbone from the features file.

    Args:
        dataset: to train on.
        spec: how its features were computed.
    """

    words = "features of "
    stages_change = False
    no_test = (
        "the features file has no test images; give some of its labelled images the split test in a file of --labels, or "
        "recreate it with momatch embed --test-fraction"
    )

    def __init__(self, dataset: Dataset, spec: FeatureSpec) -> None:
        super().__init__(dataset)
        self.spec = spec
        self._whole: Classifier | None = None

    def check(self) -> None:
        """Check that all features and statistics of stages are finite, which opening the file does not."""
        for name, split in self.dataset.splits.items():
            first = 0
            for chunk in split.rows.chunks():
                # Several times faster than isfinite: infinities and NaN have all exponent bits set.
                if int((chunk.view(torch.int16) & _EXPONENT).max()) == _EXPONENT:
                    raise self._damaged(f"{name}_features", "features", first, chunk)
                first += len(chunk)
            size = max(1, CHUNK_BYTES // (4 * max(1, self.spec.num_statistics)))
            for positions in torch.arange(len(split)).split(size):
                stages = split.rows.stages_at(positions)
                if stages is not None and not bool(stages.isfinite().all()):
                    raise self._damaged(f"{name}_stages", "statistics", int(positions[0]), stages)

    def model_spec(self, config: TrainConfig, data: SemiSupervised) -> ModelSpec:
        """Spec with backbone, image size and normalisation from the features file, the rest from the config."""
        return whole_model_spec(config, self.spec, data.class_names)

    def build(
        self, model: ModelSpec, data: SemiSupervised, config: TrainConfig, *, trust_code: bool | str = False
    ) -> Classifier:
        """Build the part from features to log joints, with a small initial projection of standardised features."""
        self._whole = build_whole(model, self.spec, trust_code=trust_code)
        return without_backbone(self._whole, _pool(data))

    def arrange(self, classifier: Classifier, config: TrainConfig) -> None:
        """Nothing to do: the backbone is not part of training."""

    def views(self, config: TrainConfig) -> tuple[View, View]:
        """Weak: drawn from the file's plain and weak views. Strong: drawn from its strong views."""
        weak = 1 + self.spec.weak_views
        return CachedView(0, weak, default_view=0), CachedView(weak, self.spec.strong_views, default_view=1)

    def guide(self, config: TrainConfig, data: SemiSupervised) -> PoolGuide | None:
        """Evidence of linear models, forests and, if there are pseudo-labels, the graph of nearest neighbours."""
        if not config.graph_neighbors:
            return None
        neighbors = 0 if config.algorithm == "supervised" else config.graph_neighbors
        return pool_guide(data, weak_views=self.spec.weak_views, neighbors=neighbors, seed=config.seed)

    def saved(self, trained: Classifier) -> Classifier:
        """The trained part behind its backbone, on the CPU."""
        assert self._whole is not None, "build comes first"
        return with_backbone(trained, self._whole).eval()

    def check_model(self, classifier: Classifier) -> None:
        """Check that the classifier's backbone is the one that computed the features."""
        own, theirs = classifier.backbone.state_dict(), backbone_weights(self.spec)
        if own.keys() != theirs.keys() or not all(torch.equal(own[name].cpu(), theirs[name]) for name in own):
            raise ValueError(
                f"{self.spec.path}: got features of a backbone ({self.spec.backbone}) whose weights differ from the model's, "
                "expected features of the model's backbone; evaluate on the images, or on the features file it was trained on"
            )

    def stage_names(self, classifier: Classifier) -> tuple[str, ...]:
        """Those whose statistics the file holds."""
        return self.spec.stage_names

    def result(self) -> dict[str, Any]:
        """The number of views, and which parameters are counted."""
        return {
            "feature_views": self.spec.num_views,
            "parameters_note": "trained parameters only, without the frozen backbone",
        }

    def _damaged(self, member: str, noun: str, first: int, chunk: Tensor) -> ValueError:
        """The error for rows, numbered from `first`, that are not all finite."""
        path, row = self.spec.path, first + int((~chunk.isfinite()).flatten(1).any(1).nonzero()[0])
        return ValueError(
            f"{path}: {member}: got non-finite {noun} for image {row}, expected finite ones: the file is "
            f"damaged (momatch data {path} --verify compares its checksums); embed the images again"
        )


def flips(flip: str, dataset: str) -> bool:
    """Whether to mirror images of `dataset`, given the setting `flip`."""
    if flip != "auto":
        return flip == "yes"
    return dataset not in KNOWN or KNOWN[dataset].flip


def image_views(config: TrainConfig, flip: bool) -> tuple[View, View]:
    """Weak and strong image augmentation from the config."""
    return WeakAugment(flip=flip), StrongAugment(
        flip=flip, num_operations=config.strong_operations, cutout=config.cutout
    )


def whole_model_spec(config: TrainConfig, spec: FeatureSpec, class_names: tuple[str, ...]) -> ModelSpec:
    """Spec of the full classifier, from pixels to log joints, for training on features."""
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


def build_whole(model: ModelSpec, spec: FeatureSpec, *, trust_code: bool | str = False) -> Classifier:
    """Build the full classifier on the CPU: backbone weights from the features file, the rest untrained.

    Raises:
        UntrustedCodeError: if the backbone must be imported and `trust_code` is not set.
        ValueError: if the backbone cannot be built, or the weights do not match it.
    """
    weights = backbone_weights(spec)
    whole = build_classifier(model, trust_code=trust_code, source=spec.path, state=weights)
    misfit = f"{spec.path}: the stored weights do not match backbone {spec.backbone!r}; has its code changed?"
    fill(whole.backbone, weights, misfit)
    return whole


class StandardizedLinear(nn.Linear):
    """A linear layer on standardised features: W (x - mean) / std + b.

    Standardising makes one learning rate work for any backbone. `folded` turns it into a plain linear layer after training.

    Args:
        linear: weight and bias are copied from it.
        mean: (F,) mean of the features.
        std: (F,) standard deviation, positive.
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
        """The equivalent linear layer on raw features."""
        linear = nn.Linear(self.in_features, self.out_features, device=self.weight.device)
        weight = self.weight.detach().double() / self.std.double()
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(self.bias.double() - weight @ self.mean.double())
        return linear


def feature_statistics(rows: Rows) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
    """Mean and standard deviation of each feature over a sample of the plain views; std is 1 for constant features."""
    share = rows.plain().even_share(STATISTICS_SAMPLES)
    features = torch.cat([chunk[:, 0] for chunk in share.chunks()]).double()
    std, mean = torch.std_mean(features, 0, correction=0)
    # Variation below float16 resolution counts as constant.
    return mean.float(), torch.where(std > 1e-3 * mean.abs(), std, 1.0).float()


def without_backbone(whole: Classifier, rows: Rows) -> Classifier:
    """The part of `whole` to train, from features to log joints; copied, not shared.

    Args:
        whole: the full classifier.
        rows: features to train on, for standardisation.
    """
    projection = whole.projection
    if projection is not None:
        assert isinstance(projection, nn.Linear), "Classifier.build makes it"
        projection = StandardizedLinear(projection, *feature_statistics(rows))
        with torch.no_grad():
            projection.weight.mul_(INITIAL_SCALE)
    return Classifier(CachedFeatures(rows.shape[1]), copy.deepcopy(whole.head), projection)


def with_backbone(trained: Classifier, whole: Classifier) -> Classifier:
    """The full classifier on the CPU: a copy of the trained part behind the backbone and preprocessing of `whole`."""
    projection = trained.projection
    if projection is not None:
        assert isinstance(projection, StandardizedLinear), "without_backbone makes it"
        projection = projection.folded().cpu()
    return Classifier(whole.backbone, copy.deepcopy(trained.head).cpu(), projection, preprocess=whole.preprocess)


def _pool(data: SemiSupervised) -> Rows:
    """The pool, or the labelled rows if the pool is empty."""
    return data.unlabeled if len(data.unlabeled) else data.labeled
