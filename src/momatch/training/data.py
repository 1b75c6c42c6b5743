"""The data of a run: loading, recording for later reloading, and splitting."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from momatch.config import TrainConfig
from momatch.data.contaminate import HeldOut, contaminate, hold_out_classes
from momatch.data.dataset import UNLABELED, Dataset, Examples
from momatch.data.feature_spec import read_feature_spec
from momatch.data.labeling import label_record
from momatch.data.load import BY_NAME, load_dataset
from momatch.data.report import DataError, DataWarning, MixedSizesError
from momatch.data.rows import Rows
from momatch.data.sources.manifest import NONE
from momatch.data.splits import SemiSupervised, hold_out_pool, split_as_labeled, split_by_seed
from momatch.models.backbones import fallback_size, input_size_of
from momatch.storage.data_record import LABELS, DataRecord, read_data_record
from momatch.storage.run_config import read_config

#: Name of the held-out classes' images among outliers.
HELD_OUT = "held-out classes"
#: Default fraction of the pool kept out of training for calibration if there are no test images.
POOL_SHARE = 0.1
#: How many times the pixels of the backbone's usual size are worth a warning.
LARGE = 4
#: Option of `load_dataset` -> setting and flag, for error messages.
_OPTIONS = {
    "labels": "labels (--labels)",
    "size": "image_size (--image-size)",
    "test_fraction": "test_fraction (--test-fraction)",
}


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
    labels: str | None = None,
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
        labels: manifest with the labels of a features file.
        progress: show progress bars.
        download: download a built-in dataset if it is missing.
        mixed_size: side for image files of mixed sizes if there is no `image_size`; None if they are an error.

    Raises:
        ValueError: if the data are invalid, or an option does not apply to the dataset.

    Warns:
        DataWarning: if images of mixed sizes were brought to `mixed_size`.
    """
    options = {"size": image_size, "test_fraction": test_fraction or None, "labels": labels}
    given = {key: value for key, value in options.items() if value is not None}
    with settings_named():
        try:
            return load_dataset(name, data_dir, progress=progress, download=download, **given)
        except MixedSizesError:
            if mixed_size is None:
                raise
            warn_of_mixed_sizes(name, mixed_size)
            return load_dataset(name, data_dir, progress=progress, download=download, size=mixed_size, **given)


def warn_of_mixed_sizes(name: str, side: int) -> None:
    """Warn that images were brought to one size that nobody chose."""
    warnings.warn(
        f"{name}: the images have different sizes and are resized to {side} x {side}; choose another size with "
        f"{_OPTIONS['size']}",
        DataWarning,
        stacklevel=3,
    )


def warn_of_large_images(config: TrainConfig, dataset: Dataset) -> None:
    """Warn of images of a size that nobody chose, if it makes steps of this network much longer than its usual one.

    Warns:
        DataWarning: if so.
    """
    shape = dataset.train.rows.shape
    if len(shape) != 3 or _side(config) is not None:
        return
    _, height, width = shape
    usual = fallback_size(config.backbone)
    times = height * width / usual**2
    if times > LARGE:
        warnings.warn(
            f"{config.dataset}: images of {width} x {height} pixels make a step {times:.0f} times as long as {usual} x {usual} "
            f"would, with as much more memory; set a size with {_OPTIONS['size']}, or use a pretrained network (momatch embed)",
            DataWarning,
            stacklevel=2,
        )


@contextmanager
def settings_named() -> Iterator[None]:
    """Errors about data name settings and flags, not options of `load_dataset`."""
    try:
        yield
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
        labels=config.labels,
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
        labels=None if dataset.labeling is None else dataset.labeling.source,
        labeled=int((dataset.train.labels != UNLABELED).sum()),
        notes=tuple(data_notes(dataset)),
    )


def describe_labels(dataset: Dataset) -> bytes | None:
    """The labels of features that are kept elsewhere, to be stored with the run; None for other data."""
    if dataset.labeling is None or dataset.labeling.source is None:
        return None
    splits = {}
    known = dataset.splits if dataset.no_class is None else {**dataset.splits, NONE: dataset.no_class}
    for name, split in known.items():
        assert split.digests is not None, "labels were found by them"
        splits[name] = (split.labels.tolist(), split.files, split.digests)
    return label_record(splits, dataset.class_names)


def resumed_data(config: TrainConfig) -> tuple[Dataset | None, list[str]]:
    """The data of a run to resume, with the labels that it was started with, and what has changed since.

    Returns:
        None and no notes if the labels came with the data.

    Raises:
        ValueError: if the data cannot be loaded, or the features of an image are gone.
    """
    assert config.run_dir is not None, "resolved"
    path = Path(config.run_dir) / LABELS
    if not path.exists():
        return None, []
    dataset = load_by_name(config.dataset, data_dir=config.data_dir, labels=str(path), progress=config.progress)
    try:
        now = load_data(config)
    except ValueError as error:
        return dataset, [f"labels cannot be read as they are now ({error}); the run goes on with those in {path}"]
    if now.digest() == dataset.digest():
        return dataset, []
    labeled = [int((each.train.labels != UNLABELED).sum()) for each in (dataset, now)]
    return dataset, [
        f"images or labels have changed since the run was started: it goes on with the {labeled[0]:,} labels in {path}; there "
        f"are {labeled[1]:,} now: start a new run to use them"
    ]


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
            labels=str(directory / LABELS) if (directory / LABELS).exists() else None,
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


def classes_without_labels(dataset: Dataset) -> tuple[str, ...]:
    """Classes without a labelled training image: they have a folder or test images only."""
    present = set(dataset.train.labels.tolist())
    return tuple(name for k, name in enumerate(dataset.class_names) if k not in present)


def data_notes(dataset: Dataset) -> list[str]:
    """What the user should know about the data of a run, one sentence each."""
    notes = [*([] if dataset.labeling is None else dataset.labeling.notes()), *dataset.no_class_notes()]
    if unlabeled := classes_without_labels(dataset):
        numbers = torch.tensor([dataset.class_names.index(name) for name in unlabeled])
        tested = 0 if dataset.test is None else int(torch.isin(dataset.test.labels, numbers).sum())
        which = f"the class {unlabeled[0]} has" if len(unlabeled) == 1 else f"the classes {', '.join(unlabeled)} have"
        test = f"; {tested:,} test images of it are not counted in the accuracy" if tested else ""
        notes.append(f"{which} no label yet and cannot be predicted{test}")
    return notes


def part_classes(dataset: Dataset, held_out_classes: str) -> HeldOut:
    """Separate the held-out classes of a dataset, and those without a label yet, from the others.

    Args:
        dataset: neither copied nor read.
        held_out_classes: comma-separated names or numbers, as in `TrainConfig`; empty for none.

    Raises:
        ValueError: if a class is unknown or named twice, or if fewer than two would remain or have labels.
    """
    words = [word.strip() for word in held_out_classes.split(",") if word.strip()]
    unlabeled = classes_without_labels(dataset)
    if len(dataset.class_names) - len(unlabeled) < 2:
        named = [name for name in dataset.class_names if name not in unlabeled]
        raise ValueError(
            f"{dataset.name}: got labels of {len(named)} classes ({', '.join(named) or 'none'}), expected at least two; label "
            "a few images of each class: move them into a folder of that name, or list them in a manifest"
        )
    if not words and not unlabeled:
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
    held_out = {dataset.class_names[k] if isinstance(k, int) and k < dataset.num_classes else k for k in classes}
    try:
        return hold_out_classes(dataset, [*classes, *(name for name in unlabeled if name not in held_out)])
    except ValueError as error:
        raise ValueError(f"held_out_{error}") from error


def split_rows(config: TrainConfig, parts: HeldOut) -> tuple[SemiSupervised, CalibrationRows]:
    """Split into labelled set, pool and calibration images.

    Raises:
        ValueError: if there are too few images.
    """
    assert config.labels_per_class is not None, "resolved"
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
