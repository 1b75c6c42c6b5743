"""The images that have to pass through the network, because the features file does not have them yet."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from momatch.data.content import Digests, as_bytes
from momatch.data.report import DataWarning
from momatch.data.rows import PixelRows
from momatch.embedding.existing import Existing
from momatch.embedding.images import Listing


@dataclass(frozen=True)
class NewImages:
    """Images of one split to pass through the network, each content once, in the order of their digests.

    Attributes:
        images: as they are in the dataset; see `shaped`.
        digests: of their content.
        shape: (C, H, W) that the network takes.
    """

    images: PixelRows
    digests: Digests
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.digests)

    def batch(self, first: int, size: int) -> UInt8[Tensor, "n c h w"]:
        """Images of the dataset, starting at `first`, at most `size`."""
        return self.images.gather(torch.arange(first, min(first + size, len(self))))

    def shaped(self, images: UInt8[Tensor, "n c h w"]) -> UInt8[Tensor, "n C H W"]:
        """Images as the network takes them."""
        return PixelRows([images]).converted(self.shape).gather(torch.arange(len(images)))


def open_new(
    listing: Listing, old: Existing | None, *, image_size: int | None
) -> tuple[Listing, dict[str, NewImages], frozenset[bytes]]:
    """The images that can be used, those of them that are new, and the digests of files that cannot be decoded.

    Args:
        listing: all images.
        old: the features file to add to; None if there is none.
        image_size: side that the network takes; None for that of the images.

    Raises:
        ValueError: if too many files cannot be decoded, or the new images do not fit those in the file.

    Warns:
        DataWarning: if files cannot be decoded.
    """
    known: frozenset[bytes] = frozenset() if old is None else old.unreadable
    every, listing = listing, listing.without(known)
    first = {name: _first_rows(split.digests) for name, split in listing.splits.items()}
    if old is not None:
        first = {name: {d: row for d, row in rows.items() if not old.has(name, d)} for name, rows in first.items()}
    wanted = {
        name: listing.splits[name].rows[[rows[digest] for digest in sorted(rows)]]
        for name, rows in first.items()
        if rows
    }
    opened = listing.source.read(wanted)
    readable, failed = {}, set(known)
    for name, (images, is_there) in opened.items():
        digests = sorted(first[name])
        failed |= {digest for digest, there in zip(digests, is_there, strict=True) if not there}
        kept = [np.frombuffer(digest, np.uint8) for digest, there in zip(digests, is_there, strict=True) if there]
        if kept:
            readable[name] = (images, np.stack(kept))
    unreadable = frozenset(failed)
    every.source.check_unreadable(every.rows_of(unreadable))
    new_failures = unreadable - known
    copies = len(every.rows_of(new_failures)) - len(new_failures)
    if copies:
        warnings.warn(f"{copies} more files are copies of these and cannot be used either", DataWarning, stacklevel=3)
    listing = listing.without(unreadable)
    found = [rows for rows, _ in readable.values()]
    shape = _image_shape(found, image_size) if old is None else _shape_of_file(found, image_size, old, listing.name)
    new = {name: NewImages(rows, digests, shape) for name, (rows, digests) in readable.items()}
    return listing, new, unreadable


def _first_rows(digests: Digests) -> dict[bytes, int]:
    """Digest -> position of the first image that has it."""
    found: dict[bytes, int] = {}
    for row, digest in enumerate(as_bytes(digests)):
        found.setdefault(digest, row)
    return found


def _image_shape(images: Sequence[PixelRows], image_size: int | None) -> tuple[int, int, int]:
    """(C, H, W) that the network takes; of no images, anything."""
    channels, height, width = images[0].shape if images else (3, 1, 1)
    return (channels, height, width) if image_size is None else (channels, image_size, image_size)


def _shape_of_file(
    images: Sequence[PixelRows], image_size: int | None, old: Existing, name: str
) -> tuple[int, int, int]:
    """(C, H, W) of the images in the file, which new ones must fit.

    Raises:
        ValueError: if they do not.
    """
    spec = old.spec
    for rows in images:
        channels, *sides = rows.shape
        if channels > spec.in_channels or (image_size is None and tuple(sides) != spec.image_size):
            raise ValueError(
                f"{name}: got new {rows.describe()}, expected {spec.in_channels} channels and {spec.image_size[1]}x"
                f"{spec.image_size[0]} pixels as in {spec.path}; embed everything again (--overwrite)"
            )
    return spec.in_channels, *spec.image_size
