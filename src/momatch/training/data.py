"""The data of a run: loading, recording for later reloading, and splitting."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from momatch.config import TrainConfig
from momatch.data.contaminate import HeldOut, contaminate, hold_out_classes
from momatch.data.dataset import Dataset, Examples
from momatch.data.feature_spec import read_feature_spec
from momatch.data.load import BY_NAME, load_dataset
from momatch.data.report import DataError, DataWarning, MixedSizesError
from momatch.data.rows import Rows
from momatch.data.splits import SemiSupervised, hold_out_pool, split_as_labeled, split_by_seed
from momatch.models.backbones import fallback_size, input_size_of
from momatch.storage.data_record import DataRecord, read_data_record
from momatch.storage.run_config import read_config

#: Name of the held-out classes' images among outliers.
HELD_OUT = "held-out classes"
#: Default fraction of the pool kept out of training for calibration if there are no test images.
POOL_SHARE = 0.1
#: Option of `load_dataset` -> setting and flag, for error messages.
_OPTIONS = {"size": "image_size (--image-size)", "test_fraction": "test_fraction (--test-fraction)"}


@dataclass(frozen=True)
class CalibrationRows:
    """Rows kept out of training, for calibrating outlier p-values.

    Attributes:
        rows: empty if nothing could be held out.
        source: description of the rows.
        of_pool: they come from the pool, so there may be outliers among them.
    """

    rows: Rows
    source: str
    of_pool: bool = False


def load_by_name(
    name: str,
    *,
    data_dir: str | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    progress: bool = True,
    download: bool = True,
    mixed_size: int | None = None,
) -> Dataset:
    """Load a dataset with the settings of a config. Error messages use the names of the settings.

    Args:
        name: as for `load_dataset`.
        data_dir: directory of the built-in datasets.
        image_size: side to bring images to; None for their own.
        test_fraction: fraction to hold out for testing.
        progress: show progress bars.
        download: download a built-in dataset if it is missing.
        mixed_size: side for image files of mixed sizes if there is no `image_size`; None if they are an error.

    Raises:
        ValueError: if the data are invalid, or an option does not apply to the dataset.

    Warns:
        DataWarning: if images of mixed sizes were brought to `mixed_size`.
    """
    options = {"size": image_size, "test_fraction": test_fraction or None}
    given = {key: value for key, value in options.items() if value is not None}
    try:
        try:
            return load_dataset(name, data_dir, progress=progress, download=download, **given)
        except MixedSizesError:
            if mixed_size is None:
                raise
            warnings.warn(
                f"{name}: the images have different sizes and are resized to {mixed_size} x {mixed_size}; choose another size "
                f"with {_OPTIONS['size']}",
                DataWarning,
                stacklevel=2,
            )
            return load_dataset(name, data_dir, progress=progress, download=download, size=mixed_size, **given)
    except DataError as error:
        raise error.renamed(_OPTIONS) from error


def load_data(config: TrainConfig) -> Dataset:
    """Load the dataset of a config.

    Raises:
        ValueError: if the data are invalid.
    """
    return load_by_name(
        config.dataset,
        data_dir=config.data_dir,
        image_size=_side(config),
        test_fraction=config.test_fraction,
        progress=config.progress,
        mixed_size=fallback_size(config.backbone),
    )


def _side(config: TrainConfig) -> int | None:
    """The side that images are brought to; None if they keep their own."""
    if config.image_size is not None or read_feature_spec(config.dataset) is not None:
        return config.image_size
    return input_size_of(config.backbone)


def describe_data(config: TrainConfig, dataset: Dataset, *, given: bool) -> DataRecord:
    """The record of a run's data that is stored with it.

    Args:
        config: the resolved settings of the run.
        dataset: its data.
        given: whether the dataset was passed in rather than loaded from the config.
    """
    side = config.image_size if given else _side(config)
    if side is None and not given and dataset.train.rows.side == fallback_size(config.backbone):
        # Perhaps because the sizes were mixed; images of that size stay as they are.
        side = dataset.train.rows.side
    return DataRecord(
        source=config.dataset,
        contents=dataset.train.rows.describe(),
        image_size=side,
        test_fraction=0.0 if given else config.test_fraction,
        given=given,
        class_names=dataset.class_names,
        train=len(dataset.train),
        test=0 if dataset.test is None else len(dataset.test),
        digest=dataset.digest(),
    )


def load_run_data(
    directory: Path,
    *,
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    progress: bool = True,
    download: bool = True,
) -> Dataset:
    """Load the data that a run was trained on, and check them against its data.json.

    Args:
        directory: the run directory.
        dataset: the data; None to load them again.
        data_dir: directory of the built-in datasets; None for the run's.
        progress: show progress bars while loading.
        download: download a built-in dataset if it is missing.

    Raises:
        ValueError: if there is no record, the data cannot be loaded, or they have changed since training.
    """
    record = read_data_record(directory)
    advice = "in Python, pass the Dataset it was trained on (dataset=...)" if record.given else "restore the old data"
    if dataset is None:
        if record.source not in BY_NAME and not Path(record.source).expanduser().exists():
            raise ValueError(
                f"{record.source!r}: the run was trained on it, but it is neither a built-in dataset nor an existing path; "
                + (
                    advice
                    if record.given
                    else "a relative path is resolved from the current directory, so run this where training was started"
                )
            )
        dataset = load_by_name(
            record.source,
            data_dir=data_dir or read_config(directory).data_dir,
            image_size=record.image_size,
            test_fraction=record.test_fraction,
            progress=progress,
            download=download,
        )
    if dataset.digest() != record.digest:
        raise ValueError(
            f"{record.source}: data differ from what the run in {directory} was trained on, expected the same "
            f"images, labels and classes ({record.contents}; {record.train:,} for training, {record.test:,} for testing); "
            f"{advice}, or name another dataset"
        )
    return dataset


def part_classes(dataset: Dataset, held_out_classes: str) -> HeldOut:
    """Separate the held-out classes of a dataset from the others.

    Args:
        dataset: neither copied nor read.
        held_out_classes: comma-separated names or numbers, as in `TrainConfig`; empty for none.

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
    # Names take precedence over numbers: the classes of digits are named "0" to "9".
    classes = [int(word) if word.isdecimal() and word not in dataset.class_names else word for word in words]
    try:
        return hold_out_classes(dataset, classes)
    except ValueError as error:
        raise ValueError(f"held_out_{error}") from error


def split_rows(config: TrainConfig, parts: HeldOut) -> tuple[SemiSupervised, CalibrationRows]:
    """Split into labelled set, pool and calibration images.

    Raises:
        ValueError: if there are too few images.
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
    outliers = len(parts.unknown_train)
    if config.held_out_in_pool and outliers:
        share = outliers / (outliers + len(data.unlabeled))
        data = contaminate(data, parts.unknown_train.rows, fraction=share, seed=config.seed, name=HELD_OUT)
    return _hold_out_calibration(config, data, parts.test)


def _hold_out_calibration(
    config: TrainConfig, data: SemiSupervised, test: Examples | None
) -> tuple[SemiSupervised, CalibrationRows]:
    fraction = config.calibration_fraction
    if not fraction and test is not None and len(test):
        return data, CalibrationRows(test.rows, f"{len(test):,} test images")
    fraction = POOL_SHARE if fraction is None else fraction
    smaller, images = hold_out_pool(data, fraction=fraction, seed=config.seed)
    if fraction and len(images) == 0 and config.calibration_fraction is not None:
        raise ValueError(
            f"calibration_fraction: got {fraction} of a pool of {len(data.unlabeled)} images, which holds out none of "
            "them, expected a larger fraction or more unlabelled images; 0 holds out none and gives no p-values"
        )
    return smaller, CalibrationRows(images, f"{len(images):,} images of the pool, kept out of training", of_pool=True)
