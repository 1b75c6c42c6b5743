"""From a config to everything that a step needs: data, views, classifier, objective, optimiser."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.augment import StrongAugment, View, WeakAugment
from momatch.config import TrainConfig
from momatch.data.batches import BatchStream
from momatch.data.catalog import KNOWN
from momatch.data.contaminate import HeldOut
from momatch.data.dataset import NO_CLASS, UNLABELED, Dataset
from momatch.data.rows import Examples, ImageRows
from momatch.data.splits import SemiSupervised
from momatch.data.statistics import normalization
from momatch.models.classifier import Classifier
from momatch.models.model_files import build_classifier
from momatch.models.spec import ModelSpec
from momatch.training.average import AveragedModel
from momatch.training.data import CalibrationImages, load_images, part_classes, split_images
from momatch.training.features import (
    build_whole,
    cached_views,
    check_finite,
    model_facts,
    with_backbone,
    without_backbone,
)
from momatch.training.guide import neighbor_guide
from momatch.training.objective import build_objective
from momatch.training.optimizer import build_optimizer
from momatch.training.processes import Processes
from momatch.training.step import StepOptions, TrainStep

#: About so many images of each set enter the digest of the data.
DIGEST_SAMPLES = 1000


@dataclass(frozen=True)
class Training:
    """What the loop works with.

    Attributes:
        dataset: name of where the images came from.
        parts: its classes, known and held out.
        data: the labelled set and the pool.
        calibration: images kept out of both, for outlier p-values.
        stream: batches of them.
        step: trains on one batch; holds classifier, average, objective and optimiser.
        facts: what the classifier is built from.
        whole: where features train, the classifier of images that they are a part of, untrained; None where images train.
    """

    dataset: str
    parts: HeldOut
    data: SemiSupervised
    calibration: CalibrationImages
    stream: BatchStream
    step: TrainStep
    facts: ModelSpec
    whole: Classifier | None = None

    @property
    def model(self) -> Classifier:
        """What is saved: the averaged model, from raw images on."""
        average = self.step.average.classifier
        return average if self.whole is None else with_backbone(average, self.whole).eval()

    @cached_property
    def data_digest(self) -> str:
        """Tells whether data are those that a run was started with: classes, labels, and a share of the images."""
        digest = hashlib.sha256(repr((self.data.class_names, self.data.labels.tolist())).encode())
        digest.update(self.data.truth.labels.numpy().tobytes())
        for images in (self.data.labeled_images, self.data.unlabeled_images):
            update_digest(digest, images)
        return digest.hexdigest()

    @property
    def test(self) -> Examples | None:
        """The test images of known classes, if there are any with a label."""
        test = self.parts.test
        return test if test is not None and bool((test.labels >= 0).any()) else None


def update_digest(digest: "hashlib._Hash", images: ImageRows) -> None:
    """Let about `DIGEST_SAMPLES` of the images enter the digest of the data."""
    rows = torch.arange(0, len(images), max(1, len(images) // DIGEST_SAMPLES))
    for chunk in images.select(rows).chunks():
        digest.update(chunk.contiguous().numpy().tobytes())


def choose_device(name: str) -> torch.device:
    """The device by name; "auto" takes the fastest that is there.

    Raises:
        ValueError: if the device is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, there in available.items() if there)
    if name not in available:
        raise ValueError(f"device: got {name!r}, expected 'auto', {', '.join(map(repr, available))}")
    if not available[name]:
        raise ValueError(f"device: got {name!r}, which is not available here, expected 'auto' or 'cpu'")
    return torch.device(name)


def build_training(
    config: TrainConfig,
    device: torch.device,
    processes: Processes | None = None,
    dataset: Dataset | None = None,
    *,
    trust_code: bool = False,
) -> Training:
    """Build everything from a resolved config. The random state of the caller is left as it was.

    Raises:
        UntrustedCodeError: if the backbone has to be imported and `trust_code` is not set.
        ValueError: if the data cannot be used, or settings do not fit the data or each other.
        ImportError: if a part needs packages that are not installed.
    """
    processes = processes if processes is not None else Processes()
    _check_batches(config, processes.world_size)
    if dataset is None:
        dataset = load_images(
            config.dataset,
            data_dir=config.data_dir,
            image_size=config.image_size,
            test_fraction=config.test_fraction,
            progress=config.progress,
        )
    if dataset.features is not None:
        check_finite(dataset)
    parts = part_classes(dataset, config.held_out_classes)
    data, calibration = split_images(config, parts)
    if len(data.unlabeled_images) == 0 and config.policy != "supervised":
        raise ValueError(
            f"labeled_in_pool: got False and a label for every image, so the pool is empty, expected images for policy "
            f"{config.policy!r}; leave labeled_in_pool on, or take policy 'supervised'"
        )
    facts = _facts(config, dataset, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if dataset.features is None:
            classifier = build_classifier(facts, trust_code=trust_code)
        else:
            classifier = build_whole(facts, dataset.features, trust_code=trust_code)
    whole: Classifier | None = None
    views: tuple[View | None, View | None] = (None, None)
    if dataset.features is not None:
        whole, views = classifier, cached_views(dataset.features)
        classifier = without_backbone(whole, _pool(data))
    classifier.to(device)
    if config.channels_last and whole is None:
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's annotations lack it
    if config.compile:
        classifier.backbone.compile()
    flip = flips(config.flip, dataset.name)
    guide = _guide(config, dataset, data)
    step = build_step(
        config,
        classifier,
        known_truth(data).to(device),
        processes,
        flip,
        views=views,
        guide=None if guide is None else guide.to(device),
    )
    stream = BatchStream(
        data.labeled_images,
        data.labels,
        data.unlabeled_images,
        labeled_batch_size=config.labeled_batch_size,
        unlabeled_batch_size=config.unlabeled_batch_size,
        seed=config.seed,
        device=device,
        rank=processes.rank,
        world_size=processes.world_size,
    )
    return Training(dataset.name, parts, data, calibration, stream, step, facts, whole)


def _guide(config: TrainConfig, dataset: Dataset, data: SemiSupervised) -> Float[Tensor, "N_u K"] | None:
    if not config.graph_neighbors or config.policy == "supervised":
        return None
    if dataset.features is None:
        raise ValueError(
            f"graph_neighbors: got {config.graph_neighbors} for images, expected 0: neighbours are looked for among features; "
            "make some with momatch embed"
        )
    return neighbor_guide(data, weak_views=dataset.features.weak_views, neighbors=config.graph_neighbors)


def known_truth(data: SemiSupervised) -> Int64[Tensor, " N_u"]:
    """The true classes of a pool; -1 where not known, `NO_CLASS` for outliers: every pseudo-label of theirs is wrong.

    Images whose label is shown count as not known: that the model is right about them says nothing about the others.
    """
    hidden = torch.where(data.is_shown, UNLABELED, data.truth.labels)
    return torch.where(data.truth.is_outlier, NO_CLASS, hidden)


def build_step(
    config: TrainConfig,
    classifier: Classifier,
    truth: Tensor,
    processes: Processes | None = None,
    flip: bool = True,
    *,
    views: tuple[View | None, View | None] = (None, None),
    guide: Tensor | None = None,
) -> TrainStep:
    """The step that trains `classifier` as the resolved config says.

    Args:
        config: the settings.
        classifier: on the device where it will train.
        truth: (N_u,) what `known_truth` says about the pool, on the same device.
        processes: the other processes.
        flip: whether views may be mirrored.
        views: the weak and the strong one, where they are not made of images as the config says.
        guide: (N_u, K) class probabilities that the first pseudo-labels follow, on the same device.
    """
    objective = build_objective(config, classifier.head, len(truth), processes).to(truth.device)
    return TrainStep(
        classifier,
        AveragedModel(classifier, config.ema_decay),
        objective,
        build_optimizer(classifier, config),
        weak=views[0] or WeakAugment(flip=flip),
        strong=views[1] or StrongAugment(flip=flip, num_operations=config.strong_operations, cutout=config.cutout),
        truth=truth,
        guide=guide,
        options=StepOptions(
            seed=config.seed,
            forward=config.forward,
            accumulate=config.accumulate,
            clip_norm=config.clip_norm,
            precision=config.precision,
            channels_last=config.channels_last,
        ),
        processes=processes,
    )


def _facts(config: TrainConfig, dataset: Dataset, data: SemiSupervised) -> ModelSpec:
    if dataset.features is not None:
        return model_facts(config, dataset.features, data.class_names)
    channels, height, width = data.labeled_images.image_shape
    return ModelSpec(
        backbone=config.backbone,
        backbone_variant=config.backbone_variant,
        head=config.head,
        embedding_dim=config.embedding_dim,
        class_names=data.class_names,
        in_channels=channels,
        image_size=(height, width),
        normalization=normalization(dataset.name, _pool(data)),
        dataset=dataset.name,
    )


def _pool(data: SemiSupervised) -> ImageRows:
    """The pool; the labelled images where every image is labelled and labelled ones stay out of it."""
    return data.unlabeled_images if len(data.unlabeled_images) else data.labeled_images


def flips(flip: str, dataset: str) -> bool:
    """Whether views of the images of `dataset` may be mirrored, by the setting `flip`."""
    if flip != "auto":
        return flip == "yes"
    return dataset not in KNOWN or KNOWN[dataset].flip


def _check_batches(config: TrainConfig, world_size: int) -> None:
    parts = config.accumulate * world_size
    for name in ("labeled_batch_size", "unlabeled_batch_size"):
        if getattr(config, name) % parts:
            raise ValueError(
                f"{name}: got {getattr(config, name)}, expected a multiple of {parts}: accumulate {config.accumulate} times "
                f"{world_size} process(es)"
            )
