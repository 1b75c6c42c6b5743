"""The images that a report looks at: the run's own, parted as in training, and those of other datasets. No downloads."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from momatch.config import TrainConfig
from momatch.data.catalog import KNOWN
from momatch.data.contaminate import HeldOut
from momatch.data.dataset import Dataset
from momatch.data.load import BY_NAME
from momatch.data.locate import is_at_hand
from momatch.data.places import data_root
from momatch.data.report import DataError, DataWarning
from momatch.data.rows import ImageRows
from momatch.data.splits import SemiSupervised
from momatch.inference.evaluate import check_features, fitted, size_of_files
from momatch.models.classifier import Classifier
from momatch.models.spec import ModelSpec
from momatch.training.data import load_images, part_classes, split_images


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
        return split_images(self.config, self.parts)[0]


def load_run_images(config: TrainConfig, data_dir: str | None) -> RunImages:
    """The images of the run with these settings.

    Args:
        config: its settings.
        data_dir: where known datasets lie; None for where the run found them.

    Raises:
        ValueError: if the dataset is not at hand or cannot be used.
    """
    name = config.dataset
    if name not in BY_NAME and not Path(name).expanduser().exists():
        raise ValueError(
            f"{name!r} is neither a known dataset nor a path that exists here; a relative path is looked for from the current "
            "directory, so go to the one that the run was started in; a dataset that was handed to fit() is not kept"
        )
    place = data_dir or config.data_dir
    dataset, remarks = _load(name, place, image_size=config.image_size, test_fraction=config.test_fraction)
    return RunImages(dataset, part_classes(dataset, config.held_out_classes), config, remarks)


def load_strangers(
    name: str, data_dir: str | None, facts: ModelSpec, classifier: Classifier
) -> tuple[ImageRows, tuple[str, ...]]:
    """Images of another dataset (its test images, where there are any), in the shape that the model takes; and remarks.

    Raises:
        ValueError: if the dataset is not at hand or cannot be used, or holds features of another backbone.
    """
    dataset, remarks = _load(name, data_dir, image_size=size_of_files(name, facts))
    check_features(classifier, dataset)
    return fitted(ImageRows.of_split(dataset.test or dataset.train), facts), remarks


def _load(
    name: str, data_dir: str | None, *, image_size: int | None, test_fraction: float | None = None
) -> tuple[Dataset, tuple[str, ...]]:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataWarning)
            dataset = load_images(
                name,
                data_dir=data_dir,
                image_size=image_size,
                test_fraction=test_fraction,
                progress=False,
                download=False,
            )
    except DataError as error:
        root = data_root(data_dir)
        if name in KNOWN and not is_at_hand(name, root):
            raise ValueError(
                f"{name} is not in {root}; fetch it with `momatch data {name}`, or say where it lies with data_dir "
                "(--data-dir, $MOMATCH_DATA)"
            ) from error
        raise
    return dataset, tuple(str(warning.message) for warning in caught)
