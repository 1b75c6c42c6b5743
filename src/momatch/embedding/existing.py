"""A features file that is to be brought up to date: which images it has, and their rows."""

import zipfile
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from momatch.data.content import as_bytes
from momatch.data.dataset import Dataset
from momatch.data.feature_spec import FeatureSpec, read_feature_spec
from momatch.data.features import WEIGHTS, open_features
from momatch.data.rows import FeatureRows
from momatch.embedding.images import Listing

if TYPE_CHECKING:
    from momatch.embedding.embedding import EmbedOptions

#: Settings that choose images; with others, the features of an image stay the same.
_OF_THE_CHOICE = frozenset({"limit", "limit_test", "test_fraction"})


@dataclass(frozen=True)
class Existing:
    """An existing features file.

    Attributes:
        spec: how its features were made.
        dataset: its content, with the stored labels.
        unreadable: digests of files that could not be decoded.
    """

    spec: FeatureSpec
    dataset: Dataset
    unreadable: frozenset[bytes]

    @classmethod
    def open(cls, path: Path, options: "EmbedOptions") -> "Existing":
        """Open the file at `path`, to which images are to be added with `options`.

        Raises:
            ValueError: if it is no features file, or was made with other settings.
        """
        spec = read_feature_spec(path)
        remedy = "choose another name, or replace it (momatch embed --overwrite)"
        if spec is None:
            raise ValueError(f"out: {path} already exists and is not a features file; {remedy}")
        dataset, unreadable = open_features(spec.dataset, path)
        if dataset.train.digests is None:
            raise ValueError(f"out: {path} was made by {spec.created_by}, which did not record its images; {remedy}")
        settings = [field for field in fields(options) if field.name not in _OF_THE_CHOICE]
        before, now = (
            {field.name: found.get(field.name, field.default) for field in settings}
            for found in (spec.options, options.given())
        )
        others = [name for name in now if now[name] != before[name]]
        if others:
            then, given = (" and ".join(_as_flag(name, found[name]) for name in others) for found in (before, now))
            raise ValueError(
                f"out: {path} holds features with {then}, got {given}; use the same settings to add images to it, {remedy}"
            )
        return cls(spec, dataset, unreadable)

    @property
    def picture_shape(self) -> tuple[int, ...]:
        """Shape of the pictures in the file."""
        pictures = self.dataset.train.rows.pictures
        assert pictures is not None, "every file has them"
        return pictures.shape

    @cached_property
    def _rows(self) -> dict[str, dict[bytes, int]]:
        """Split -> digest -> a row that has it."""
        return {
            name: {digest: row for row, digest in enumerate(as_bytes(split.digests))}
            for name, split in self.dataset.splits.items()
            if split.digests is not None
        }

    def has(self, split: str, digest: bytes) -> bool:
        """Whether there are features of an image for `split`; a training image also serves to test."""
        return digest in self._rows["train"] or (split == "test" and digest in self._rows.get("test", {}))

    def places(self, split: str) -> dict[bytes, int]:
        """Digest -> row of `arrays`."""
        if split == "train":
            return dict(self._rows["train"])
        start = 0 if self.dataset.test is None else len(self.dataset.test)
        of_train = {digest: start + row for digest, row in self._rows["train"].items()}
        return of_train | self._rows.get("test", {})

    def arrays(self, split: str) -> dict[str, list[np.ndarray]]:
        """Kind -> arrays to take the rows of `split` from: for test images, those of the test and of the training split."""
        sources = [self.dataset.train] if split == "train" else [self.dataset.test, self.dataset.train]
        found: dict[str, list[np.ndarray]] = {"features": [], "stages": [], "pictures": []}
        for source in sources:
            if source is None:
                continue
            rows = source.rows
            assert isinstance(rows, FeatureRows), "it is a features file"
            features = rows.sources[0].numpy()
            found["features"].append(features if split == "train" else features[:, :1])
            for kind, array in rows.beside().items():
                found[kind].append(array.numpy())
        return found

    def weights(self) -> bytes:
        """The backbone's weights, as stored.

        Raises:
            OSError: if they cannot be read.
        """
        with zipfile.ZipFile(self.spec.path) as archive:
            return archive.read(WEIGHTS)

    def overlap(self, listing: Listing) -> tuple[int, int]:
        """How many images of a listing are in the file, and how many of the file are not in the listing."""
        listed = [(name, digest) for name, split in listing.splits.items() for digest in as_bytes(split.digests)]
        there = {digest for _, digest in listed}
        kept = sum(self.has(name, digest) for name, digest in listed)
        stored = [split.digests for split in self.dataset.splits.values() if split.digests is not None]
        return kept, sum(digest not in there for digests in stored for digest in as_bytes(digests))

    def is_of(self, listing: Listing, spec: FeatureSpec, unreadable: frozenset[bytes]) -> bool:
        """Whether the file already says all of this."""
        if spec != self.spec or unreadable != self.unreadable or listing.splits.keys() != self.dataset.splits.keys():
            return False
        pairs = [(split, self.dataset.splits[name]) for name, split in listing.splits.items()]
        return all(
            now.files == then.files
            and np.array_equal(now.labels.numpy(), then.labels.numpy())
            and then.digests is not None
            and np.array_equal(now.digests, then.digests)
            for now, then in pairs
        )


def _as_flag(name: str, value: object) -> str:
    """A setting as it is given on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return f"no {flag}"
    return flag if value is True else f"{flag} {value}"
