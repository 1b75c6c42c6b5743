"""From a config to the images of a run: loaded, parted into known and held-out classes, split into labelled set and pool."""

from dataclasses import dataclass

from momatch.config import TrainConfig
from momatch.data.contaminate import HeldOut, contaminate, hold_out_classes
from momatch.data.dataset import Dataset
from momatch.data.load import load_dataset
from momatch.data.rows import Examples, ImageRows
from momatch.data.splits import SemiSupervised, hold_out_pool, split_as_labeled, split_by_seed

#: What the images of held-out classes are called among outliers.
HELD_OUT = "held-out classes"
#: Share of the pool that is kept out of training for calibration, where there are no test images.
POOL_SHARE = 0.1


@dataclass(frozen=True)
class CalibrationImages:
    """Images that were not trained on, for outlier p-values.

    Attributes:
        images: none where nothing could be held out.
        source: what they are, in words.
    """

    images: ImageRows
    source: str


def load_images(
    name: str,
    *,
    data_dir: str | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    progress: bool = True,
    download: bool = True,
) -> Dataset:
    """Load a dataset with the settings of a config; only what was asked for is passed on.

    An option that means nothing to the dataset is refused, not ignored.

    Raises:
        ValueError: if the data cannot be used.
    """
    options = {"size": image_size, "test_fraction": test_fraction or None}
    given = {key: value for key, value in options.items() if value is not None}
    return load_dataset(name, data_dir, progress=progress, download=download, **given)


def part_classes(dataset: Dataset, held_out_classes: str) -> HeldOut:
    """The dataset with the classes that a run knows apart from those it does not.

    Args:
        dataset: neither copied nor read.
        held_out_classes: names or numbers with commas between them, as in `TrainConfig`; empty for none.

    Raises:
        ValueError: if a class is unknown or named twice, or if fewer than two would remain.
    """
    words = [word.strip() for word in held_out_classes.split(",") if word.strip()]
    if not words:
        nothing = Examples.of(dataset.train).select(dataset.train.labels[:0])
        return HeldOut(
            class_names=dataset.class_names,
            unknown_names=(),
            train=Examples.of(dataset.train),
            test=None if dataset.test is None else Examples.of(dataset.test),
            unknown_train=nothing,
            unknown_test=None,
        )
    # A name that looks like a number is a name first: the digits are called "0" to "9".
    classes = [int(word) if word.isdecimal() and word not in dataset.class_names else word for word in words]
    try:
        return hold_out_classes(dataset, classes)
    except ValueError as error:
        raise ValueError(f"held_out_{error}") from error


def split_images(config: TrainConfig, parts: HeldOut) -> tuple[SemiSupervised, CalibrationImages]:
    """The labelled set and the pool as the config says, and the images kept out of both for calibration.

    Raises:
        ValueError: if the images do not suffice.
    """
    if config.labels_per_class == 0:
        data = split_as_labeled(parts.train, parts.class_names, labeled_in_pool=config.labeled_in_pool)
    else:
        data = split_by_seed(
            parts.train,
            parts.class_names,
            labels_per_class=config.labels_per_class,
            seed=config.seed,
            labeled_in_pool=config.labeled_in_pool,
        )
    strangers = len(parts.unknown_train)
    if config.held_out_in_pool and strangers:
        share = strangers / (strangers + len(data.unlabeled_images))
        data = contaminate(data, parts.unknown_train.images, fraction=share, seed=config.seed, name=HELD_OUT)
    return _hold_out_calibration(config, data, parts.test)


def _hold_out_calibration(
    config: TrainConfig, data: SemiSupervised, test: Examples | None
) -> tuple[SemiSupervised, CalibrationImages]:
    fraction = config.calibration_fraction
    if not fraction and test is not None and len(test):
        return data, CalibrationImages(test.images, f"{len(test):,} test images")
    fraction = POOL_SHARE if fraction is None else fraction
    smaller, images = hold_out_pool(data, fraction=fraction, seed=config.seed)
    if fraction and len(images) == 0 and config.calibration_fraction is not None:
        raise ValueError(
            f"calibration_fraction: got {fraction} of a pool of {len(data.unlabeled_images)} images without a single one that "
            "could be kept out, expected a larger fraction or more unlabelled images; 0 keeps none out, and gives no p-values"
        )
    return smaller, CalibrationImages(images, f"{len(images):,} images of the pool, kept out of training")
