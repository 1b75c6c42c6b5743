"""What a dataset is here: rows of images or features, integer labels with -1 for unlabelled, class names and a test split.

A tensor may be backed by a memory-mapped file (``torch.from_numpy`` of a ``numpy.memmap``), so the same types serve data that
fits in memory and data that does not.
"""

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from momatch.data.feature_spec import FeatureSpec
from momatch.data.rows import FeatureRows, PixelRows, Rows

UNLABELED = -1
#: In what is known about a pool: of no class that training knows.
NO_CLASS = -2
#: About this many rows of each set enter a digest.
DIGEST_SAMPLES = 1000


class _Labeled:
    """Rows with one label each: what `Split` and `Examples` share."""

    rows: Rows
    labels: Int64[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.labels)

    def _pixels(self) -> PixelRows:
        if not isinstance(self.rows, PixelRows):
            raise ValueError(
                f"images: got {self.rows.describe()}; expected images: a backbone made features of them before"
            )
        return self.rows


class Split(_Labeled):
    """The training or the test part of a dataset.

    Args:
        images: uint8, (N, C, H, W), C = 1 or 3; or `rows` that were made before.
        labels: int64, (N,); `UNLABELED` where the label is not known.
        files: where each image came from, as the folder or manifest names it; empty if not from files of their own.

    Attributes:
        rows: N images or features.
        labels: as given.
        files: as given.

    Raises:
        ValueError: if they do not fit together.
    """

    def __init__(self, images: Tensor | Rows, labels: Int64[Tensor, " N"], files: tuple[str, ...] = ()) -> None:
        self.rows = Rows.of(images)
        self.labels = labels
        self.files = files
        if labels.shape != (len(self.rows),) or labels.dtype != torch.int64:
            raise ValueError(
                f"labels: got shape {tuple(labels.shape)} and dtype {labels.dtype}, expected int64 ({len(self.rows)},)"
            )
        if files and len(files) != len(self.rows):
            raise ValueError(f"files: got {len(files)}, expected one for each of the {len(self.rows)} images")

    @property
    def images(self) -> UInt8[Tensor, "N C H W"]:
        """The images as one tensor.

        Raises:
            ValueError: if the rows are features.
        """
        return self._pixels().sources[0]

    @property
    def features(self) -> Float[Tensor, "N V F"]:
        """The features as one tensor.

        Raises:
            ValueError: if the rows are images.
        """
        if not isinstance(self.rows, FeatureRows):
            raise ValueError(f"features: got {self.rows.describe()}; expected features: momatch embed makes some")
        return self.rows.sources[0]


@dataclass(frozen=True)
class Examples(_Labeled):
    """Rows with their labels, as a `Split`, but chosen from larger tensors.

    Attributes:
        rows: N images or features.
        labels: int64, (N,); `UNLABELED` where the label is not known.
    """

    rows: Rows
    labels: Int64[Tensor, " N"]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.labels):
            raise ValueError(f"labels: got {len(self.labels)}, expected one for each of the {len(self.rows)} rows")

    @classmethod
    def of(cls, split: "Split | Examples") -> "Examples":
        """All of `split`; examples as they are.

        Raises:
            ValueError: if it is neither, as a whole `Dataset` is not.
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
        name: how the user called it.
        class_names: one name a class; label k is ``class_names[k]``.
        train: the labelled and unlabelled training rows.
        test: held-out rows with labels, or None where the source has none.
        features: how features were made; None where the splits hold images.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split | None
    features: FeatureSpec | None = None

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

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that there are, by name."""
        found = {"train": self.train, "test": self.test}
        return {name: split for name, split in found.items() if split is not None}

    def digest(self) -> str:
        """Tells whether data are those of a run: class names, all labels, and about `DIGEST_SAMPLES` rows of each split."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for name, split in self.splits.items():
            digest.update(name.encode())
            digest.update(split.labels.numpy().tobytes())
            update_digest(digest, split.rows)
        return digest.hexdigest()


def update_digest(digest: "hashlib._Hash", rows: Rows) -> None:
    """Let about `DIGEST_SAMPLES` of the rows enter a digest."""
    digest.update(repr((len(rows), rows.shape, str(rows.dtype))).encode())
    for chunk in rows.even_share(DIGEST_SAMPLES).chunks():
        digest.update(chunk.contiguous().numpy().tobytes())
