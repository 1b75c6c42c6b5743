"""Selected rows of one or more tensors, without copying them.

There are two kinds:

- `PixelRows`: raw images, uint8 (N, C, H, W).
- `FeatureRows`: features of images (`momatch.data.features`), floating (N, V, F): F features of each of V views, the plain view
  first.

A labelled set, an unlabelled pool and a contaminated pool are all rows of existing tensors, in memory or memory-mapped. Only
the requested rows are read. Everything that depends on the kind is a method here, so splits, batches and evaluation need not
know it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

#: Largest chunk in a pass over all rows, in bytes.
CHUNK_BYTES = 2**24
#: ITU-R 601 luma in 16.16 fixed point.
_LUMA = (19595, 38470, 7471)

#: Raw pixels, or the features of each image's views.
RowTensor = UInt8[Tensor, "n C H W"] | Float[Tensor, "n V F"]


@runtime_checkable
class Embedder(Protocol):
    """Turns rows into embeddings; implemented by classifiers."""

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings of images."""

    def embed_features(self, features: Tensor) -> Tensor:
        """Embeddings of the backbone's features."""

    def inspect(self, x: Tensor, stages: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Embeddings of images, and the statistics of the backbone's stages."""


class Rows(ABC):
    """Rows of one or more CPU tensors with the same dtype and row shape; see `PixelRows` and `FeatureRows`.

    Args:
        sources: tensors (N_i, ...).
        index: (N,) row numbers in the concatenation of `sources`; None for all rows in order.

    Raises:
        ValueError: if the sources are of the wrong kind or differ from each other, or a row number is out of range.
    """

    #: Name of the rows in messages.
    noun: str
    #: Description of valid sources for messages.
    expected: str

    def __init__(self, sources: Sequence[Tensor], index: Int64[Tensor, " N"] | None = None) -> None:
        if not sources:
            raise ValueError("sources: got none, expected at least one tensor")
        for source in sources:
            if not self.fits(source) or source.device.type != "cpu":
                raise ValueError(
                    f"sources: got {source.dtype} {tuple(source.shape)} on {source.device}, expected {self.expected} on the "
                    "CPU; a BatchStream moves batches to the device"
                )
            if source.shape[1:] != sources[0].shape[1:] or source.dtype != sources[0].dtype:
                raise ValueError(
                    f"sources: got {source.dtype} rows of shape {tuple(source.shape[1:])}, expected {sources[0].dtype} of "
                    f"{tuple(sources[0].shape[1:])} as in the first source"
                )
        total = sum(len(source) for source in sources)
        self.index = torch.arange(total) if index is None else index
        if len(self.index):
            low, high = int(self.index.min()), int(self.index.max())
            if low < 0 or high >= total:
                raise ValueError(f"index: got {low} to {high}, expected row numbers from 0 to {total - 1}")
        self.sources = tuple(sources)
        # The first row of each source in the concatenation.
        self._starts = np.cumsum([0, *(len(source) for source in sources[:-1])])

    @staticmethod
    def of(data: "Rows | Tensor") -> "Rows":
        """Wrap a tensor as rows of the kind given by its dtype and shape; rows are returned unchanged.

        Raises:
            ValueError: if it is neither.
        """
        if isinstance(data, Rows):
            return data
        if not isinstance(data, Tensor):
            raise ValueError(f"rows: got {type(data).__name__}, expected a tensor or Rows")
        for kind in (PixelRows, FeatureRows):
            if kind.fits(data):
                return kind([data])
        raise ValueError(
            f"rows: got {data.dtype} {tuple(data.shape)}, expected {PixelRows.expected}, or {FeatureRows.expected}"
        )

    @staticmethod
    @abstractmethod
    def fits(source: Tensor) -> bool:
        """Whether a tensor holds rows of this kind."""

    @abstractmethod
    def select(self, positions: Int64[Tensor, " n"]) -> "Rows":
        """The rows at `positions`, without copying."""

    @abstractmethod
    def append(self, other: "Rows") -> "Rows":
        """These rows, followed by those of `other`.

        Raises:
            ValueError: if `other` has another kind, dtype or shape.
        """

    @property
    @abstractmethod
    def pictures(self) -> "PixelRows | None":
        """A picture of each row; None if there are none."""

    @abstractmethod
    def plain(self) -> "Rows":
        """The rows to evaluate: the plain view only, without copying."""

    @abstractmethod
    def like(self, other: "Rows") -> "Rows":
        """These rows converted to the shape of `other`, so that they can be appended to it.

        Raises:
            ValueError: if they cannot be converted.
        """

    @abstractmethod
    def for_model(self, image_shape: tuple[int, int, int]) -> "Rows":
        """These rows converted for a model with image input (C, H, W)."""

    @abstractmethod
    def embed(self, classifier: Embedder, batch: Tensor) -> Float[Tensor, "n D"]:
        """Embeddings of a batch gathered from these rows, on the classifier's device."""

    @abstractmethod
    def inspect(
        self, classifier: Embedder, batch: Tensor, positions: Int64[Tensor, " n"], stage_names: Sequence[str]
    ) -> tuple[Float[Tensor, "n D"], Float[Tensor, "n S"]]:
        """Embeddings of a batch gathered at `positions`, and the statistics of the backbone's stages.

        Args:
            classifier: as for `embed`.
            batch: as for `embed`.
            positions: of the batch in these rows.
            stage_names: modules of the backbone.

        Raises:
            ValueError: if features have no statistics.
        """

    @abstractmethod
    def describe(self) -> str:
        """Kind, size and dtype in a few words."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    @abstractmethod
    def side(self) -> int | None:
        """Side of square images in pixels; None for others, and for features."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row: (C, H, W) for pixels, (V, F) for features."""
        return tuple(self.sources[0].shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """torch.uint8 for pixels, floating for features."""
        return self.sources[0].dtype

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows once copied."""
        return len(self) * self.row_bytes

    def gather(self, positions: Int64[Tensor, " n"], *, out: Tensor | None = None) -> RowTensor:
        """Copy the rows at `positions`, into `out` if given (for pinned memory)."""
        rows = self.index.index_select(0, positions).numpy()
        if out is None:
            out = torch.empty((len(rows), *self.shape), dtype=self.dtype)
        self._copy(self.sources, rows, out)
        return out

    def places(self) -> Int64[Tensor, " T"]:
        """Of each row of the joined sources, its position here; -1 if it is not selected."""
        found = torch.full((sum(len(source) for source in self.sources),), -1)
        found[self.index] = torch.arange(len(self))
        return found

    def joined(self) -> RowTensor:
        """All rows as one tensor: the source itself if they are all of it in order, otherwise a copy."""
        source = self.sources[0]
        if len(self.sources) == 1 and torch.equal(self.index, torch.arange(len(source))):
            return source
        return self.gather(torch.arange(len(self)))

    def stages_at(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"] | None:
        """Copy the statistics of the backbone's stages stored with the rows at `positions`.

        None if none are stored. For images they never are: a network computes them.
        """
        return None

    def chunks(self, size: int | None = None) -> Iterator[RowTensor]:
        """All rows in order, `size` at a time; by default as many as fit in `CHUNK_BYTES`, at least one."""
        size = size or max(1, CHUNK_BYTES // max(1, self.row_bytes))
        for start in range(0, len(self), size):
            yield self.gather(torch.arange(start, min(start + size, len(self))))

    def even_share(self, at_most: int) -> "Rows":
        """Every k-th row, with the smallest k that gives at most `at_most` rows."""
        return self.select(torch.arange(0, len(self), max(1, -(-len(self) // at_most))))

    def to_device(self, device: torch.device) -> RowTensor:
        """Copy all rows to `device` as one tensor, chunk by chunk (on ``meta`` nothing is read)."""
        copied = torch.empty((len(self), *self.shape), dtype=self.dtype, device=device)
        if device.type != "meta":
            start = 0
            for chunk in self.chunks():
                copied[start : start + len(chunk)].copy_(chunk)
                start += len(chunk)
        return copied

    def _copy(self, sources: Sequence[Tensor], rows: np.ndarray, out: Tensor) -> None:
        """Copy rows of the concatenation of `sources`, which are as long as `self.sources`, into `out`."""
        # numpy copies a batch with one thread in a fraction of a millisecond. torch would use all threads, and wait for each
        # of them when the cores are busy or a second thread gathers.
        target = out.numpy()
        if len(sources) == 1:
            target[:] = sources[0].numpy()[rows]
            return
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        for number, (source, start) in enumerate(zip(sources, self._starts, strict=True)):
            where = np.flatnonzero(owner == number)
            target[where] = source.numpy()[rows[where] - start]

    def _joined_index(self, other: "Rows") -> Int64[Tensor, " n"]:
        """Row numbers in the concatenation of both sources."""
        return torch.cat([self.index, other.index + sum(len(source) for source in self.sources)])


class PixelRows(Rows):
    """Rows of raw images, uint8 (N, C, H, W). For arguments see `Rows`."""

    noun = "images"
    expected = "raw pixels, torch.uint8 (N, C, H, W)"

    @staticmethod
    def fits(source: Tensor) -> bool:
        """Whether a tensor holds raw images."""
        return source.dtype == torch.uint8 and source.ndim == 4

    def select(self, positions: Int64[Tensor, " n"]) -> "PixelRows":
        """The images at `positions`, without copying."""
        return PixelRows(self.sources, self.index.index_select(0, positions))

    def append(self, other: Rows) -> "PixelRows":
        """These images, followed by those of `other`."""
        return PixelRows((*self.sources, *other.sources), self._joined_index(other))

    @property
    def pictures(self) -> "PixelRows":
        """The images themselves."""
        return self

    def plain(self) -> "PixelRows":
        """The images themselves."""
        return self

    def like(self, other: Rows) -> "PixelRows":
        """The images `converted` to the shape of `other`.

        Raises:
            ValueError: if `other` is features.
        """
        if not isinstance(other, PixelRows):
            raise ValueError("rows: got images to mix with features, expected features; embed both in the same way")
        return self.converted(other.shape)

    def for_model(self, image_shape: tuple[int, int, int]) -> "PixelRows":
        """The images `converted` to the model's channels and size."""
        return self.converted(image_shape)

    def embed(self, classifier: Embedder, batch: Tensor) -> Float[Tensor, "n D"]:
        """Embeddings of images."""
        return classifier.embed(batch)

    def inspect(
        self, classifier: Embedder, batch: Tensor, positions: Int64[Tensor, " n"], stage_names: Sequence[str]
    ) -> tuple[Float[Tensor, "n D"], Float[Tensor, "n S"]]:
        """Both from one pass of the network."""
        return classifier.inspect(batch, stage_names)

    @property
    def side(self) -> int | None:
        """Side of the images if they are square."""
        _, height, width = self.shape
        return height if height == width else None

    def describe(self) -> str:
        """Size and colour."""
        channels, height, width = self.shape
        return f"images: {width}x{height}, {'gray' if channels == 1 else 'colour'}, uint8"

    def converted(self, image_shape: tuple[int, ...]) -> "PixelRows":
        """Convert the images to shape `image_shape` (C, H, W), for example to let two datasets share a pool.

        - gray to RGB: the channel repeated three times.
        - RGB to gray: ITU-R 601 luma, (19595 R + 38470 G + 7471 B + 32768) >> 16, bit for bit Pillow's ``convert("L")``.
        - size: stretched to (H, W) without cropping, bilinear with antialiasing, rounded to the nearest gray level.

        Returned unchanged if they already have this shape; otherwise converted chunk by chunk into new memory.

        Raises:
            ValueError: if a number of channels is neither 1 nor 3, or a size is less than one pixel.
        """
        if self.shape == image_shape:
            return self
        for name, shape in (("images", self.shape), ("image_shape", image_shape)):
            if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
                raise ValueError(f"{name}: got (C, H, W) = {shape}, expected C = 1 or 3 and at least one pixel")
        converted = torch.empty((len(self), *image_shape), dtype=torch.uint8)
        start = 0
        for chunk in self.chunks():
            converted[start : start + len(chunk)] = _convert(chunk, image_shape)
            start += len(chunk)
        return PixelRows([converted])


class FeatureRows(Rows):
    """Rows of features, floating (N, V, F): V views of each image, the plain one first. For other arguments see `Rows`.

    Args:
        pictures: small images to show for the rows of each source, uint8 (N_i, C, h, w); None if there are none.
        stages: statistics of the backbone's stages in the plain view, floating (N_i, S); None if there are none.

    Raises:
        ValueError: as `Rows`, or if `pictures` or `stages` do not match the sources.
    """

    noun = "features"
    expected = "features, floating (N, V, F)"

    def __init__(
        self,
        sources: Sequence[Tensor],
        index: Int64[Tensor, " N"] | None = None,
        *,
        pictures: Sequence[Tensor] | None = None,
        stages: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__(sources, index)
        if pictures is not None and [len(part) for part in pictures] != [len(source) for source in sources]:
            raise ValueError(f"pictures: got {sum(map(len, pictures))}, expected {sum(map(len, sources))}, one per row")
        if stages is not None:
            _check_stages(stages, sources)
        self._pictures = None if pictures is None else tuple(pictures)
        self._stages = None if stages is None else tuple(stages)

    @staticmethod
    def fits(source: Tensor) -> bool:
        """Whether a tensor holds features."""
        return source.is_floating_point() and source.ndim == 3

    def select(self, positions: Int64[Tensor, " n"]) -> "FeatureRows":
        """The features at `positions`, without copying."""
        return self._with(self.sources, self.index.index_select(0, positions))

    def append(self, other: Rows) -> "FeatureRows":
        """These features, followed by those of `other`; with pictures, and stages of the same size, if both have them."""
        sources, index = (*self.sources, *other.sources), self._joined_index(other)
        if not isinstance(other, FeatureRows):
            return FeatureRows(sources, index)
        pictures = None if self._pictures is None or other._pictures is None else (*self._pictures, *other._pictures)
        stages = None if self._stages is None or other._stages is None else (*self._stages, *other._stages)
        if stages is not None and stages[0].shape[1] != stages[-1].shape[1]:
            stages = None
        return FeatureRows(sources, index, pictures=pictures, stages=stages)

    @property
    def pictures(self) -> PixelRows | None:
        """The small images stored with the features."""
        return None if self._pictures is None else PixelRows(self._pictures, self.index)

    def beside(self) -> dict[str, Tensor]:
        """What is stored beside the features of a single source: "stages" and "pictures", as far as there are any."""
        found = {"stages": self._stages, "pictures": self._pictures}
        return {kind: arrays[0] for kind, arrays in found.items() if arrays is not None}

    def plain(self) -> "FeatureRows":
        """The first view only."""
        return self._with([source[:, :1] for source in self.sources], self.index)

    def stages_at(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"] | None:
        """Copy the statistics of the backbone's stages stored with the rows at `positions`; None if none are stored."""
        if self._stages is None:
            return None
        rows = self.index.index_select(0, positions).numpy()
        stages = torch.empty((len(rows), self._stages[0].shape[1]), dtype=self._stages[0].dtype)
        self._copy(self._stages, rows, stages)
        return stages

    def like(self, other: Rows) -> "FeatureRows":
        """The features, unchanged.

        Raises:
            ValueError: if `other` is images, or features of another shape.
        """
        if self.shape != other.shape:
            raise ValueError(
                f"rows: got features (V, F) = {self.shape} to mix with rows of shape {other.shape}, expected the same shape: "
                "features cannot be resized or mixed with images; embed both in the same way"
            )
        return self

    def for_model(self, image_shape: tuple[int, int, int]) -> "FeatureRows":
        """The features, unchanged: the backbone has already been applied."""
        return self

    def embed(self, classifier: Embedder, batch: Tensor) -> Float[Tensor, "n D"]:
        """Embeddings of the plain view."""
        return classifier.embed_features(batch[:, 0])

    def inspect(
        self, classifier: Embedder, batch: Tensor, positions: Int64[Tensor, " n"], stage_names: Sequence[str]
    ) -> tuple[Float[Tensor, "n D"], Float[Tensor, "n S"]]:
        """Embeddings of the plain view, and the statistics that are stored with it."""
        stages = self.stages_at(positions)
        if stages is None:
            raise ValueError(
                "features: got features without the statistics of their backbone's stages, expected both: the judge of "
                "outliers needs them; embed the images again"
            )
        return self.embed(classifier, batch), stages

    @property
    def side(self) -> None:
        """Features have none."""

    def describe(self) -> str:
        """Number of views and features."""
        views, features = self.shape
        return f"features: {views} views of {features}, {str(self.dtype).removeprefix('torch.')}"

    def _with(self, sources: Sequence[Tensor], index: Int64[Tensor, " n"]) -> "FeatureRows":
        """Other features with the same pictures and stages."""
        return FeatureRows(sources, index, pictures=self._pictures, stages=self._stages)


def _check_stages(stages: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    if [len(part) for part in stages] != [len(source) for source in sources]:
        raise ValueError(f"stages: got {sum(map(len, stages))}, expected {sum(map(len, sources))}, one per row")
    for part in stages:
        if not part.is_floating_point() or part.ndim != 2 or part.shape[1:] != stages[0].shape[1:]:
            raise ValueError(
                f"stages: got {part.dtype} {tuple(part.shape)}, expected statistics, floating (N, S), with the same S for "
                "each source"
            )


def _convert(images: UInt8[Tensor, "n C H W"], image_shape: tuple[int, ...]) -> UInt8[Tensor, "n c h w"]:
    # Reduce channels before resizing and repeat them after it, to resize as few as possible.
    channels, *size = image_shape
    if channels < images.shape[1]:
        images = _luma(images)
    if list(images.shape[2:]) != size:
        resized = F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)
        images = resized.round_().clamp_(0, 255).to(torch.uint8)
    return images.expand(-1, channels, -1, -1)


def _luma(images: UInt8[Tensor, "n 3 H W"]) -> UInt8[Tensor, "n 1 H W"]:
    total = torch.full_like(images[:, :1], 1 << 15, dtype=torch.int32)
    for channel, weight in enumerate(_LUMA):
        total.add_(images[:, channel : channel + 1], alpha=weight)
    return total.bitwise_right_shift_(16).to(torch.uint8)
