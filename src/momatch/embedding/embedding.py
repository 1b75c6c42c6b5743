"""`embed`: from a dataset of images to a features file, with settings `EmbedOptions`."""

import hashlib
import io
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from momatch._version import __version__
from momatch.config import TrainConfig
from momatch.console.progress import CountProgress
from momatch.console.signals import Interrupted, StopSignals
from momatch.data.cache import Journal
from momatch.data.content import as_bytes, draw_keys
from momatch.data.dataset import UNLABELED
from momatch.data.feature_spec import MARKER, VERSION, FeatureSpec
from momatch.data.features import FEATURES_DTYPE, STAGES_DTYPE, UNREADABLE, WEIGHTS, GatheredRows, write_archive
from momatch.data.load import BY_NAME
from momatch.data.report import MixedSizesError
from momatch.data.rows import PixelRows, Rows
from momatch.data.statistics import normalization
from momatch.embedding.existing import Existing
from momatch.embedding.expected import fast_size, say_expected_time
from momatch.embedding.images import Listing, list_images
from momatch.embedding.network import Network, build_network
from momatch.embedding.new_images import NewImages, open_new
from momatch.embedding.part import KINDS, Part, RowWriter
from momatch.models.backbones import fallback_size, input_size_of, without_weights
from momatch.models.outputs import STANDARDIZED_OVER
from momatch.models.spec import ModelSpec
from momatch.numerics.checks import check_positive_int
from momatch.storage.durable import json_bytes, replace_files
from momatch.training.data import warn_of_mixed_sizes
from momatch.training.inputs import flips, whole_model_spec
from momatch.training.setup import choose_device

#: Longest side of the pictures kept for reports.
MOST_PIXELS = 96
#: Settings that are not recorded as options of a features file: they say where and how, not what.
_APART = frozenset({"dataset", "out", "data_dir", "batch_size", "device", "overwrite", "progress"})


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Settings of `embed`. Fields shared with `TrainConfig` mean the same.

    Attributes:
        dataset: a known name, an image folder, a .csv/.parquet manifest or an .npz of images.
        out: features file to write.
        backbone: as in `TrainConfig`.
        backbone_variant: variant of the Wide ResNets.
        weights: file with the backbone's pretrained weights.
        untrained: use random weights where the backbone would have pretrained ones.
        weak_views: weak views per training image, in addition to the plain one.
        strong_views: strong views per training image.
        flip: mirror images at random; "auto" skips datasets where mirroring changes the class.
        strong_operations: random operations per strong view.
        cutout: largest side of the square blanked in strong views, as a fraction of the image side.
        image_size: resize images to this side in pixels before making views. None for the size that the backbone was trained
            at; for one without such a size, as in `TrainConfig`.
        fast: use about half the size that the backbone was trained at: a third of the time, for a few points of accuracy.
        test_fraction: hold out this fraction of each class for testing if the dataset has no test images.
        limit: most training images to use; None for all.
        limit_test: most test images to use; None for all.
        data_dir: directory of known datasets.
        batch_size: images per batch.
        seed: seed for views, for the images that a limit selects, and for random backbone weights.
        device: as in `TrainConfig`.
        overwrite: embed every image again, and replace an existing file whatever it holds.
        progress: show progress on standard error.

    Raises:
        ValueError: if an option is out of range.
    """

    dataset: str
    out: Path
    backbone: str = "efficientnet-lite0"
    backbone_variant: str = "default"
    weights: str | None = None
    untrained: bool = False
    weak_views: int = 1
    strong_views: int = 2
    flip: str = "auto"
    strong_operations: int = 3
    cutout: float = 0.5
    image_size: int | None = None
    fast: bool = False
    test_fraction: float = 0.0
    limit: int | None = None
    limit_test: int | None = None
    data_dir: str | None = None
    batch_size: int = 64
    seed: int = 0
    device: str = "auto"
    overwrite: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.weak_views < 0:
            raise ValueError(f"weak_views: got {self.weak_views}, expected 0 or more: the plain view counts as weak")
        for name in ("strong_views", "batch_size"):
            check_positive_int(name, getattr(self, name))
        for name in ("limit", "limit_test"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        if self.fast and self.image_size is not None:
            raise ValueError(f"fast and image_size: got both (image_size {self.image_size}), expected one of them")
        self.as_config()
        parent = self.out.absolute().parent
        if self.out.suffix.lower() != ".npz" or self.out.is_dir() or not parent.is_dir():
            raise ValueError(f"out: got {self.out}, expected a .npz file in an existing directory")

    def given(self) -> dict[str, Any]:
        """Settings that rows depend on and that are not at their defaults."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if name not in _APART and value != default}

    def as_config(self) -> TrainConfig:
        """The same settings as a validated config, with the defaults that depend on the dataset filled in."""
        shared = (
            "dataset",
            "backbone",
            "backbone_variant",
            "weights",
            "untrained",
            "flip",
            "strong_operations",
            "cutout",
        )
        others = ("image_size", "test_fraction", "data_dir", "seed", "device")
        return TrainConfig.from_dict({name: getattr(self, name) for name in (*shared, *others)}).resolved()

    def check_weights(self) -> None:
        """Check that a new features file would not hold the features of random weights by mistake.

        Raises:
            ValueError: if a backbone has no pretrained weights, and random ones were not asked for.
        """
        without = without_weights(self.backbone, self.weights)
        if without and not self.untrained:
            raise ValueError(
                f"backbone {without[0]!r}: got a network without pretrained weights, expected one that has them "
                "(efficientnet-lite0, timm:NAME, ...), or a file of them (--weights); for random weights set --untrained"
            )

    def side(self) -> int | None:
        """The side that images are brought to; None if they keep their own.

        Raises:
            ValueError: if `fast` is asked of a backbone without a size of its own, or the backbone is unknown.
            ImportError: if it needs packages that are not installed.
        """
        own = None if self.image_size is not None else input_size_of(self.backbone)
        if own is None and self.fast:
            raise ValueError(
                f"fast: got it with backbone {self.backbone!r}, which has no size of its own; set image_size"
            )
        if own is None:
            return self.as_config().image_size
        return fast_size(own) if self.fast else own


@dataclass(frozen=True)
class Embedded:
    """Result of `embed`.

    Attributes:
        spec: how the features were made.
        train: training images in the file.
        train_of: training images in the dataset.
        unlabeled: training images in the file without a label.
        without_labels: classes without a labelled training image.
        test: test images in the file.
        kept: images whose features were in the file already.
        dropped: images that were in the file and are gone.
        resumed: images already passed through the backbone before an interruption, counting each view.
        passed: images passed through the backbone this time, counting each view.
        seconds: time that took.
        size: file size in bytes.
    """

    spec: FeatureSpec
    train: int
    train_of: int
    unlabeled: int
    without_labels: tuple[str, ...]
    test: int
    kept: int
    dropped: int
    resumed: int
    passed: int
    seconds: float
    size: int


def embed(options: EmbedOptions) -> Embedded:
    """Run images through a backbone in several views and save the features.

    Resumes an interrupted embedding. A file that exists is brought up to date: images that are in it keep their features, new
    ones are added, those that are gone are dropped. The result is that of embedding everything from the start, bit for bit on
    the same machine. Two things stay as they were: the weights of a backbone, and the statistics of the pixels that normalise
    the images of a backbone without its own.

    Raises:
        ValueError: if the data or the backbone cannot be used, `out` holds something else, or an embedding with other settings.
        ImportError: if the backbone needs packages that are not installed.
        OSError: on a write error such as a full disk; finished rows are kept.
        Interrupted: after Ctrl-C or SIGTERM; finished rows are kept.

    Warns:
        UserWarning: if an embedding keeps its original weights although the backbone's have changed.
        DataWarning: if image files cannot be decoded.
    """
    device = choose_device(options.device)
    old = None if options.overwrite or not options.out.exists() else Existing.open(options.out, options)
    if old is None:
        options.check_weights()
    listing, new, unreadable = _open_images(options, old)
    if "train" not in listing.splits:
        raise ValueError(f"{options.dataset}: got no training images, expected at least one")
    spec = _describe(options, listing, new) if old is None else _updated(options, listing, old)
    if old is not None and not new and old.is_of(listing, spec, unreadable):
        return _embedded(options, listing, spec, old, seconds=0.0, resumed=0, passed=0)
    part = Part(options.out)
    with part.opened():
        plan = _plan(options, spec, new)
        if not part.is_begun(plan):
            part.clear()
            if old is not None:
                replace_files({part.path(WEIGHTS): old.weights()})
        network = None
        if new:
            network = build_network(
                _model(spec),
                spec,
                part.path(WEIGHTS),
                device,
                sample=_shaped_sample(new),
                backbone_options={"weights": options.weights, "untrained": options.untrained},
            )
            found = (network.num_features, network.stage_names, network.num_statistics)
            if old is not None and found != (spec.num_features, spec.stage_names, spec.num_statistics):
                raise ValueError(
                    f"backbone {spec.backbone!r}: got {found[0]} features and the stages {found[1]}, expected "
                    f"{spec.num_features} and {spec.stage_names} as in {options.out}; embed everything again (--overwrite)"
                )
            spec = replace(spec, num_features=found[0], stage_names=found[1], num_statistics=found[2])
        picture = _picture_shape(new, old)
        arrays = _arrays(spec, {name: len(one) for name, one in new.items()}, picture)
        final = _arrays(spec, {name: len(one) for name, one in listing.splits.items()}, picture)
        part.begin(plan, arrays, final)
        done = part.done()
        if options.progress and network is not None:
            rows = {name: len(one) - done.get(name, 0) for name, one in new.items()}
            is_chosen = options.fast or options.image_size is not None
            say_expected_time(network, _shaped_sample(new), rows, fast=is_chosen)
        clock = time.perf_counter()
        passed = 0 if network is None else _pass_all(part, network, new, spec, picture, done=done, options=options)
        seconds = time.perf_counter() - clock
        write_archive(part.path("features.npz"), _members(part, spec, listing, new, old=old, unreadable=unreadable))
        part.finish(part.path("features.npz"))
    resumed = sum(done.get(split, 0) * _views(spec, split) for split in new)
    return _embedded(options, listing, spec, old, seconds=seconds, resumed=resumed, passed=passed)


def _open_images(options: EmbedOptions, old: Existing | None) -> tuple[Listing, dict[str, NewImages], frozenset[bytes]]:
    """List and open the images; see `open_new`. Images of mixed sizes are brought to one that suits the backbone.

    Raises:
        ValueError: if the data cannot be used, or are features instead of images.
    """

    def opened(side: int | None) -> tuple[Listing, dict[str, NewImages], frozenset[bytes]]:
        listing = list_images(
            options.dataset,
            data_dir=options.data_dir,
            image_size=side,
            test_fraction=options.test_fraction,
            limits={"train": options.limit, "test": options.limit_test},
            seed=options.seed,
            progress=options.progress,
        )
        return open_new(listing, old, image_size=side)

    side, fallback = options.side(), fallback_size(options.backbone)
    try:
        return opened(side)
    except MixedSizesError:
        if fallback is None:
            raise
        warn_of_mixed_sizes(options.dataset, fallback)
        return opened(fallback)


def _shaped_sample(new: Mapping[str, NewImages]) -> Rows:
    """Some new images of the training split, or of the only one that has any, as the network takes them.

    Not all: images of arrays would be converted into as much new memory.
    """
    one = new.get("train", next(iter(new.values())))
    return one.images.even_share(STANDARDIZED_OVER).for_model(one.shape)


def _embedded(
    options: EmbedOptions,
    listing: Listing,
    spec: FeatureSpec,
    old: Existing | None,
    *,
    seconds: float,
    resumed: int,
    passed: int,
) -> Embedded:
    train = listing.splits["train"]
    present = set(train.labels.tolist())
    kept, dropped = (0, 0) if old is None else old.overlap(listing)
    return Embedded(
        spec=spec,
        train=len(train),
        train_of=listing.total,
        unlabeled=int((train.labels == UNLABELED).sum()),
        without_labels=tuple(name for k, name in enumerate(listing.class_names) if k not in present),
        test=len(listing.splits["test"]) if "test" in listing.splits else 0,
        kept=kept,
        dropped=dropped,
        resumed=resumed,
        passed=passed,
        seconds=seconds,
        size=options.out.stat().st_size,
    )


def _describe(options: EmbedOptions, listing: Listing, new: Mapping[str, NewImages]) -> FeatureSpec:
    """The file's spec, whose features and stages are not known yet."""
    images = new["train"].images
    channels, height, width = new["train"].shape
    return FeatureSpec(
        path=options.out,
        dataset=listing.name,
        class_names=listing.class_names,
        backbone=options.backbone,
        backbone_variant=options.backbone_variant,
        flip="yes" if flips(options.flip, listing.name) else "no",
        strong_operations=options.strong_operations,
        cutout=options.cutout,
        in_channels=channels,
        image_size=(height, width),
        normalization=normalization(listing.name, images),
        num_features=0,
        stage_names=(),
        num_statistics=0,
        weak_views=options.weak_views,
        strong_views=options.strong_views,
        seed=options.seed,
        created_by=f"momatch {__version__}",
        source=options.dataset,
        source_near=_near(options),
        options=options.given(),
    )


def _updated(options: EmbedOptions, listing: Listing, old: Existing) -> FeatureSpec:
    """The spec of a file that is brought up to date."""
    return replace(
        old.spec,
        path=options.out,
        dataset=listing.name,
        class_names=listing.class_names,
        created_by=f"momatch {__version__}",
        source=options.dataset,
        source_near=_near(options),
        options=options.given(),
    )


def _near(options: EmbedOptions) -> str:
    """The dataset's path as seen from the directory of the features file; empty for a known dataset."""
    path = Path(options.dataset).expanduser()
    if options.dataset in BY_NAME or not path.exists():
        return ""
    return os.path.relpath(path.resolve(), options.out.absolute().parent.resolve())


def _model(spec: FeatureSpec) -> ModelSpec:
    """What the backbone is built from. Only backbone and preprocessing are used; the head does not matter."""
    return whole_model_spec(TrainConfig(head="linear", embedding_dim=0), spec, ("one", "other"))


def _plan(options: EmbedOptions, spec: FeatureSpec, new: Mapping[str, NewImages]) -> dict[str, object]:
    """Everything the rows depend on, except batch size and device, which change only the last digits. Not the labels."""
    digest = hashlib.sha256()
    for one in new.values():
        digest.update(one.digests.tobytes())
    # Features and stages of the backbone follow from the rest; names and labels may change meanwhile.
    apart = ("path", "num_features", "stage_names", "num_statistics", "class_names", "dataset", "source", "source_near")
    values = {key: value for key, value in asdict(spec).items() if key not in (*apart, "options", "created_by")}
    limits = {"limit": options.limit, "limit_test": options.limit_test, "test_fraction": options.test_fraction}
    return {
        "format": VERSION,
        **limits,
        **values,
        "images": {name: len(one) for name, one in new.items()},
        "digest": digest.hexdigest(),
    }


def _arrays(
    spec: FeatureSpec, counts: Mapping[str, int], picture: tuple[int, ...]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """File name -> dtype and shape, for so many images of each split and pictures of a shape."""
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, n in counts.items():
        arrays[f"{name}_features.npy"] = (FEATURES_DTYPE.str, (n, _views(spec, name), spec.num_features))
        arrays[f"{name}_stages.npy"] = (STAGES_DTYPE.str, (n, spec.num_statistics))
        arrays[f"{name}_pictures.npy"] = ("|u1", (n, *picture))
    return arrays


def _views(spec: FeatureSpec, split: str) -> int:
    return spec.num_views if split == "train" else 1


def _picture_shape(new: Mapping[str, NewImages], old: Existing | None) -> tuple[int, ...]:
    """Shape of the pictures: no larger than the images of the dataset."""
    if old is not None:
        return old.picture_shape
    channels, height, width = new["train"].images.shape
    scale = min(1.0, MOST_PIXELS / max(height, width))
    return channels, *(max(1, round(scale * side)) for side in (height, width))


def _pass_all(
    part: Part,
    network: Network,
    new: Mapping[str, NewImages],
    spec: FeatureSpec,
    picture: tuple[int, ...],
    *,
    done: dict[str, int],
    options: EmbedOptions,
) -> int:
    """Pass the remaining images through the network; returns how many, counting each view."""
    journal = Journal(part.folder, [f"{name}_{kind}.npy" for name in new for kind in KINDS])
    total = sum(len(one) * _views(spec, name) for name, one in new.items())
    before = reached = sum(done.get(name, 0) * _views(spec, name) for name in new)
    bar = CountProgress(total, label="embed", done=before, enabled=options.progress)
    with StopSignals() as signals, bar:
        try:
            for name, one in new.items():
                writer = RowWriter(part, name, journal)
                for first in range(done.get(name, 0), len(one), options.batch_size):
                    images = one.batch(first, options.batch_size)
                    keys = draw_keys(one.digests[first : first + len(images)]) if name == "train" else None
                    shaped = one.shaped(images)
                    features, stages = network.plain(shaped) if keys is None else network.views(shaped, keys)
                    writer.write(first, features=features, stages=stages, pictures=_pictures(images, picture))
                    bar.add(len(images) * _views(spec, name))
                    reached += len(images) * _views(spec, name)
                    if signals.received is not None:
                        raise Interrupted(
                            f"stopped with {reached:,} of {total:,} images done and saved; run the same command to resume",
                            signals.received,
                        )
        finally:
            journal.sync()
    return total - before


def _pictures(images: UInt8[Tensor, "n c h w"], shape: tuple[int, ...]) -> np.ndarray:
    return PixelRows([images]).converted(shape).gather(torch.arange(len(images))).numpy()


def _members(
    part: Part,
    spec: FeatureSpec,
    listing: Listing,
    new: Mapping[str, NewImages],
    *,
    old: Existing | None,
    unreadable: frozenset[bytes],
) -> dict[str, bytes | Path | GatheredRows]:
    """The members of the features file: kept rows of the old file and new ones, in the order of the listing."""
    members: dict[str, bytes | Path | GatheredRows] = {MARKER: spec.to_json()}
    for name, split in listing.splits.items():
        kept = {} if old is None else old.arrays(name)
        place = {} if old is None else old.places(name)
        start = sum(len(array) for array in kept["features"]) if kept else 0
        if name in new:
            place = place | {digest: start + row for row, digest in enumerate(as_bytes(new[name].digests))}
            for kind in KINDS:
                array = np.load(part.path(f"{name}_{kind}.npy"), mmap_mode="r")
                kept[kind] = [*kept.get(kind, []), array]
        rows = np.array([place[digest] for digest in as_bytes(split.digests)], np.int64)
        members[f"{name}_labels.npy"] = _npy(split.labels.numpy())
        members |= {f"{name}_{kind}.npy": GatheredRows(kept[kind], rows) for kind in KINDS}
        members[f"{name}_digests.npy"] = _npy(split.digests)
        if split.files:
            members[f"{name}_files.json"] = json_bytes(split.files, indent=None)
    if unreadable:
        members[UNREADABLE] = json_bytes(sorted(digest.hex() for digest in unreadable), indent=None)
    return members | {WEIGHTS: part.path(WEIGHTS)}


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0))
    return buffer.getvalue()
