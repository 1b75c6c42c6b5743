"""From a folder of images to a session: embed once, lock the manifest, open."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from momatch.data.dataset import Dataset
from momatch.data.feature_spec import read_feature_spec
from momatch.data.image_files import case_warnings
from momatch.data.listing import list_files
from momatch.data.load import load_dataset
from momatch.data.report import DataError, DataWarning, LoadOptions
from momatch.embedding import EmbedOptions, embed
from momatch.labeling.answers import can_hold, check_class_name, read_rows
from momatch.labeling.session import Paths, Session

#: Settings that features depend on.
_OF_EMBEDDING = ("backbone", "weights", "untrained", "image_size", "fast", "seed")


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """Settings of a labelling session.

    Attributes:
        images: folder of images.
        labels: the manifest.
        features: the features file; made, or brought up to date.
        classes: names of classes that should be there.
        backbone: as of `EmbedOptions`, as are the rest; None for that of the features file, or the default.
        weights: file with the backbone's pretrained weights.
        untrained: random weights where the backbone would have pretrained ones.
        image_size: side of the images in pixels.
        fast: about half the size that the backbone was trained at.
        seed: of views and suggestions.
        device: to embed on.
        progress: show progress.
    """

    images: Path
    labels: Path
    features: Path
    classes: tuple[str, ...] = ()
    backbone: str | None = None
    weights: str | None = None
    untrained: bool = False
    image_size: int | None = None
    fast: bool = False
    seed: int = 0
    device: str = "auto"
    progress: bool = True


@contextmanager
def open_session(options: LabelOptions) -> Iterator[Session]:
    """Embed the images that were not embedded yet, and open a session that no other process has.

    Raises:
        ValueError: if the folder, the features or the manifest cannot be used, or another process labels with this manifest.
        OSError: if a file cannot be written.

    Warns:
        DataWarning: if images are left out, because a manifest cannot hold their names or they cannot be decoded, or names of
            classes differ only in case.
    """
    from filelock import FileLock, Timeout

    if not options.images.is_dir():
        raise ValueError(f"{options.images}: there is no such folder, expected a folder of images")
    if options.labels.suffix.lower() != ".csv" or not options.labels.absolute().parent.is_dir():
        raise ValueError(f"labels: got {options.labels}, expected a .csv file in an existing directory")
    paths = Paths(options.images, options.labels, options.features)
    _check_names(options, paths)
    embedding = _embed_options(options)
    # Last, because its file stays behind.
    lock = FileLock(options.labels.with_name(f".{options.labels.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(f"{options.labels}: another momatch label is open on it; close that one first") from error
    try:
        embed(embedding)
        dataset = _nameable(load_dataset(options.features, progress=options.progress), paths)
        session = Session(dataset, paths, options.classes, seed=options.seed)
        try:
            yield session
        finally:
            session.close()
    finally:
        lock.release()


def _embed_options(options: LabelOptions) -> EmbedOptions:
    """The settings to embed with: those of the features file if there is one, which gets the images that are new since.

    Raises:
        ValueError: if they cannot be used.
    """
    spec = read_feature_spec(options.features)
    wanted = {name: getattr(options, name) for name in _OF_EMBEDDING}
    given = {name: value for name, value in wanted.items() if value != getattr(LabelOptions, name)}
    found = EmbedOptions(
        dataset=str(options.images),
        out=options.features,
        device=options.device,
        progress=options.progress,
        **{**({} if spec is None else spec.options), **given},
    )
    if spec is None:
        found.check_weights()
    return found


def _check_names(options: LabelOptions, paths: Paths) -> None:
    """Find names that a manifest cannot hold before the images are embedded, which takes long.

    Raises:
        ValueError: if a class cannot be named so, the manifest cannot be read, or no image is left.

    Warns:
        DataWarning: if images are left out, or names of classes differ only in case.
    """
    try:
        files = list_files(options.images, LoadOptions())
    except DataError as error:
        # Options of the loader are none of this command.
        raise error.renamed({}) from error
    assert files is not None, "it is a folder"
    names = {*options.classes, *files.class_names, *filter(None, paths.kept_classes())}
    for name in names:
        check_class_name(name, ())
    if options.labels.exists():
        _, rows = read_rows(options.labels)
        names |= {row["label"] for row in rows.values()} - {""}
    # Those of the class folders are said when the features are loaded.
    said_later = case_warnings(str(options.images), files.class_names)
    for message in case_warnings(str(options.images), names):
        if message not in said_later:
            warnings.warn(message, DataWarning, stacklevel=2)
    unnameable = [file for file in files.paths if not can_hold(paths.in_manifest(file))]
    if not unnameable:
        return
    said = (
        f"{options.images}: got {len(unnameable)} of {len(files.paths)} image files with names that a manifest cannot hold, "
        f"such as {unnameable[0]!r}, expected printable text; rename them"
    )
    if len(unnameable) == len(files.paths):
        raise ValueError(said)
    warnings.warn(f"{said} to label them: they are left out", DataWarning, stacklevel=2)


def _nameable(dataset: Dataset, paths: Paths) -> Dataset:
    """The images whose names a manifest can hold."""
    kept = [row for row, file in enumerate(dataset.train.files) if can_hold(paths.in_manifest(file))]
    if len(kept) == len(dataset.train):
        return dataset
    return replace(dataset, train=dataset.train.select(torch.tensor(kept)))
