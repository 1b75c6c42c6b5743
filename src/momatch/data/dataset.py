"""A dataset: rows of images or features, integer labels with -1 for unlabelled, class names and a test split.

Tensors may be backed by a memory-mapped file (``torch.from_numpy`` of a ``numpy.memmap``), so the same types serve data that is
larger than memory.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from momatch.console.wording import plural
from momatch.data.feature_spec import FeatureSpec
from momatch.data.label_source import Labeling
from momatch.data.rows import FeatureRows, PixelRows, Rows

UNLABELED = -1
#: Label of an image that is known to be of no class, and of an outlier in the truth about a pool.
NO_CLASS = -2
#: A digest covers about this many rows of each split.
DIGEST_SAMPLES = 1000


class _Labeled:
    """Rows with one label each: base of `Split` and `Examples`."""

    rows: Rows
    labels: Int64[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.labels)

    def _pixels(self) -> PixelRows:
        if not isinstance(self.rows, PixelRows):
            raise ValueError(
                f"images: got {self.rows.describe()}; expected images, not features that a backbone has computed"
            )
        return self.rows


class Split(_Labeled):
    """The training or the test part of a dataset.

    Args:
        images: uint8 (N, C, H, W), C = 1 or 3; or existing rows.
        labels: int64 (N,); `UNLABELED` if the label is not known.
        files: file name of each image, as the folder or manifest gives it; empty if the images did not come from image files.
        digests: of the content of each image (`momatch.data.content`); None if they were not computed.

    Attributes:
        rows: N images or features.
        labels: as given.
        files: as given.
        digests: as given.

    Raises:
        ValueError: if the lengths do not match.
    """

    def __init__(
        self,
        images: Tensor | Rows,
        labels: Int64[Tensor, " N"],
        files: tuple[str, ...] = (),
        digests: UInt8[np.ndarray, "N 16"] | None = None,
    ) -> None:
        self.rows = Rows.of(images)
        self.labels = labels
        self.files = files
        self.digests = digests
        if labels.shape != (len(self.rows),) or labels.dtype != torch.int64:
            raise ValueError(
                f"labels: got shape {tuple(labels.shape)} and dtype {labels.dtype}, expected int64 ({len(self.rows)},)"
            )
        if files and len(files) != len(self.rows):
            raise ValueError(f"files: got {len(files)}, expected {len(self.rows)}, one per image")
        if digests is not None and len(digests) != len(self.rows):
            raise ValueError(f"digests: got {len(digests)}, expected {len(self.rows)}, one per image")

    @property
    def images(self) -> UInt8[Tensor, "N C H W"]:
        """The images as one tensor.

        Raises:
            ValueError: if the rows are features.
        """
        return self._pixels().joined()

    @property
    def features(self) -> Float[Tensor, "N V F"]:
        """The features as one tensor.

        Raises:
            ValueError: if the rows are images.
        """
        if not isinstance(self.rows, FeatureRows):
            raise ValueError(f"features: got {self.rows.describe()}; expected features; make them with momatch embed")
        return self.rows.joined()

    def select(self, positions: Int64[Tensor, " n"]) -> "Split":
        """The rows at `positions`, without copying them."""
        at = positions.tolist()
        return Split(
            self.rows.select(positions),
            self.labels.index_select(0, positions),
            tuple(self.files[position] for position in at) if self.files else (),
            None if self.digests is None else self.digests[at],
        )


@dataclass(frozen=True)
class Examples(_Labeled):
    """Rows with their labels, like a `Split`, but selected from larger tensors.

    Attributes:
        rows: N images or features.
        labels: int64 (N,); `UNLABELED` if the label is not known.
    """

    rows: Rows
    labels: Int64[Tensor, " N"]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.labels):
            raise ValueError(f"labels: got {len(self.labels)}, expected {len(self.rows)}, one per row")

    @classmethod
    def of(cls, split: "Split | Examples") -> "Examples":
        """All of `split`; `Examples` are returned unchanged.

        Raises:
            ValueError: if it is neither, for example a whole `Dataset`.
        """
        if isinstance(split, cls):
            return split
        if not isinstance(split, Split):
            raise ValueError(
                f"examples: got {type(split).__name__}, expected Examples or a Split, such as dataset.train"
            )
        return cls(split.rows, split.labels)

    @property
    def images(self) -> PixelRows:
        """The images.

        Raises:
            ValueError: if the rows are features.
        """
        return self._pixels()

    def select(self, positions: Int64[Tensor, " n"]) -> "Examples":
        """The examples at `positions`."""
        return Examples(self.rows.select(positions), self.labels.index_select(0, positions))


@dataclass(frozen=True)
class Dataset:
    """A named dataset.

    Attributes:
        name: the name the user gave.
        class_names: label k is ``class_names[k]``.
        train: labelled and unlabelled training rows.
        test: labelled test rows, or None if the source has none.
        features: how the features were made; None if the splits hold images.
        labeling: where the labels of features were read; None for images.
        no_class: images that a person said to be of no class, labelled `NO_CLASS`: known, but not used to train or to test.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split | None
    features: FeatureSpec | None = None
    labeling: Labeling | None = None
    no_class: Split | None = None

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
        """Number of classes."""
        return len(self.class_names)

    def no_class_notes(self) -> list[str]:
        """What the user should know about images of no class: a sentence if there are any."""
        if self.no_class is None:
            return []
        return [f"left out: {plural(len(self.no_class), 'image')} of no class (status none in the manifest)"]

    @property
    def splits(self) -> dict[str, Split]:
        """The splits to train and to test on, by name."""
        found = {"train": self.train, "test": self.test}
        return {name: split for name, split in found.items() if split is not None}

    def digest(self) -> str:
        """Digest of class names, all labels and about `DIGEST_SAMPLES` rows of each split, to recognise a run's data."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for name, split in self.splits.items():
            digest.update(name.encode())
            digest.update(split.labels.numpy().tobytes())
            update_digest(digest, split.rows)
        return digest.hexdigest()


def update_digest(digest: "hashlib._Hash", rows: Rows) -> None:
    """Add about `DIGEST_SAMPLES` of the rows to a digest."""
    digest.update(repr((len(rows), rows.shape, str(rows.dtype))).encode())
    for chunk in rows.even_share(DIGEST_SAMPLES).chunks():
        digest.update(chunk.contiguous().numpy().tobytes())
