"""The images that a report looks at: the run's own, parted as in training, and those of other datasets. No downloads."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from momatch.config import TrainConfig
from momatch.data.contaminate import HeldOut
from momatch.data.conversion import convert_images
from momatch.data.dataset import Dataset
from momatch.data.load import BY_EXTENSION, BY_NAME, load_dataset
from momatch.data.report import DataWarning
from momatch.data.rows import Examples, ImageRows
from momatch.data.splits import SemiSupervised, split_as_labeled, split_by_seed
from momatch.training.model_files import ModelFacts


@dataclass(frozen=True)
class RunImages:
    """The dataset of a run.

    Attributes:
        dataset: as it was loaded.
        parts: its known and held-out classes.
        pool: labelled set and unlabelled images, as in training.
        warnings: what the loader remarked.
    """

    dataset: Dataset
    parts: HeldOut
    pool: SemiSupervised
    warnings: tuple[str, ...]


def load_run_images(config: TrainConfig, data_dir: str | None) -> RunImages:
    """The images of the run with these settings.

    Args:
        config: its settings.
        data_dir: where known datasets lie; None for where the run found them.

    Raises:
        ValueError: if the dataset is not at hand or cannot be used.
    """
    options = {"size": config.image_size, "test_fraction": config.test_fraction or None}
    dataset, remarks = _load(config.dataset, data_dir or config.data_dir, options)
    parts = _part(dataset)
    return RunImages(dataset, parts, _split(config, parts), remarks)


def load_strangers(name: str, data_dir: str | None, facts: ModelFacts) -> tuple[ImageRows, tuple[str, ...]]:
    """Images of another dataset (its test images, where there are any), in the shape that the model takes; and remarks.

    Raises:
        ValueError: if the dataset is not at hand or cannot be used.
    """
    path = Path(name).expanduser()
    extension = "" if path.is_dir() else path.suffix.lower()
    # Files have no common size of their own.
    of_files = name not in BY_NAME and "size" in BY_EXTENSION.get(extension, (None, frozenset()))[1]
    dataset, remarks = _load(name, data_dir, {"size": min(facts.image_size) if of_files else None})
    return fitted(ImageRows.of((dataset.test or dataset.train).images), facts), remarks


def fitted(images: ImageRows, facts: ModelFacts) -> ImageRows:
    """The images with the channels and the size that the model takes."""
    return convert_images(images, (facts.in_channels, *facts.image_size))


def _load(name: str, data_dir: str | None, options: dict[str, float | int | None]) -> tuple[Dataset, tuple[str, ...]]:
    given = {key: value for key, value in options.items() if value is not None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        dataset = load_dataset(name, data_dir, progress=False, download=False, **given)
    return dataset, tuple(str(warning.message) for warning in caught)


def _part(dataset: Dataset) -> HeldOut:
    nothing = Examples.of(dataset.train).select(dataset.train.labels[:0])
    test = None if dataset.test is None else Examples.of(dataset.test)
    return HeldOut(dataset.class_names, (), Examples.of(dataset.train), test, nothing, None)


def _split(config: TrainConfig, parts: HeldOut) -> SemiSupervised:
    if config.labels_per_class == 0:
        return split_as_labeled(parts.train, parts.class_names, labeled_in_pool=config.labeled_in_pool)
    return split_by_seed(
        parts.train,
        parts.class_names,
        labels_per_class=config.labels_per_class,
        seed=config.seed,
        labeled_in_pool=config.labeled_in_pool,
    )
