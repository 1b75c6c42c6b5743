"""Command-line arguments to image sources: image files, folders, patterns, manifests, .npz files, known datasets.

Files are listed, but not opened, before the work starts, so that a wrong argument fails at once and the number of images is
known. That takes about a hundred bytes per file.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from momatch.data.feature_spec import read_feature_spec
from momatch.data.load import BY_NAME, load_dataset, unknown_name
from momatch.data.report import DataError, Skipped
from momatch.data.sources.folder import is_image_name, walk_files
from momatch.data.sources.manifest import manifest_paths
from momatch.data.sources.npz import StoredImages, open_images

_MANIFESTS = (".csv", ".parquet", ".pq")
_TABLES = (*_MANIFESTS, ".npz")


@dataclass(frozen=True)
class FileBatch:
    """A batch of image files.

    Attributes:
        paths: the files.
        reasons: index in `paths` -> why the file cannot be read, if already known.
    """

    paths: list[str]
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ArrayBatch:
    """Consecutive rows of an array of images.

    Attributes:
        name: name of the array.
        first: index of the first row.
        pixels: uint8 images; None if they cannot be read.
        count: number of rows.
        reason: why they cannot be read.
    """

    name: str
    first: int
    pixels: UInt8[np.ndarray, "n C H W"] | None
    count: int
    reason: str | None = None


Batch = FileBatch | ArrayBatch


@dataclass
class FileSource:
    """Image files, in order; `reasons` as in `FileBatch`."""

    paths: list[str] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def batches(self, size: int) -> Iterator[Batch]:
        """The files, `size` at a time."""
        for start in range(0, len(self.paths), size):
            paths = self.paths[start : start + size]
            known = {i: self.reasons[start + i] for i in range(len(paths)) if start + i in self.reasons}
            yield FileBatch(paths, known)


@dataclass(frozen=True)
class NpzSource:
    """An array of images in an .npz file, read in blocks."""

    name: str
    images: StoredImages

    def __len__(self) -> int:
        return self.images.shape[0]

    def batches(self, size: int) -> Iterator[Batch]:
        """The images, `size` at a time; from a damaged place on, batches with the reason instead."""
        first = 0
        try:
            for pixels in self.images.blocks(size):
                yield ArrayBatch(self.name, first, pixels, len(pixels))
                first += len(pixels)
        except Exception as error:
            # zipfile, zlib and numpy each raise their own errors for a truncated file.
            reason = f"{type(error).__name__}: {error}"
            for start in range(first, len(self), size):
                yield ArrayBatch(self.name, start, None, min(size, len(self) - start), reason)


@dataclass(frozen=True)
class ArraySource:
    """The images of a known dataset, in memory."""

    name: str
    pixels: UInt8[np.ndarray, "n C H W"]

    def __len__(self) -> int:
        return len(self.pixels)

    def batches(self, size: int) -> Iterator[Batch]:
        """The images, `size` at a time."""
        for start in range(0, len(self.pixels), size):
            pixels = self.pixels[start : start + size]
            yield ArrayBatch(self.name, start, pixels, len(pixels))


Source = FileSource | NpzSource | ArraySource


def find_sources(words: Sequence[str], data_dir: str | None = None) -> list[Source]:
    """The image sources that `words` name, in order; see docs/predict.md.

    Args:
        words: image files, folders (all images in them, sorted), patterns, manifests, .npz files, names of known datasets
            (their test images).
        data_dir: directory of the known datasets.

    Raises:
        DataError: if there are no words, or one matches no image.
        OSError: if a folder or a manifest cannot be read.
    """
    if not words:
        raise DataError("got no paths, expected images, folders, patterns, a manifest or an .npz file")
    sources: list[Source] = []
    for word in words:
        for source in _of_word(word, data_dir):
            if isinstance(source, FileSource) and sources and isinstance(last := sources[-1], FileSource):
                # Merge consecutive files into one source, so that batches are full even if each word is one file.
                last.reasons.update({len(last) + i: reason for i, reason in source.reasons.items()})
                last.paths.extend(source.paths)
            else:
                sources.append(source)
    return sources


def _of_word(word: str, data_dir: str | None) -> Iterator[Source]:
    if word in BY_NAME and os.path.lexists(word):
        raise DataError(
            f"{word}: got a name that is both a known dataset and a path, expected one of them; write ./{word} for the "
            "path, or run the command from another directory for the dataset's test images"
        )
    if word in BY_NAME:
        test = load_dataset(word, data_dir).test
        if test is None:
            raise DataError(f"{word}: the dataset has no test images; pass paths of images")
        yield ArraySource(word, test.images.numpy())
        return
    path = os.path.expanduser(word)
    if os.path.isdir(path):
        yield FileSource(_folder(path))
    elif os.path.lexists(path):
        # A broken link counts as an unreadable file and gets a row.
        yield from _file(path)
    elif glob.has_magic(path):
        yield from _pattern(word, path)
    else:
        raise DataError(unknown_name(word))


def _folder(path: str) -> list[str]:
    found = sorted(name for name, _ in walk_files("", path.rstrip("/") or "/") if is_image_name(name))
    if not found:
        raise DataError(f"{path}: no images found, expected files with an image extension (.jpg, .png, ...)")
    return found


def _file(path: str) -> Iterator[Source]:
    extension = os.path.splitext(path)[1].lower()
    if extension in _MANIFESTS:
        yield _manifest(path)
    elif extension == ".npz":
        if (spec := read_feature_spec(Path(path))) is not None:
            raise DataError(
                f"{path}: got cached features of {spec.dataset}, expected images: the model includes its backbone; pass the "
                "images themselves"
            )
        for role, images in open_images(Path(path)).items():
            if images.shape[0] == 0:
                raise DataError(f"{path}: {images.key}: got no images, expected at least one")
            yield NpzSource(path if role == "images" else f"{path}/{images.key}", images)
    else:
        # A file named explicitly is read, whatever its extension.
        yield FileSource([path])


def _manifest(path: str) -> FileSource:
    source, root = FileSource(), os.path.dirname(path)
    for row in manifest_paths(Path(path)):
        if isinstance(row, Skipped):
            source.reasons[len(source)] = str(row)
            source.paths.append(path)
        else:
            source.paths.append(os.path.join(root, row))
    if not source.paths:
        raise DataError(f"{path}: got no rows, expected one per image")
    return source


def _pattern(word: str, pattern: str) -> Iterator[Source]:
    """The images that a pattern matches, and those in folders that it matches, unless it contains ``**``.

    Manifests and .npz files count only if the pattern ends in their extension: a table next to images is usually about them.
    """
    matches = sorted(glob.glob(pattern, recursive=True))
    extension = os.path.splitext(pattern)[1].lower()
    files: list[str] = []
    tables: list[str] = []
    for match in matches:
        if os.path.isdir(match):
            if "**" not in pattern:
                files += sorted(name for name, _ in walk_files("", match.rstrip("/")) if is_image_name(name))
        elif os.path.splitext(match)[1].lower() == extension in _TABLES:
            tables.append(match)
        elif is_image_name(match):
            files.append(match)
    if not files and not tables:
        raise DataError(f"{word}: matches {len(matches)} files, but no image; expected at least one image")
    if files:
        yield FileSource(files)
    for table in tables:
        yield from _file(table)
