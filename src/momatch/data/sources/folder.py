"""An image folder: one subfolder per class, and optional folders of unlabelled and of test images.

::

    root/cat/...  root/dog/...  root/unlabeled/...  root/test/cat/...  root/test/dog/...

The class and unlabelled folders may also be in ``root/train``. Subfolders of a class belong to the class. Hidden files are
skipped; files without an image extension are counted as ignored.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from momatch.data.dataset import UNLABELED, Dataset
from momatch.data.image_files import ImageFiles, check_classes, class_order, file_digest, load_files
from momatch.data.report import DataError, LoadOptions, LoadReport

IMAGE_EXTENSIONS = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".jp2", ".pbm", ".pgm", ".png", ".ppm", ".pnm", ".tga", ".tif", ".tiff", ".webp"}
)


@dataclass
class _Scan:
    """Files found so far. Only names are kept, about 80 bytes per file; sizes and times go into the digest."""

    root: str
    digest: int = 0
    ignored: int = 0
    paths: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)

    def add(self, folder: str, label: int) -> int:
        """Add the images under `folder` (relative to the root) in sorted order; returns how many."""
        found = sorted(self._images(folder))
        self.paths += found
        self.labels += [label] * len(found)
        return len(found)

    def _images(self, folder: str) -> Iterator[str]:
        for name, entry in walk_files(self.root, folder):
            if is_image_name(name):
                self.digest += _digest(entry, name)
                yield name
            else:
                self.ignored += 1


def is_image_name(name: str) -> bool:
    """Whether a file name has an image extension."""
    return os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS


def walk_files(
    root: str, folder: str, above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Names and entries of the non-hidden files under `folder`, in arbitrary order.

    Args:
        root: directory that names are relative to.
        folder: relative to `root`; names start with it.
        above: parent directories, to detect link cycles.

    Raises:
        OSError: if a directory cannot be listed.
    """
    here = os.stat(os.path.join(root, folder))
    if (here.st_dev, here.st_ino) in above:
        return
    above |= {(here.st_dev, here.st_ino)}
    with os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{folder}/{entry.name}"
            if entry.is_dir():
                yield from walk_files(root, name, above)
            else:
                yield name, entry


def _digest(entry: os.DirEntry[str], name: str) -> int:
    try:
        return file_digest(name, entry.stat())
    except OSError:
        # A broken link: the decoder will report it.
        return file_digest(name, entry.stat(follow_symlinks=False))


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _has_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(is_image_name(entry.name) and entry.is_file() for entry in entries)


def _layout(root: Path, options: LoadOptions) -> tuple[list[str], list[str], str | None]:
    """The class folders, unlabelled folders and test folder, relative to `root`."""
    folders = _subfolders(root)
    is_unlabeled = {name: name.lower() in {other.lower() for other in options.unlabeled_folders} for name in folders}
    if _has_images(root):
        raise DataError(
            f"{root}: got images directly in it, expected one subfolder per class; move them to a class folder or to "
            f"{options.unlabeled_folders[0]}/"
        )
    test = next((name for name in folders if name.lower() == options.test_folder.lower()), None)
    if test and _has_images(root / test):
        raise DataError(
            f"{root / test}: got images directly in it, expected class folders of test images; if it is a class, rename it",
            {"test_folder": ", or set another name for the test folder with {}"},
        )
    classes = [name for name in folders if name != test and not is_unlabeled[name]]
    unlabeled = [name for name in folders if is_unlabeled[name]]
    # If there are images directly in "train", it is a class.
    train = next((name for name in classes if name.lower() == "train"), None)
    if train and _subfolders(root / train) and not _has_images(root / train):
        if classes != [train]:
            others = ", ".join(sorted(set(classes) - {train}))
            raise DataError(
                f"{root}: got the folders {others} next to train/, expected only {options.test_folder}/ and "
                f"{options.unlabeled_folders[0]}/; move them",
                {"test_folder": ", or set the name of the test folder with {}"},
            )
        inner = _subfolders(root / train)
        marks = {name.lower() for name in options.unlabeled_folders}
        classes = [f"{train}/{name}" for name in inner if name.lower() not in marks]
        unlabeled += [f"{train}/{name}" for name in inner if name.lower() in marks]
    if not classes and not unlabeled:
        raise DataError(f"{root}: got no images and no class folders, expected one subfolder per class")
    _refuse_splits_as_classes(root, classes)
    return classes, unlabeled, test


def _refuse_splits_as_classes(root: Path, classes: list[str]) -> None:
    """Reject folders that all have the same subfolders and no images: they are splits (training/cat, testing/cat)."""
    inner = [_subfolders(root / name) for name in classes]
    alike = len(classes) > 1 and len(inner[0]) > 0 and all(names == inner[0] for names in inner)
    if alike and not any(_has_images(root / name) for name in classes):
        raise DataError(
            f"{root}: got {', '.join(classes)} with the same subfolders {', '.join(inner[0][:5])}, expected one subfolder per "
            "class; rename the training folder to train and the test folder to test"
        )


def scan_folder(root: Path, options: LoadOptions) -> ImageFiles:
    """List the images of an image folder without opening them.

    Raises:
        DataError: if the folder is empty, has fewer than two classes, an empty class folder, or test classes without training
            images.
    """
    class_folders, unlabeled, test = _layout(root, options)
    of_class = {folder.rsplit("/", 1)[-1]: folder for folder in class_folders}
    names = class_order(of_class)
    check_classes(str(root), names)
    scan = _Scan(str(root))
    empty = [of_class[name] for k, name in enumerate(names) if not scan.add(of_class[name], k)]
    if empty:
        raise DataError(f"{root}: no images in the class folder {', '.join(empty)}; add images or delete it")
    for folder in unlabeled:
        if not scan.add(folder, UNLABELED):
            raise DataError(f"{root}: no images in the unlabelled folder {folder}; add images or delete it")
    num_train = len(scan.paths)
    if test is not None:
        unknown = sorted(set(_subfolders(root / test)) - set(names))
        if unknown:
            raise DataError(
                f"{root / test}: got the class {', '.join(unknown)}, expected only classes of the training images"
            )
        for name in _subfolders(root / test):
            scan.add(f"{test}/{name}", names.index(name))
        if len(scan.paths) == num_train:
            raise DataError(
                f"{root / test}: no images in it, expected test images in class folders; add images or delete it"
            )
    labels = np.asarray(scan.labels, np.int64)
    return ImageFiles(str(root), str(root), names, scan.paths, labels, num_train, scan.digest, ignored=scan.ignored)


def load_folder(name: str, path: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load an image folder; see the module docstring for its layout and `decode` for the conversions.

    Raises:
        DataError: if the folder or its images cannot be used.
    """
    return load_files(name, scan_folder(path, options), options)
