"""An image folder: one subfolder per class, and optional folders of unlabelled and of test images.

::

    root/cat/...  root/dog/...  root/unlabeled/...  root/test/cat/...  root/test/dog/...

The class and unlabelled folders may also be in ``root/train``. Images directly in the root are unlabelled. Subfolders of a
class belong to the class; a class may have no image yet. Hidden files are skipped; files without an image extension are
counted as ignored.

Folders are taken for what their names say, however they are spelled: ``Unlabelled-2`` and ``to label`` are unlabelled,
``validation`` holds test images if there is no ``test``. What cannot be meant is refused; none of these is ever taken for a
class.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from momatch.data.dataset import UNLABELED, Dataset
from momatch.data.image_files import ImageFiles, class_order, file_digest, hold_out, load_files
from momatch.data.report import DataError, LoadOptions, LoadReport

IMAGE_EXTENSIONS = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".jp2", ".pbm", ".pgm", ".png", ".ppm", ".pnm", ".tga", ".tif", ".tiff", ".webp"}
)
#: Beginnings of the names of unlabelled folders, in small letters without spaces and signs.
_UNLABELED_NAMES = (
    *("unlabel", "nolabel", "notlabel", "tolabel", "tobelabel", "unannotat", "notannotat", "toannotat"),
    *("unsorted", "tosort", "tobesorted", "unclassified", "toclassify", "uncategori", "untagged"),
)
#: Names of folders of images to measure with, in the same spelling.
_TEST_NAMES = frozenset(
    f"{word}{what}"
    for word in ("test", "tests", "testing", "val", "valid", "validate", "validation", "dev", "eval", "evaluation")
    for what in ("", "set", "split", "data", "images")
) | {"holdout", "heldout"}
_TRAIN_NAMES = frozenset(
    f"{word}{what}" for word in ("train", "training") for what in ("", "set", "split", "data", "images")
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

    def add_loose(self) -> None:
        """Add the images directly in the root: they are unlabelled."""
        with os.scandir(self.root) as entries:
            loose = {entry.name: entry for entry in entries if is_image_name(entry.name) and entry.is_file()}
        for name in sorted(name for name in loose if not is_hidden(name)):
            self.digest += _digest(loose[name], name)
            self.paths.append(name)
            self.labels.append(UNLABELED)

    def _images(self, folder: str) -> Iterator[str]:
        for name, entry in walk_files(self.root, folder):
            if is_image_name(name):
                self.digest += _digest(entry, name)
                yield name
            else:
                self.ignored += 1


def is_hidden(name: str) -> bool:
    """Whether a file or folder is not for people: hidden, or what macOS adds to zip files beside the images."""
    return name.startswith(".") or name == "__MACOSX"


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
            if is_hidden(entry.name):
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
        return sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name))


def _has_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(is_image_name(entry.name) and entry.is_file() for entry in entries)


@dataclass(frozen=True)
class _Layout:
    """The folders of a dataset, relative to its root.

    Attributes:
        classes: one per class.
        unlabeled: of unlabelled images.
        test: with a subfolder per class; None if there is none.
    """

    classes: list[str]
    unlabeled: list[str]
    test: str | None


def _layout(root: Path, options: LoadOptions) -> _Layout:
    """Tell the folders of `root` apart by their names.

    Raises:
        DataError: if a name and what is in the folder do not fit together.
    """
    folders = _subfolders(root)
    unlabeled = [name for name in folders if _is_unlabeled(name, options)]
    test = _test_folder(root, [name for name in folders if name not in unlabeled], options)
    classes = [name for name in folders if name != test and name not in unlabeled]
    # If there are images directly in "train", it is a class.
    train = next((name for name in classes if _plain(name) in _TRAIN_NAMES), None)
    if train and _subfolders(root / train) and not _has_images(root / train):
        if classes != [train]:
            others = ", ".join(sorted(set(classes) - {train}))
            raise DataError(
                f"{root}: got the folders {others} next to {train}/, expected only {options.test_folder}/ and "
                f"{options.unlabeled_folders[0]}/; move them",
                {"test_folder": ", or set the name of the test folder with {}"},
            )
        inner = _subfolders(root / train)
        classes = [f"{train}/{name}" for name in inner if not _is_unlabeled(name, options)]
        unlabeled += [f"{train}/{name}" for name in inner if _is_unlabeled(name, options)]
    _refuse_splits_as_classes(root, classes)
    return _Layout(classes, unlabeled, test)


def _plain(name: str) -> str:
    """A name in small letters without spaces and signs, to compare spellings."""
    return re.sub(r"[\W_]", "", name.lower())


def _is_unlabeled(name: str, options: LoadOptions) -> bool:
    named = {other.lower() for other in options.unlabeled_folders}
    return name.lower() in named or _plain(name).startswith(_UNLABELED_NAMES)


def _test_folder(root: Path, folders: list[str], options: LoadOptions) -> str | None:
    """The folder of test images: that with the given name, or one that is called validation or similarly.

    Raises:
        DataError: if there are several, or images that are not in class folders.
    """
    named = [name for name in folders if name.lower() == options.test_folder.lower()]
    similar = [name for name in folders if _plain(name) in _TEST_NAMES and name not in named]
    found = [*named, *similar]
    if len(found) > 1:
        raise DataError(
            f"{root}: got the folders {' and '.join(found)}, expected one folder of test images; move the images of the "
            f"others to the class folders or to {found[0]}/; if one is a class, rename it"
        )
    if found and _has_images(root / found[0]):
        raise DataError(
            f"{root / found[0]}: got images directly in it, expected class folders of test images; if it is a class, "
            "rename it",
            {"test_folder": ", or set another name for the test folder with {}"},
        )
    return found[0] if found else None


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
        DataError: if there are no images, or the layout cannot be understood.
    """
    layout = _layout(root, options)
    of_class = {folder.rsplit("/", 1)[-1]: folder for folder in layout.classes}
    of_test = [] if layout.test is None else _subfolders(root / layout.test)
    names = class_order([*of_class, *of_test])
    scan = _Scan(str(root))
    for k, name in enumerate(names):
        if name in of_class:
            scan.add(of_class[name], k)
    for folder in layout.unlabeled:
        scan.add(folder, UNLABELED)
    scan.add_loose()
    num_train = len(scan.paths)
    if not num_train:
        raise DataError(
            f"{root}: got no images, expected one subfolder of images per class, or unlabelled images in "
            f"{options.unlabeled_folders[0]}/ or in the folder itself"
        )
    for name in of_test:
        scan.add(f"{layout.test}/{name}", names.index(name))
    labels = np.asarray(scan.labels, np.int64)
    files = ImageFiles(str(root), str(root), names, scan.paths, labels, num_train, scan.digest, ignored=scan.ignored)
    hold_out(files, options)
    return files


def load_folder(name: str, path: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load an image folder; see the module docstring for its layout and `decode` for the conversions.

    Raises:
        DataError: if the folder or its images cannot be used.
    """
    return load_files(name, scan_folder(path, options), options)
