"""Chosen rows of image tensors (or of features, `momatch.data.dataset`), seen as one tensor without copying it.

A labelled set, an unlabelled pool and a contaminated pool are all rows of tensors that already exist, in memory or
memory-mapped. Only the rows that are asked for are ever read.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.dataset import Rows, Split, is_features

#: What one chunk of a pass over all images may take, in bytes.
CHUNK_BYTES = 2**24


class ImageRows:
    """Rows of one or more uint8 image tensors of one image size, or of features of one dtype and size, on the CPU.

    Args:
        sources: tensors (N_i, C, H, W), or floating (N_i, V, F).
        rows: (N,) row numbers in the concatenation of `sources`; None for all rows in order.
        pictures: for each source what to show in its place, uint8 (N_i, C, h, w); None where the sources show themselves.

    Raises:
        ValueError: if the sources differ in size or dtype, or a row number is out of range.
    """

    def __init__(
        self,
        sources: Sequence[Tensor],
        rows: Int64[Tensor, " N"] | None = None,
        *,
        pictures: Sequence[Tensor] | None = None,
    ) -> None:
        if not sources:
            raise ValueError("sources: got none, expected at least one image tensor")
        for source in sources:
            is_pixels = source.dtype == torch.uint8 and source.ndim == 4
            if not (is_pixels or is_features(source)) or source.device.type != "cpu":
                raise ValueError(
                    f"sources: got {source.dtype} {tuple(source.shape)} on {source.device}, expected torch.uint8 (N, C, H, W) "
                    "or features (N, V, F) on the CPU; a BatchStream brings batches to the device"
                )
            if source.shape[1:] != sources[0].shape[1:] or source.dtype != sources[0].dtype:
                raise ValueError(
                    f"sources: got images of shape {tuple(source.shape[1:])}, expected {tuple(sources[0].shape[1:])} "
                    f"as in the first source, and got {source.dtype} after {sources[0].dtype}; see convert_images"
                )
        total = sum(len(source) for source in sources)
        self.rows = torch.arange(total) if rows is None else rows
        if len(self.rows):
            low, high = int(self.rows.min()), int(self.rows.max())
            if low < 0 or high >= total:
                raise ValueError(f"rows: got {low} to {high}, expected row numbers from 0 to {total - 1}")
        self.sources = tuple(sources)
        self._pictures = None if pictures is None else tuple(pictures)
        # The first row of each source in the concatenation.
        self._starts = np.cumsum([0, *(len(source) for source in sources[:-1])])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W), or (V, F) of features."""
        return tuple(self.sources[0].shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """torch.uint8 of pixels; floating of features."""
        return self.sources[0].dtype

    @property
    def are_features(self) -> bool:
        """Whether these are features and not pixels."""
        return is_features(self.sources[0])

    @property
    def pictures(self) -> "ImageRows | None":
        """What to show: the images themselves, or the small ones beside features; None where there are none."""
        if not self.are_features:
            return self
        return None if self._pictures is None else ImageRows(self._pictures, self.rows)

    @property
    def row_bytes(self) -> int:
        """What one row takes."""
        return math.prod(self.image_shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """What the rows take once they are copied out."""
        return len(self) * self.row_bytes

    def gather(self, positions: Int64[Tensor, " n"], *, out: Tensor | None = None) -> Rows:
        """Copy the images at `positions`, into `out` if given (so that it can be pinned memory)."""
        rows = self.rows.index_select(0, positions).numpy()
        if out is None:
            out = torch.empty((len(rows), *self.image_shape), dtype=self.dtype)
        # Indexed by numpy, whose one thread copies a batch in a fraction of a millisecond: torch's would take all threads,
        # and wait for each of them where the cores are busy or a second thread gathers.
        target = out.numpy()
        if len(self.sources) == 1:
            target[:] = self.sources[0].numpy()[rows]
            return out
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        for number, (source, start) in enumerate(zip(self.sources, self._starts, strict=True)):
            where = np.flatnonzero(owner == number)
            target[where] = source.numpy()[rows[where] - start]
        return out

    @classmethod
    def of(cls, images: "ImageRows | Tensor") -> "ImageRows":
        """Rows as they are; a tensor as all of its rows.

        Raises:
            ValueError: if it is neither.
        """
        if isinstance(images, cls):
            return images
        if not isinstance(images, Tensor):
            raise ValueError(f"images: got {type(images).__name__}, expected a uint8 tensor (N, C, H, W) or ImageRows")
        return cls([images])

    @classmethod
    def of_split(cls, split: Split, rows: Int64[Tensor, " N"] | None = None) -> "ImageRows":
        """Rows of a split, with its pictures; None for all of them."""
        return cls([split.images], rows, pictures=None if split.pictures is None else [split.pictures])

    def chunks(self, size: int | None = None) -> Iterator[Rows]:
        """All images in order, `size` at a time; None for as many as fit in `CHUNK_BYTES` (but at least one)."""
        size = size or max(1, CHUNK_BYTES // max(1, self.row_bytes))
        for start in range(0, len(self), size):
            yield self.gather(torch.arange(start, min(start + size, len(self))))

    def select(self, positions: Int64[Tensor, " n"]) -> "ImageRows":
        """The images at `positions`, still without copying."""
        return ImageRows(self.sources, self.rows.index_select(0, positions), pictures=self._pictures)

    def plain(self) -> "ImageRows":
        """Of features the first view alone, which evaluation takes, without copying; images as they are."""
        if not self.are_features or self.image_shape[0] == 1:
            return self
        return ImageRows([source[:, :1] for source in self.sources], self.rows, pictures=self._pictures)

    def even_share(self, at_most: int) -> "ImageRows":
        """Every so many-th row, `at_most` of them."""
        return self.select(torch.arange(0, len(self), max(1, -(-len(self) // at_most))))

    def append(self, other: "ImageRows") -> "ImageRows":
        """These images, then those of `other`, which must have the same size."""
        offset = sum(len(source) for source in self.sources)
        shown = None if self._pictures is None or other._pictures is None else (*self._pictures, *other._pictures)
        rows = torch.cat([self.rows, other.rows + offset])
        return ImageRows((*self.sources, *other.sources), rows, pictures=shown)

    def to_device(self, device: torch.device) -> Rows:
        """Copy all images to `device` as one tensor, chunk by chunk (on ``meta`` nothing is read)."""
        images = torch.empty((len(self), *self.image_shape), dtype=self.dtype, device=device)
        if device.type != "meta":
            start = 0
            for chunk in self.chunks():
                images[start : start + len(chunk)].copy_(chunk)
                start += len(chunk)
        return images


@dataclass(frozen=True)
class Examples:
    """Images with their labels, as a `Split`, but as rows of larger tensors.

    Attributes:
        images: N images.
        labels: int64, (N,); `UNLABELED` where the label is not known.
    """

    images: ImageRows
    labels: Int64[Tensor, " N"]

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ValueError(f"labels: got {len(self.labels)}, expected one for each of the {len(self.images)} images")

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
        return cls(ImageRows.of_split(split), split.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, positions: Int64[Tensor, " n"]) -> "Examples":
        """The examples at `positions`."""
        return Examples(self.images.select(positions), self.labels.index_select(0, positions))
