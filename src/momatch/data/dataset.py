"""What a dataset is here: uint8 image tensors, integer labels with -1 for unlabelled, class names and a test split.

In place of images there may be what a backbone made of them (`momatch.data.features`): V views of F features each. All that
picks, batches and evaluates rows takes either; ``images`` is the name of both.

A tensor may be backed by a memory-mapped file (``torch.from_numpy`` of a ``numpy.memmap``), so the same type serves data that
fits in memory and data that does not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from momatch.data.feature_facts import FeatureFacts

UNLABELED = -1
#: In what is known about a pool: of no class that training knows.
NO_CLASS = -2

#: Raw pixels, or the features of each image's views.
Rows = UInt8[Tensor, "N C H W"] | Float[Tensor, "N V F"]


def is_features(rows: Tensor) -> bool:
    """Whether these rows are features, (N, V, F), and not pixels; it is the dtype that tells."""
    return rows.is_floating_point() and rows.ndim == 3


@dataclass(frozen=True)
class Split:
    """Images with their labels.

    Attributes:
        images: uint8, (N, C, H, W), C = 1 or 3; or floating, (N, V, F): features of V views, of which the first is plain.
        labels: int64, (N,); `UNLABELED` where the label is not known.
        files: where each image came from, as the folder or manifest names it; empty if not from files of their own.
        pictures: uint8, (N, C, h, w), small: what to show where `images` are features; None where they show themselves.
    """

    images: Rows
    labels: Int64[Tensor, " N"]
    files: tuple[str, ...] = ()
    pictures: UInt8[Tensor, "N C h w"] | None = None

    def __post_init__(self) -> None:
        is_pixels = self.images.ndim == 4 and self.images.dtype == torch.uint8
        if not is_pixels and not is_features(self.images):
            raise ValueError(
                f"images: got shape {tuple(self.images.shape)} and dtype {self.images.dtype}, expected uint8 (N, C, H, W), "
                "or floating (N, V, F) for the features of V views"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels: got shape {tuple(self.labels.shape)} and dtype {self.labels.dtype}, "
                f"expected int64 ({len(self.images)},)"
            )
        if self.files and len(self.files) != len(self.images):
            raise ValueError(f"files: got {len(self.files)}, expected one for each of the {len(self.images)} images")
        if self.pictures is not None and len(self.pictures) != len(self.images):
            raise ValueError(f"pictures: got {len(self.pictures)}, expected one for each of {len(self.images)} rows")

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
        features: what is known about features; None where the splits hold images.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split | None
    features: FeatureFacts | None = None

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
