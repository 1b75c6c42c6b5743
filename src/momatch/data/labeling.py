"""Labels of embedded images, read where they are kept: features are made once, labels change.

Images are recognised by content (`momatch.data.content`), so a file that was moved from one folder to another keeps its
features. A manifest that is named explicitly is matched by file name, because its images need not be there.
"""

import csv
import io
import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from momatch.data.content import Digests, as_bytes, file_digests
from momatch.data.feature_spec import FeatureSpec
from momatch.data.image_files import class_order
from momatch.data.label_source import Labeling
from momatch.data.listing import list_files
from momatch.data.report import DataError, LoadOptions
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
        return recorded if recorded is not None else _by_name(spec, path, stored)
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
    files = list_files(path, LoadOptions(test_fraction=float(spec.options.get("test_fraction", 0.0))))
    if files is None:
        raise DataError(f"{path}: got neither a folder nor a manifest, expected one of them")
    places = _Places(spec, stored)
    digests = as_bytes(file_digests(files.root, files.paths, options.cache_dir))
    missing = 0
    for row, digest in enumerate(digests):
        split = "train" if row < files.num_train else "test"
        label = int(files.labels[row])
        name = files.class_names[label] if label >= 0 else None
        if label == _NO_CLASS:
            # Nobody misses it if it is not embedded.
            places.take(NONE, digest, None, files.paths[row])
        elif not places.take(split, digest, name, files.paths[row]):
            missing += digest not in unreadable and any(digest)
    return places.result(files.class_names, files.source, missing)


def _by_name(spec: FeatureSpec, path: Path, stored: Mapping[str, StoredSplit]) -> CurrentLabels:
    """The embedded images, labelled by the file names in a manifest; test images that are not listed keep their labels."""
    listed = named_labels(path)
    places = _Places(spec, stored)
    chosen: dict[tuple[str, int], tuple[str, str]] = {}
    names = _Names(stored)
    missing = 0
    for line, file, label, split in listed:
        place = names.find(file, f"{path}: line {line}")
        if place is None:
            missing += 1
        elif place[0] == "train" or label or split == NONE:
            # An image that was embedded for testing lacks the views to train on, whatever the manifest says.
            chosen[place] = (label, "test" if place[0] == "test" and split != NONE else split)
    if not chosen:
        raise DataError(f"{path}: got none of the images of {spec.path}, expected names such as {names.example}")
    for origin, content in stored.items():
        for row, file in enumerate(content.files):
            old = int(content.labels[row])
            kept = spec.class_names[old] if origin == "test" and old >= 0 else ""
            label, split = chosen.get((origin, row), (kept, origin))
            places.put(split, origin, row, label or None, file)
    found = places.result((), str(path), missing)
    if found is None:
        raise DataError(f"{path}: got no image to train on, expected some with the split train")
    return found


class _Names:
    """Finds embedded images by file name: the one with the most path components in common, from the end."""

    def __init__(self, stored: Mapping[str, StoredSplit]) -> None:
        self._by_name: dict[str, list[tuple[tuple[str, int], list[str]]]] = defaultdict(list)
        for split, content in stored.items():
            for row, file in enumerate(content.files):
                parts = _parts(file)
                self._by_name[parts[0]].append(((split, row), parts))
        self.example = next((file for content in stored.values() for file in content.files), "(none: no image files)")

    def find(self, file: str, where: str) -> tuple[str, int] | None:
        """Split and row of an image; None if it is not embedded.

        Raises:
            DataError: if several images fit equally well.
        """
        parts = _parts(file)
        fits = [(_fit(parts, other), place) for place, other in self._by_name.get(parts[0], [])]
        if not fits:
            return None
        best = max(fit for fit, _ in fits)
        places = [place for fit, place in fits if fit == best]
        if len(places) > 1:
            raise DataError(f"{where}: got {file}, which fits {len(places)} embedded images, expected more of its path")
        return places[0]


def _parts(file: str) -> list[str]:
    return [part for part in reversed(os.path.normpath(file).replace("\\", "/").split("/")) if part]


def _fit(wanted: Sequence[str], stored: Sequence[str]) -> tuple[int, bool]:
    """How many components two paths have in common from the end, and whether these are all of the stored path."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, stored, strict=False)))
    return common, common == len(stored)


class _Places:
    """Collects the images to use and where their features are."""

    def __init__(self, spec: FeatureSpec, stored: Mapping[str, StoredSplit]) -> None:
        self._spec, self._stored = spec, stored
        self._at: dict[str, dict[bytes, list[int]]] = {}
        for split, content in stored.items():
            self._at[split] = defaultdict(list)
            for row, digest in enumerate(as_bytes(content.digests)):
                self._at[split][digest].append(row)
        self._taken: dict[tuple[str, bytes], int] = defaultdict(int)
        self._names: dict[str, list[str | None]] = {"train": [], "test": [], NONE: []}
        self._splits = {name: LabeledRows() for name in self._names}
        self._used: set[tuple[str, int]] = set()
        self._changed = 0

    def take(self, split: str, digest: bytes, name: str | None, file: str) -> bool:
        """Use the features of an image with this digest; False if there are none.

        Copies of one image take the rows of the copies in turn, so that each keeps its own.
        """
        # The plain view of a training image serves to test; a test image lacks the views to train on.
        for origin in ("test", "train") if split == "test" else ("train",):
            rows = self._at.get(origin, {}).get(digest)
            if rows:
                turn = self._taken[origin, digest]
                self._taken[origin, digest] = turn + 1
                self.put(split, origin, rows[turn % len(rows)], name, file)
                return True
        return False

    def put(self, split: str, origin: str, row: int, name: str | None, file: str) -> None:
        """Use a row of the stored split `origin` in `split`, with the class `name`."""
        self._used.add((origin, row))
        old = int(self._stored[origin].labels[row])
        self._changed += split != origin or name != (self._spec.class_names[old] if old >= 0 else None)
        if (split, origin) == (NONE, "test"):
            return  # it is not among the training images that `LabeledRows` of no class refer to; nothing needs it
        shift = (
            len(self._stored["test"].labels) if (split, origin) == ("test", "train") and "test" in self._stored else 0
        )
        self._splits[split].add(_UNLABELED, file, row + shift)
        self._names[split].append(name)

    def result(self, class_names: Sequence[str], source: str, missing: int) -> CurrentLabels | None:
        """The images with numbered classes; None if there are none to train on."""
        if not self._splits["train"].rows:
            return None
        used = {name for names in self._names.values() for name in names if name is not None}
        ordered = class_order([*class_names, *used])
        number = {name: k for k, name in enumerate(ordered)}
        for split, names in self._names.items():
            without = _NO_CLASS if split == NONE else _UNLABELED
            self._splits[split].labels = [without if name is None else number[name] for name in names]
        total = sum(len(content.labels) for content in self._stored.values())
        labeling = Labeling(
            source=source,
            changed=self._changed,
            missing=missing,
            dropped=total - len(self._used),
            command=embed_command(self._spec),
        )
        return CurrentLabels(ordered, self._splits, labeling)


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
    places, classes, missing = _Places(spec, stored), [], 0
    try:
        for file, label, split, digest, *status in reader:
            if split == _CLASS:
                classes.append(label)
            else:
                into = NONE if status == [NONE] else split
                missing += not places.take(into, bytes.fromhex(digest), label or None, file)
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: line {reader.line_num} cannot be read; the file is damaged") from error
    found = places.result(classes, str(path), missing)
    if missing or found is None:
        raise DataError(
            f"{path}: {missing:,} of its images are not in {spec.path}, expected all; they were embedded for another split, "
            "or are gone since"
        )
    return found
