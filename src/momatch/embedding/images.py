"""Which images of a dataset are embedded."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.dataset import Dataset, Split
from momatch.data.rows import ImageRows
from momatch.data.subset import draw_subset
from momatch.embedding.options import EmbedOptions
from momatch.training.data import load_images


@dataclass(frozen=True)
class Chosen:
    """The images of one split that are embedded.

    Attributes:
        split: of the dataset.
        rows: of the images in it, ascending.
    """

    split: Split
    rows: Int64[Tensor, " n"]

    @property
    def images(self) -> ImageRows:
        """The images."""
        return ImageRows([self.split.images], self.rows)

    @property
    def labels(self) -> Int64[Tensor, " n"]:
        """Their labels."""
        return self.split.labels[self.rows]

    @property
    def files(self) -> list[str]:
        """Where they came from; empty if not from files of their own."""
        return [self.split.files[row] for row in self.rows.tolist()] if self.split.files else []


def choose_images(options: EmbedOptions) -> tuple[Dataset, dict[str, Chosen]]:
    """The dataset, and by split which of its images are embedded.

    Raises:
        ValueError: if the data cannot be used, or are features.
    """
    dataset = load_images(
        options.dataset,
        data_dir=options.data_dir,
        image_size=options.as_config().image_size,
        test_fraction=options.test_fraction,
        progress=options.progress,
    )
    if dataset.features is not None:
        raise ValueError(
            f"dataset: got the features in {options.dataset}, expected images: they went through a backbone before"
        )
    chosen = {}
    for name, split, limit in (("train", dataset.train, options.limit), ("test", dataset.test, options.limit_test)):
        if split is not None and len(split):
            rows = torch.arange(len(split)) if limit is None else draw_subset(split.labels, limit, seed=options.seed)
            chosen[name] = Chosen(split, rows)
    if "train" not in chosen:
        raise ValueError(f"{options.dataset}: got no training images, expected at least one")
    return dataset, chosen
