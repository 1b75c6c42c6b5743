"""The images to embed: listed by content first, opened only as far as they are new."""

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from momatch.data.content import Digests, as_bytes, file_digests, pixel_digests
from momatch.data.dataset import NO_CLASS, Dataset
from momatch.data.image_files import ImageFiles, load_files
from momatch.data.listing import list_files
from momatch.data.load import BY_NAME, dataset_name
from momatch.data.report import DataError, DataWarning, LoadOptions, NothingReadableError, Skipped, examples
from momatch.data.rows import PixelRows
from momatch.data.sampling import draw_subset
from momatch.training.data import load_by_name, settings_named


@dataclass(frozen=True)
class ListedSplit:
    """The images of a split.

    Attributes:
        labels: of each image, -1 for unlabelled.
        files: their names; empty if they did not come from files.
        digests: of their content.
        rows: where they are in the source.
    """

    labels: Int64[Tensor, " n"]
    files: tuple[str, ...]
    digests: Digests
    rows: Int64[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, mask: Bool[np.ndarray, " n"]) -> "ListedSplit":
        """The images where `mask` is true."""
        files = tuple(file for file, keep in zip(self.files, mask, strict=True) if keep) if self.files else ()
        return ListedSplit(self.labels[torch.from_numpy(mask)], files, self.digests[mask], self.rows[mask])


class Source(ABC):
    """Where images are read from."""

    @abstractmethod
    def read(self, rows: Mapping[str, Int64[np.ndarray, " n"]]) -> dict[str, tuple[PixelRows, Bool[np.ndarray, " n"]]]:
        """Open images.

        Args:
            rows: split -> rows of the source, `ListedSplit.rows`.

        Returns:
            For each split the images that can be read, in order, and which of the rows they are.

        Raises:
            ValueError: if too many cannot be read.
        """

    @abstractmethod
    def check_unreadable(self, rows: Int64[np.ndarray, " n"]) -> None:
        """Check that the rows that cannot be read, counting each copy of an image, are not too many.

        Raises:
            ValueError: if they are.
        """


@dataclass(frozen=True)
class Listing:
    """The images to embed.

    Attributes:
        name: name of the dataset.
        class_names: label k is ``class_names[k]``.
        splits: "train" and, if there are test images, "test".
        total: training images, with those that a limit leaves out.
        source: opens them.
    """

    name: str
    class_names: tuple[str, ...]
    splits: dict[str, ListedSplit]
    total: int
    source: Source

    def rows_of(self, digests: frozenset[bytes]) -> Int64[np.ndarray, " n"]:
        """Rows of the source whose images have one of these digests."""
        found = [
            split.rows[[digest in digests for digest in as_bytes(split.digests)]] for split in self.splits.values()
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def without(self, unreadable: frozenset[bytes]) -> "Listing":
        """The images whose digests are not in `unreadable`; a split without images is left out."""
        if not unreadable:
            return self
        kept = {
            name: split.where(np.array([digest not in unreadable for digest in as_bytes(split.digests)], bool))
            for name, split in self.splits.items()
        }
        return replace(self, splits={name: split for name, split in kept.items() if len(split)})


def list_images(
    dataset: str,
    *,
    data_dir: str | None,
    image_size: int | None,
    test_fraction: float,
    limits: Mapping[str, int | None],
    seed: int,
    progress: bool,
) -> Listing:
    """List the images of a dataset; image files are not decoded yet.

    Args:
        dataset: name or path.
        data_dir: directory of known datasets.
        image_size: side that image files are decoded to; arrays are read as they are.
        test_fraction: share of each class to hold out for testing.
        limits: split -> most images, drawn by `seed`; None for all.
        seed: a non-negative integer.
        progress: show progress bars.

    Raises:
        ValueError: if the data cannot be used, or are features instead of images.
    """
    options = LoadOptions(size=image_size, test_fraction=test_fraction, progress=progress)
    path = Path(dataset).expanduser()
    with settings_named():
        files = None if dataset in BY_NAME or not path.exists() else list_files(path, options)
    if files is not None:
        return _of_files(files, dataset_name(path), options, limits, seed)
    loaded = load_by_name(dataset, data_dir=data_dir, test_fraction=test_fraction, progress=progress)
    splits = {}
    for name, split in loaded.splits.items():
        if len(split):
            rows = _chosen(split.labels, limits[name], seed)
            images = PixelRows([split.images]).select(torch.from_numpy(rows))
            splits[name] = ListedSplit(split.labels[torch.from_numpy(rows)], (), pixel_digests(images), rows)
    return Listing(loaded.name, loaded.class_names, splits, len(loaded.train), _Arrays(loaded))


def _chosen(labels: Int64[Tensor, " N"], limit: int | None, seed: int) -> Int64[np.ndarray, " n"]:
    return np.arange(len(labels)) if limit is None else draw_subset(labels, limit, seed=seed).numpy()


def _of_files(
    files: ImageFiles, name: str, options: LoadOptions, limits: Mapping[str, int | None], seed: int
) -> Listing:
    labels = torch.from_numpy(files.labels)
    has_class = np.flatnonzero(files.labels != NO_CLASS)
    num_train = int((has_class < files.num_train).sum())
    splits = {}
    for split, usable in (("train", has_class[:num_train]), ("test", has_class[num_train:])):
        if len(usable):
            rows = usable[_chosen(labels[torch.from_numpy(usable)], limits[split], seed)]
            paths = tuple(files.paths[row] for row in rows)
            digests = file_digests(files.root, paths, options.cache_dir)
            splits[split] = ListedSplit(labels[torch.from_numpy(rows)], paths, digests, rows)
    return Listing(name, files.class_names, splits, num_train, _Files(files, name, options))


@dataclass(frozen=True)
class _Arrays(Source):
    """Images in memory, or memory-mapped."""

    dataset: Dataset

    def read(self, rows: Mapping[str, Int64[np.ndarray, " n"]]) -> dict[str, tuple[PixelRows, Bool[np.ndarray, " n"]]]:
        """The images: all can be read."""
        return {
            name: (
                PixelRows([self.dataset.splits[name].images]).select(torch.from_numpy(chosen)),
                np.ones(len(chosen), bool),
            )
            for name, chosen in rows.items()
        }

    def check_unreadable(self, rows: Int64[np.ndarray, " n"]) -> None:
        """Nothing to check."""
        assert not len(rows), "all can be read"


@dataclass(frozen=True)
class _Files(Source):
    """Image files."""

    files: ImageFiles
    name: str
    options: LoadOptions

    def read(self, rows: Mapping[str, Int64[np.ndarray, " n"]]) -> dict[str, tuple[PixelRows, Bool[np.ndarray, " n"]]]:
        """Decode the files, or take them from the cache.

        Raises:
            ValueError: if too many cannot be decoded, compared with all files of the dataset.
        """
        every = np.unique(np.concatenate([np.empty(0, np.int64), *rows.values()]))
        if not len(every):
            return {}
        paths = [self.files.paths[row] for row in every]
        content = hashlib.sha256(file_digests(self.files.root, paths, self.options.cache_dir).tobytes()).digest()
        total = len(self.files.paths) + len(self.files.skipped)
        # The limit is for all files, not for those that are new.
        options = replace(self.options, max_skipped=self.options.skip_limit(total))
        try:
            with settings_named():
                decoded, report = load_files(
                    self.name, self.files.select(every, int.from_bytes(content[:16], "big")), options
                )
        except NothingReadableError as error:
            if len(every) == total:
                raise
            warnings.warn(str(error), DataWarning, stacklevel=2)
            return {name: (_no_images(), np.zeros(len(chosen), bool)) for name, chosen in rows.items()}
        for message in report.warnings:
            warnings.warn(message, DataWarning, stacklevel=2)
        found = {}
        for name, chosen in rows.items():
            split = decoded.splits.get(name)
            place = {} if split is None else {path: position for position, path in enumerate(split.files)}
            wanted = [self.files.paths[row] for row in chosen]
            is_there = np.array([path in place for path in wanted], bool)
            positions = torch.tensor([place[path] for path in wanted if path in place], dtype=torch.int64)
            images = _no_images() if split is None else PixelRows([split.images]).select(positions)
            found[name] = (images, is_there)
        return found

    def check_unreadable(self, rows: Int64[np.ndarray, " n"]) -> None:
        """Compare them with all files of the dataset; `read` sees each content once, and only what is new.

        Raises:
            ValueError: if there are too many.
        """
        unusable = [*self.files.skipped, *(Skipped(self.files.name(row), "cannot be decoded") for row in rows.tolist())]
        limit = self.options.skip_limit(len(self.files.paths) + len(self.files.skipped))
        if len(unusable) > limit:
            raise DataError(
                f"{self.files.source}: {len(unusable)} files or rows cannot be used, expected at most {limit}:\n"
                f"{examples(unusable)}\nrepair or remove them"
            )


def _no_images() -> PixelRows:
    return PixelRows([torch.empty(0, 3, 1, 1, dtype=torch.uint8)])
