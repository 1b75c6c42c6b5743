"""The images that a report looks at: the run's own, parted as in training, and those of other datasets. No downloads."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from momatch.config import TrainConfig
from momatch.data.catalog import KNOWN
from momatch.data.contaminate import HeldOut
from momatch.data.conversion import convert_images
from momatch.data.dataset import Dataset
from momatch.data.load import BY_EXTENSION, BY_NAME, load_dataset
from momatch.data.locate import find
from momatch.data.places import data_root
from momatch.data.report import DataError, DataWarning
from momatch.data.rows import ImageRows
from momatch.data.splits import SemiSupervised
from momatch.training.model_files import ModelFacts
from momatch.training.sources import part_classes, split_images


@dataclass(frozen=True)
class RunImages:
    """The dataset of a run.

    Attributes:
        dataset: as it was loaded.
        parts: its known and held-out classes.
        config: the settings of the run.
        remarks: of the loader.
    """

    dataset: Dataset
    parts: HeldOut
    config: TrainConfig
    remarks: tuple[str, ...]

    @cached_property
    def split(self) -> SemiSupervised:
        """Labelled set and unlabelled pool, as in training.

        Raises:
            ValueError: if the images do not suffice any more.
        """
        return split_images(self.config, self.parts)


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
    return RunImages(dataset, part_classes(dataset, config.held_out_classes), config, remarks)


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
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataWarning)
            dataset = load_dataset(name, data_dir, progress=False, download=False, **given)
    except DataError as error:
        root = data_root(data_dir)
        if name in KNOWN and KNOWN[name].layouts and find(name, root) is None:
            raise ValueError(
                f"{name} is not in {root}; fetch it with `momatch data {name}`, or say where it lies with data_dir "
                "(--data-dir, $MOMATCH_DATA)"
            ) from error
        raise
    return dataset, tuple(str(warning.message) for warning in caught)
