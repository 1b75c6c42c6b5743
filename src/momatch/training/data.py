"""The data of a run: loaded, written down so that the same can be loaded again, parted and split as the config says."""

from dataclasses import dataclass
from pathlib import Path

from momatch.config import TrainConfig
from momatch.data.contaminate import HeldOut, contaminate, hold_out_classes
from momatch.data.dataset import Dataset, Examples
from momatch.data.load import BY_NAME, load_dataset
from momatch.data.report import DataError
from momatch.data.rows import Rows
from momatch.data.splits import SemiSupervised, hold_out_pool, split_as_labeled, split_by_seed
from momatch.storage.data_record import DataRecord, read_data_record
from momatch.storage.run_config import read_config

#: What the images of held-out classes are called among outliers.
HELD_OUT = "held-out classes"
#: Share of the pool that is kept out of training for calibration, where there are no test images.
POOL_SHARE = 0.1
#: Option of `load_dataset` -> what a config calls it, and the flag of ``momatch train``, ``embed`` and ``evaluate``.
_OPTIONS = {"size": "image_size (--image-size)", "test_fraction": "test_fraction (--test-fraction)"}


@dataclass(frozen=True)
class CalibrationRows:
    """What was not trained on, for outlier p-values.

    Attributes:
        rows: none where nothing could be held out.
        source: what they are, in words.
    """

    rows: Rows
    source: str


def load_by_name(
    name: str,
    *,
    data_dir: str | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    progress: bool = True,
    download: bool = True,
) -> Dataset:
    """Load a dataset with settings of a config; only what was asked for is passed on.

    An option that means nothing to the dataset is refused, not ignored. Messages name options as the config does.

    Raises:
        ValueError: if the data cannot be used.
    """
    options = {"size": image_size, "test_fraction": test_fraction or None}
    given = {key: value for key, value in options.items() if value is not None}
    try:
        return load_dataset(name, data_dir, progress=progress, download=download, **given)
    except DataError as error:
        raise error.renamed(
            {"size": "image_size (--image-size)", "test_fraction": "test_fraction (--test-fraction)"}
        ) from error


def load_data(config: TrainConfig) -> Dataset:
    """The dataset that a config names, to train on.

    Raises:
        ValueError: if the data cannot be used.
    """
    return load_by_name(
        config.dataset,
        data_dir=config.data_dir,
        image_size=config.image_size,
        test_fraction=config.test_fraction,
        progress=config.progress,
    )


def describe_data(config: TrainConfig, dataset: Dataset, *, given: bool) -> DataRecord:
    """What is written down about the data of a run.

    Args:
        config: the resolved settings of the run.
        dataset: that it trains on.
        given: whether it was handed over, and not loaded as the config says.
    """
    return DataRecord(
        source=config.dataset,
        contents=dataset.train.rows.describe(),
        image_size=config.image_size,
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
    """The data that a run was trained on, as its data.json describes them: the one way for whatever looks at a run later.

    Args:
        directory: of the run.
        dataset: the data themselves; None to load them again.
        data_dir: where known datasets lie; None for where the run found them.
        progress: show progress bars while loading.
        download: fetch a known dataset that is not there.

    Raises:
        ValueError: if there is no record, the data cannot be loaded, or they are not those that the run was trained on.
    """
    record = read_data_record(directory)
    advice = "pass the Dataset that it was trained on (dataset=...)" if record.given else "put the old data back"
    if dataset is None:
        if record.source not in BY_NAME and not Path(record.source).expanduser().exists():
            raise ValueError(
                f"{record.source!r} is neither a known dataset nor a path that exists here, and the run was trained on it; "
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
            f"{record.source}: got data that differ from those that the run in {directory} was trained on, expected the same "
            f"images, labels and classes ({record.contents}; {record.train:,} for training, {record.test:,} for testing); "
            f"{advice}, or name a dataset to use instead"
        )
    return dataset


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


def split_rows(config: TrainConfig, parts: HeldOut) -> tuple[SemiSupervised, CalibrationRows]:
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
        share = strangers / (strangers + len(data.unlabeled))
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
            f"calibration_fraction: got {fraction} of a pool of {len(data.unlabeled)} images without a single one that "
            "could be kept out, expected a larger fraction or more unlabelled images; 0 keeps none out, and gives no p-values"
        )
    return smaller, CalibrationRows(images, f"{len(images):,} images of the pool, kept out of training")
