"""Builds everything training needs from a config: data, augmentation, classifier, objective, optimiser."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.augment import View
from momatch.config import TrainConfig
from momatch.data.batches import BatchStream
from momatch.data.contaminate import HeldOut
from momatch.data.dataset import NO_CLASS, UNLABELED, Dataset, Examples
from momatch.data.splits import SemiSupervised
from momatch.evaluation.pool_judging import LIKELY_OUTLIER
from momatch.models.classifier import Classifier
from momatch.models.spec import ModelSpec
from momatch.training.average import AveragedModel
from momatch.training.data import CalibrationRows, load_data, part_classes, split_rows, warn_of_large_images
from momatch.training.guide import PoolGuide
from momatch.training.inputs import Input, image_views, input_of
from momatch.training.objective import build_objective
from momatch.training.optimizer import build_optimizer
from momatch.training.processes import Processes
from momatch.training.step import StepOptions, TrainStep


@dataclass(frozen=True)
class Training:
    """Everything the training loop needs.

    Attributes:
        input: the dataset.
        parts: its known and held-out classes.
        data: labelled set and pool.
        calibration: rows for calibrating outlier p-values, not trained on.
        stream: batches of `data`.
        step: trains on one batch; holds classifier, average, objective and optimiser.
        spec: of the saved classifier.
        guide: of the pseudo-labels, if there are any, and of the temperature; None without one.
    """

    input: Input
    parts: HeldOut
    data: SemiSupervised
    calibration: CalibrationRows
    stream: BatchStream
    step: TrainStep
    spec: ModelSpec
    guide: PoolGuide | None = None

    @property
    def model(self) -> Classifier:
        """The model to save: the averaged model, taking raw images."""
        return self.input.saved(self.step.average.classifier)

    def leave_out_outliers(self) -> None:
        """Draw no batches from the pool's likely outliers, by the weights that the objective has; for `outliers = "auto"`.

        An outlier without a pseudo-label would still count in the statistics of batch norm and in the constraint, keep
        FlexMatch's cutoffs low, and take the place of an inlier. If all are likely outliers, all are drawn.
        """
        weights = self.step.objective.inlier_probability
        if weights is None:
            return
        is_drawn = weights >= LIKELY_OUTLIER
        is_drawn |= ~is_drawn.any()
        self.stream.draw_among(is_drawn.nonzero().flatten())
        self.step.objective.algorithm.forget_undrawn(is_drawn)
        self.step.count_left_out(~is_drawn)

    @property
    def left_out_share(self) -> float | None:
        """Share of the pool that is not drawn from; None unless `outliers = "auto"`."""
        if self.step.objective.inlier_probability is None:
            return None
        return 1.0 - self.stream.pool_drawn / len(self.data.unlabeled)

    @property
    def evidence(self) -> dict[str, float] | None:
        """What guides the pseudo-labels, see `PoolGuide.evidence`; None if nothing does."""
        return None if self.guide is None or self.step.guide is None else self.guide.evidence

    @cached_property
    def data_digest(self) -> str:
        """Hash of the dataset, to detect changes on resume."""
        return self.input.dataset.digest()

    @property
    def test(self) -> Examples | None:
        """The test images of known classes; None if none has a label."""
        test = self.parts.test
        return test if test is not None and bool((test.labels >= 0).any()) else None


def choose_device(name: str) -> torch.device:
    """The device by name; "auto" chooses cuda, mps or cpu, the first that is available.

    Raises:
        ValueError: if the device is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, is_available in available.items() if is_available)
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
    trust_code: bool | str = False,
) -> Training:
    """Build everything from a resolved config. Leaves torch's global random state unchanged.

    Raises:
        UntrustedCodeError: if the backbone must be imported and `trust_code` is not set.
        ValueError: if the data are invalid, or the settings do not match the data or each other.
        ImportError: if a required package is not installed.
    """
    processes = processes if processes is not None else Processes()
    _check_batches(config, processes.world_size)
    if dataset is None:
        dataset = load_data(config)
        warn_of_large_images(config, dataset)
    source = input_of(dataset)
    source.check()
    parts = part_classes(source.dataset, config.held_out_classes)
    data, calibration = split_rows(config, parts)
    if len(data.unlabeled) == 0 and config.algorithm != "supervised":
        raise ValueError(
            f"labeled_in_pool: got False with every image labelled, so the pool is empty, but algorithm "
            f"{config.algorithm!r} needs unlabelled images; leave labeled_in_pool on, or use algorithm 'supervised'"
        )
    spec = source.model_spec(config, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        classifier = source.build(spec, data, config, trust_code=trust_code)
    classifier.to(device)
    source.arrange(classifier, config)
    guide = source.guide(config, data)
    followed = None if config.algorithm == "supervised" else guide
    step = build_step(
        config,
        classifier,
        known_truth(data).to(device),
        processes,
        views=source.views(config),
        num_labeled=len(data.labels),
        trust_code=trust_code,
        guide=None if followed is None else followed.posterior.to(device),
        guide_floor=0.0 if followed is None else followed.floor,
    )
    stream = BatchStream(
        data.labeled,
        data.labels,
        data.unlabeled,
        labeled_batch_size=config.labeled_batch_size,
        unlabeled_batch_size=config.unlabeled_batch_size,
        seed=config.seed,
        device=device,
        rank=processes.rank,
        world_size=processes.world_size,
    )
    return Training(source, parts, data, calibration, stream, step, spec, guide)


def known_truth(data: SemiSupervised) -> Int64[Tensor, " N_u"]:
    """True classes of the pool, for metrics; -1 if unknown, `NO_CLASS` for outliers, whose pseudo-labels are always wrong.

    Labelled images in the pool count as unknown: the model was trained on their labels.
    """
    hidden = torch.where(data.is_shown, UNLABELED, data.truth.labels)
    return torch.where(data.truth.is_outlier, NO_CLASS, hidden)


def build_step(
    config: TrainConfig,
    classifier: Classifier,
    truth: Tensor,
    processes: Processes | None = None,
    *,
    views: tuple[View, View] | None = None,
    num_labeled: int | None = None,
    trust_code: bool | str = False,
    guide: Tensor | None = None,
    guide_floor: float = 0.0,
) -> TrainStep:
    """Build the training step for `classifier` from a resolved config.

    Args:
        config: the settings.
        classifier: on the device to train on.
        truth: (N_u,) result of `known_truth`, on the same device.
        processes: for distributed training.
        views: weak and strong augmentation; None for those of images, with mirroring.
        num_labeled: size of the labelled set; None if it is at most that of the pool.
        trust_code: allow importing an algorithm of the user's own.
        guide: (N_u, K) class probabilities that guide the pseudo-labels, on the same device.
        guide_floor: weight of the guide at the end.
    """
    weak, strong = image_views(config, flip=True) if views is None else views
    average = AveragedModel(classifier, config.ema_decay)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        objective = build_objective(
            config,
            classifier.head,
            len(truth),
            processes,
            num_labeled=num_labeled,
            num_features=classifier.num_features,
            teacher=average.classifier.head,
            trust_code=trust_code,
        )
    objective.to(truth.device)
    return TrainStep(
        classifier,
        average,
        objective,
        build_optimizer(classifier, config, objective.algorithm),
        weak=weak,
        strong=strong,
        truth=truth,
        guide=guide,
        guide_floor=guide_floor,
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


def _check_batches(config: TrainConfig, world_size: int) -> None:
    parts = config.accumulate * world_size
    for name in ("labeled_batch_size", "unlabeled_batch_size"):
        if getattr(config, name) % parts:
            raise ValueError(
                f"{name}: got {getattr(config, name)}, expected a multiple of {parts} (accumulate {config.accumulate} x "
                f"{world_size} processes)"
            )
