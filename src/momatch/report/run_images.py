"""The images that a report looks at: the run's own, parted as in training, and those of other datasets. No downloads."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from momatch.config import TrainConfig
from momatch.data.catalog import KNOWN
from momatch.data.contaminate import HeldOut
from momatch.data.dataset import Dataset
from momatch.data.locate import data_root, is_at_hand
from momatch.data.report import DataError, DataWarning
from momatch.data.rows import Rows
from momatch.data.splits import SemiSupervised
from momatch.inference.evaluate import fitted, size_of_files
from momatch.models.classifier import Classifier
from momatch.models.spec import ModelFacts
from momatch.training.data import load_by_name, load_run_data, part_classes, split_rows
from momatch.training.inputs import input_of


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
        return split_rows(self.config, self.parts)[0]


def load_run_images(
    directory: Path, config: TrainConfig, data_dir: str | None, dataset: Dataset | None = None
) -> RunImages:
    """The data of a run.

    Args:
        directory: of the run.
        config: its settings.
        data_dir: where known datasets lie; None for where the run found them.
        dataset: the data themselves, where they were handed to `fit`; None to load them again.

    Raises:
        ValueError: if the data are not at hand, cannot be used, or are not those that the run was trained on.
    """
    place = data_dir or config.data_dir
    load = partial(load_run_data, directory, dataset=dataset, data_dir=place, progress=False, download=False)
    found, remarks = _quietly(load, config.dataset, place)
    return RunImages(found, part_classes(found, config.held_out_classes), config, remarks)


def load_strangers(
    name: str, data_dir: str | None, facts: ModelFacts, classifier: Classifier
) -> tuple[Rows, tuple[str, ...]]:
    """Images of another dataset (its test images, where there are any), in the shape that the model takes; and remarks.

    Raises:
        ValueError: if the dataset is not at hand or cannot be used, or holds features of another backbone.
    """
    size = size_of_files(name, facts)
    load = partial(load_by_name, name, data_dir=data_dir, image_size=size, progress=False, download=False)
    dataset, remarks = _quietly(load, name, data_dir)
    input_of(dataset).check_model(classifier)
    return fitted((dataset.test or dataset.train).rows, facts), remarks


def _quietly(load: Callable[[], Dataset], name: str, data_dir: str | None) -> tuple[Dataset, tuple[str, ...]]:
    """What `load` gives, and its warnings."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataWarning)
            dataset = load()
    except DataError as error:
        root = data_root(data_dir)
        if name in KNOWN and not is_at_hand(name, root):
            raise ValueError(
                f"{name} is not in {root}; fetch it with `momatch data {name}`, or say where it lies with data_dir "
                "(--data-dir, $MOMATCH_DATA)"
            ) from error
        raise
    return dataset, tuple(str(warning.message) for warning in caught)
