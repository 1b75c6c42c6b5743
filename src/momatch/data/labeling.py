"""Labels of embedded images, read where they are kept: features are made once, labels change.

Images are recognised by content (`momatch.data.content`), so a file that was moved from one folder to another keeps its
features. A manifest that is named explicitly adds to what the folder of the images says. Its images need not be there: then
they are found by name (`momatch.data.row_matching`).
"""

import csv
import io
import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from momatch.data.content import Digests, as_bytes, file_digests
from momatch.data.feature_spec import FeatureSpec
from momatch.data.image_files import class_order
from momatch.data.label_source import Labeling
from momatch.data.listing import list_files
from momatch.data.report import DataError, LoadOptions
from momatch.data.row_matching import KnownImage, ListedRow, match_rows
from momatch.data.sources.manifest import MANIFESTS, NONE, named_labels

#: Value of the option `labels` for the labels in the features file.
STORED = "stored"
_UNLABELED, _NO_CLASS = -1, -2
#: Columns of a record of labels: a manifest, with the digests of the images; the last only if an image is of no class.
_COLUMNS = ("path", "label", "split", "digest")
_WITH_STATUS = (*_COLUMNS, "status")
#: In the column ``split``: not an image, but a class without any.
_CLASS = "class"


@dataclass(frozen=True)
class StoredSplit:
    """What a features file says about the images of a split.

    Attributes:
        labels: of each image, -1 for unlabelled.
        files: their names; empty if they did not come from files.
        digests: of their content.
    """

    labels: Int64[np.ndarray, " N"]
    files: tuple[str, ...]
    digests: Digests


@dataclass
class LabeledRows:
    """The images of a split to use.

    Attributes:
        labels: one per image.
        files: their names.
        rows: where their features are: rows of the stored training split; for test images, those of the stored test split,
            then those of the training split, whose plain view is tested on.
    """

    labels: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, label: int, file: str, row: int) -> None:
        """Add an image."""
        self.labels.append(label)
        self.files.append(file)
        self.rows.append(row)


@dataclass(frozen=True)
class CurrentLabels:
    """Labels as they are now.

    Attributes:
        class_names: label k is ``class_names[k]``.
        splits: "train", "test" and "none" -> images. The last are of no class; rows are those of the stored training split.
        labeling: where they come from.
    """

    class_names: tuple[str, ...]
    splits: dict[str, LabeledRows]
    labeling: Labeling


def find_source(spec: FeatureSpec) -> Path | None:
    """The folder or manifest that the features were made from: as seen from the features file, or where it was named."""
    if not spec.source_near:
        return None
    given, near = Path(spec.source).expanduser(), spec.path.absolute().parent / spec.source_near
    # The shorter name, if both are the same place.
    for path in (given,) if given.resolve() == near.resolve() else (near, given):
        if path.is_dir() or (path.is_file() and path.suffix.lower() in MANIFESTS):
            return path
    return None


def current_labels(
    spec: FeatureSpec, stored: Mapping[str, StoredSplit], unreadable: frozenset[bytes], options: LoadOptions
) -> CurrentLabels | Labeling:
    """Labels as they are now, or why those stored with the features are to be used.

    Args:
        spec: of the features file.
        stored: its splits.
        unreadable: digests of files that could not be decoded.
        options: uses `labels` and `cache_dir`.

    Raises:
        DataError: if the folder or manifest cannot be used, or the labels that were asked for are not there.
    """
    if options.labels is not None and str(options.labels) == STORED:
        return Labeling()
    if options.labels is None:
        path = find_source(spec)
        if path is None:
            is_gone = bool(spec.source) and any(split.files for split in stored.values())
            return Labeling(reason=f"{spec.source} is not there" if is_gone else "")
    else:
        path = Path(options.labels).expanduser()
        if not path.exists():
            raise DataError(f"labels: got {path}, which does not exist, expected a manifest or folder, or {STORED!r}")
    if path.is_file() and options.labels is not None:
        recorded = _by_record(spec, path, stored)
        return recorded if recorded is not None else _by_manifest(spec, path, stored, unreadable, options)
    try:
        found = _by_content(spec, path, stored, unreadable, options)
    except DataError as error:
        raise DataError(f"{error}; or train with the labels stored in {spec.path} (--labels {STORED})") from error
    if found is None and options.labels is not None:
        raise DataError(f"labels: {path} has none of the images of {spec.path}, expected a folder or manifest of them")
    return Labeling(reason=f"{path} has none of these images") if found is None else found


def _by_content(
    spec: FeatureSpec,
    path: Path,
    stored: Mapping[str, StoredSplit],
    unreadable: frozenset[bytes],
    options: LoadOptions,
) -> CurrentLabels | None:
    """The images in a folder or manifest with their labels; None if none of them is embedded."""
    places = _Places(spec, stored)
    places.take_files(path, unreadable, options)
    return places.result(str(path))


def _by_manifest(
    spec: FeatureSpec,
    path: Path,
    stored: Mapping[str, StoredSplit],
    unreadable: frozenset[bytes],
    options: LoadOptions,
) -> CurrentLabels:
    """The embedded images with the labels of a manifest, and for those that it does not list what their folder says.

    The folder says what it said at the embedding if it is gone. If another manifest was embedded, what is not listed is
    unlabelled, but test images keep their labels.
    """
    source = find_source(spec)
    places = _Places(spec, stored)
    if source is not None and source.is_dir():
        places.take_files(source, unreadable, options)
    if not places.images:
        places.take_stored(with_labels=Path(spec.source).suffix.lower() not in MANIFESTS)
    said = named_labels(path)
    digests = as_bytes(file_digests(str(path.parent), [file for _, file, _, _ in said], options.cache_dir))
    rows = [
        ListedRow(line, file, digest if any(digest) else None)
        for (line, file, _, _), digest in zip(said, digests, strict=True)
    ]
    folder = source.parent if source is not None and source.is_file() else source
    matches = match_rows(rows, places.known(), manifest=path, folder=folder)
    if not matches.rows:
        example = next((file for content in stored.values() for file in content.files), "(none: no image files)")
        raise DataError(f"{path}: got none of the images of {spec.path}, expected names such as {example}")
    for image, row in matches.rows.items():
        _, _, label, split = said[row]
        if label or split == NONE or image not in matches.by_old_name:
            places.say(image, label or None, split)
    for row in matches.unknown:
        if rows[row].digest is None:
            places.gone += 1
        else:
            places.missing.add(os.path.realpath(path.parent / rows[row].file))
    found = places.result(str(path), folder="" if source is None or source.is_file() else str(source))
    if found is None:
        raise DataError(f"{path}: got no image to train on, expected some with the split train")
    return found


@dataclass
class _Image:
    """An image to use: its split, where its features are, its class and name, and whether a manifest named it."""

    split: str
    origin: str
    row: int
    name: str | None
    file: str
    is_listed: bool = False


class _Places:
    """Collects the images to use and where their features are.

    Attributes:
        images: those so far.
        class_names: of classes that may have no image.
        missing: files that are not embedded.
        gone: rows of a manifest whose files are not there.
    """

    def __init__(self, spec: FeatureSpec, stored: Mapping[str, StoredSplit]) -> None:
        self._spec, self._stored = spec, stored
        self._at: dict[str, dict[bytes, list[int]]] = {}
        for split, content in stored.items():
            self._at[split] = defaultdict(list)
            for row, digest in enumerate(as_bytes(content.digests)):
                self._at[split][digest].append(row)
        self._taken: dict[tuple[str, bytes], int] = defaultdict(int)
        self.images: list[_Image] = []
        self.class_names: tuple[str, ...] = ()
        self.missing: set[str] = set()
        self.gone = 0

    def take_files(self, path: Path, unreadable: frozenset[bytes], options: LoadOptions) -> None:
        """Use the images in a folder or manifest that are embedded.

        Raises:
            DataError: if it cannot be used.
        """
        files = list_files(path, LoadOptions(test_fraction=float(self._spec.options.get("test_fraction", 0.0))))
        if files is None:
            raise DataError(f"{path}: got neither a folder nor a manifest, expected one of them")
        self.class_names = tuple(files.class_names)
        digests = as_bytes(file_digests(files.root, files.paths, options.cache_dir))
        for row, (file, digest) in enumerate(zip(files.paths, digests, strict=True)):
            split = "train" if row < files.num_train else "test"
            label = int(files.labels[row])
            name = files.class_names[label] if label >= 0 else None
            if label == _NO_CLASS:
                # Nobody misses it if it is not embedded.
                self.take(NONE, digest, None, file)
            elif not self.take(split, digest, name, file) and digest not in unreadable and any(digest):
                self.missing.add(os.path.realpath(os.path.join(files.root, file)))

    def take_stored(self, *, with_labels: bool) -> None:
        """Use all embedded images; without their labels only test images keep them."""
        self.class_names = self._spec.class_names if with_labels else ()
        for origin, content in self._stored.items():
            for row, file in enumerate(content.files):
                name = self._embedded_name(origin, row) if with_labels or origin == "test" else None
                self.images.append(_Image(origin, origin, row, name, file))

    def take(self, split: str, digest: bytes, name: str | None, file: str) -> bool:
        """Use the features of an image with this digest; False if there are none.

        Copies of one image take the rows of the copies in turn, so that each keeps its own.

        Raises:
            KeyError: if there is no such split.
        """
        # The plain view of a training image serves to test; a test image lacks the views to train on.
        for origin in {"train": ("train",), NONE: ("train",), "test": ("test", "train")}[split]:
            rows = self._at.get(origin, {}).get(digest)
            if rows:
                turn = self._taken[origin, digest]
                self._taken[origin, digest] = turn + 1
                self.images.append(_Image(split, origin, rows[turn % len(rows)], name, file))
                return True
        return False

    def known(self) -> list[KnownImage]:
        """The images so far, as rows of a manifest may name them."""
        digests = {split: as_bytes(content.digests) for split, content in self._stored.items()}
        return [
            KnownImage(image.file, self._stored[image.origin].files[image.row], digests[image.origin][image.row])
            for image in self.images
        ]

    def say(self, number: int, name: str | None, split: str) -> None:
        """Give an image the class and split of a manifest. A test image stays one, and keeps its label if none is given."""
        image = self.images[number]
        if split == NONE:
            image.name, image.split = None, NONE
        elif name is not None or image.split != "test":
            image.name, image.split = name, "test" if image.split == "test" else split
        image.is_listed = True

    def result(self, source: str, *, folder: str = "") -> CurrentLabels | None:
        """The images with numbered classes; None if there are none to train on.

        Args:
            source: where the labels come from.
            folder: the folder that `source` adds to.
        """
        used = {image.name for image in self.images if image.name is not None}
        ordered = class_order([*self.class_names, *used])
        number = {name: k for k, name in enumerate(ordered)}
        splits = {split: LabeledRows() for split in ("train", "test", NONE)}
        shift = len(self._stored["test"].labels) if "test" in self._stored else 0
        for image in self.images:
            if (image.split, image.origin) == (NONE, "test"):
                continue  # not among the training images that `LabeledRows` of no class refer to; nothing needs it
            without = _NO_CLASS if image.split == NONE else _UNLABELED
            row = image.row + (shift if (image.split, image.origin) == ("test", "train") else 0)
            splits[image.split].add(without if image.name is None else number[image.name], image.file, row)
        if not splits["train"].rows:
            return None
        labeled = [image for image in self.images if image.split == "train" and image.name is not None]
        total = sum(len(content.labels) for content in self._stored.values())
        labeling = Labeling(
            source=source,
            changed=sum(self._is_changed(image) for image in self.images),
            missing=len(self.missing),
            dropped=total - len({(image.origin, image.row) for image in self.images}),
            command=embed_command(self._spec),
            folder=folder,
            listed=sum(image.is_listed for image in labeled),
            from_folder=sum(not image.is_listed for image in labeled),
            gone=self.gone,
        )
        return CurrentLabels(ordered, splits, labeling)

    def _embedded_name(self, origin: str, row: int) -> str | None:
        label = int(self._stored[origin].labels[row])
        return self._spec.class_names[label] if label >= 0 else None

    def _is_changed(self, image: _Image) -> bool:
        return image.split != image.origin or image.name != self._embedded_name(image.origin, image.row)


def embed_command(spec: FeatureSpec) -> str:
    """The command that brings a features file up to date."""
    words = ["momatch", "embed", spec.source, "--out", str(spec.path)]
    for name, value in spec.options.items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


# --- The labels that a run was trained with ---


def label_record(
    splits: Mapping[str, tuple[Sequence[int], Sequence[str], Digests]], class_names: Sequence[str]
) -> bytes:
    """A manifest of the images and labels in use, with the digests of the images, to find the same ones again.

    A class without any image is a line of its own, with the split ``class``.

    Args:
        splits: "train", "test" and, if there are images of no class, "none" -> labels, file names (or none), and digests.
        class_names: label k is ``class_names[k]``.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    columns = _WITH_STATUS if NONE in splits else _COLUMNS
    writer.writerow(columns)
    used = {label for labels, _, _ in splits.values() for label in labels}
    unused = [("", name, _CLASS, "", "") for k, name in enumerate(class_names) if k not in used]
    writer.writerows(row[: len(columns)] for row in unused)
    for split, (labels, files, digests) in splits.items():
        names = files or [""] * len(labels)
        said = ("train", NONE) if split == NONE else (split, "")
        for label, file, digest in zip(labels, names, digests, strict=True):
            row = (file, class_names[label] if label >= 0 else "", said[0], digest.tobytes().hex(), said[1])
            writer.writerow(row[: len(columns)])
    return text.getvalue().encode("utf-8", "surrogateescape")


def _by_record(spec: FeatureSpec, path: Path, stored: Mapping[str, StoredSplit]) -> CurrentLabels | None:
    """The images and labels of a `label_record`; None if it is another manifest.

    Raises:
        DataError: if it is damaged, or an image of it is not embedded.
    """
    if path.suffix.lower() != ".csv":
        return None
    reader = csv.reader(io.StringIO(path.read_bytes().decode("utf-8", "surrogateescape"), newline=""))
    if tuple(next(reader, ())) not in (_COLUMNS, _WITH_STATUS):
        return None
    places, missing = _Places(spec, stored), 0
    try:
        for file, label, split, digest, *status in reader:
            if split == _CLASS:
                places.class_names += (label,)
            else:
                into = NONE if status == [NONE] else split
                missing += not places.take(into, bytes.fromhex(digest), label or None, file)
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: line {reader.line_num} cannot be read; the file is damaged") from error
    found = places.result(str(path))
    if missing or found is None:
        raise DataError(
            f"{path}: {missing:,} of its images are not in {spec.path}, expected all; they were embedded for another split, "
            "or are gone since"
        )
    return found
