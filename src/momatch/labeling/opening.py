"""From a folder of images to a session: embed once, lock the manifest, open."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from momatch.data.feature_spec import read_feature_spec
from momatch.data.load import load_dataset
from momatch.embedding import EmbedOptions, embed
from momatch.labeling.session import Paths, Session


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """Settings of a labelling session.

    Attributes:
        images: folder of images.
        labels: the manifest.
        features: the features file; made, or brought up to date.
        classes: names of classes that should be there.
        backbone: as of `EmbedOptions`, as are the rest.
        image_size: side of the images in pixels.
        seed: of views and suggestions.
        device: to embed on.
        progress: show progress.
    """

    images: Path
    labels: Path
    features: Path
    classes: tuple[str, ...] = ()
    backbone: str = "efficientnet-lite0"
    image_size: int | None = None
    seed: int = 0
    device: str = "auto"
    progress: bool = True


@contextmanager
def open_session(options: LabelOptions) -> Iterator[Session]:
    """Embed the images that were not embedded yet, and open a session that no other process has.

    Raises:
        ValueError: if the folder, the features or the manifest cannot be used, or another process labels with this manifest.
        OSError: if a file cannot be written.
    """
    from filelock import FileLock, Timeout

    if not options.images.is_dir():
        raise ValueError(f"{options.images}: there is no such folder, expected a folder of images")
    if options.labels.suffix.lower() != ".csv" or not options.labels.absolute().parent.is_dir():
        raise ValueError(f"labels: got {options.labels}, expected a .csv file in an existing directory")
    lock = FileLock(options.labels.with_name(f".{options.labels.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(f"{options.labels}: another momatch label is open on it; close that one first") from error
    try:
        session = _open(options)
        try:
            yield session
        finally:
            session.close()
    finally:
        lock.release()


def _open(options: LabelOptions) -> Session:
    spec = read_feature_spec(options.features)
    wanted = {"backbone": options.backbone, "image_size": options.image_size, "seed": options.seed}
    given = {name: value for name, value in wanted.items() if value != getattr(LabelOptions, name)}
    # A file that exists gets the images that are new since, with the settings it was made with.
    settings = {**({} if spec is None else spec.options), **given}
    embed(
        EmbedOptions(
            dataset=str(options.images),
            out=options.features,
            device=options.device,
            progress=options.progress,
            **settings,
        )
    )
    dataset = load_dataset(options.features, progress=options.progress)
    paths = Paths(options.images, options.labels, options.features)
    return Session(dataset, paths, options.classes, seed=options.seed)
