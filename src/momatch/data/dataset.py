"""What a dataset is here: uint8 image tensors, integer labels with -1 for unlabelled, class names and a test split.

A tensor may be backed by a memory-mapped file (``torch.from_numpy`` of a ``numpy.memmap``), so the same type serves data that
fits in memory and data that does not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

UNLABELED = -1
#: In what is known about a pool: of no class that training knows.
NO_CLASS = -2


@dataclass(frozen=True)
class Split:
    """Images with their labels.

    Attributes:
        images: uint8, (N, C, H, W), C = 1 or 3.
        labels: int64, (N,); `UNLABELED` where the label is not known.
        files: where each image came from, as the folder or manifest names it; empty if not from files of their own.
    """

    images: UInt8[Tensor, "N C H W"]
    labels: Int64[Tensor, " N"]
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise ValueError(
                f"images: got shape {tuple(self.images.shape)} and dtype {self.images.dtype}, expected uint8 (N, C, H, W)"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels: got shape {tuple(self.labels.shape)} and dtype {self.labels.dtype}, "
                f"expected int64 ({len(self.images)},)"
            )
        if self.files and len(self.files) != len(self.images):
            raise ValueError(f"files: got {len(self.files)}, expected one for each of the {len(self.images)} images")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A named dataset.

    Attributes:
        name: how the user called it.
        class_names: one name a class; label k is ``class_names[k]``.
        train: the labelled and unlabelled training images.
        test: held-out images with labels, or None where the source has none.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split | None

    def __post_init__(self) -> None:
        for name, split in (("train", self.train), ("test", self.test)):
            if split is None or len(split) == 0:
                continue
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < UNLABELED or high >= self.num_classes:
                raise ValueError(
                    f"{name}: got labels from {low} to {high}, expected {UNLABELED} (unlabelled) to {self.num_classes - 1}"
                )

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)
