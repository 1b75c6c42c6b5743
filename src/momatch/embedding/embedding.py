"""`embed`: from a dataset of images to a features file, with settings `EmbedOptions`."""

import hashlib
import io
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from momatch._version import __version__
from momatch.config import TrainConfig
from momatch.console.progress import CountProgress
from momatch.console.signals import Interrupted, StopSignals
from momatch.data.cache import Journal
from momatch.data.dataset import UNLABELED, Dataset, Split, update_digest
from momatch.data.feature_spec import MARKER, VERSION, FeatureSpec
from momatch.data.features import FEATURES_DTYPE, STAGES_DTYPE, WEIGHTS, write_archive
from momatch.data.rows import PixelRows
from momatch.data.sampling import draw_subset
from momatch.data.statistics import normalization
from momatch.embedding.expected import fast_size, say_expected_time
from momatch.embedding.network import Network, build_network
from momatch.embedding.part import KINDS, Part, RowWriter
from momatch.models.backbones import fallback_size, input_size_of
from momatch.models.spec import ModelSpec
from momatch.numerics.checks import check_positive_int
from momatch.storage.durable import json_bytes
from momatch.training.data import load_by_name
from momatch.training.inputs import flips, whole_model_spec
from momatch.training.setup import choose_device

#: Longest side of the pictures kept for reports.
MOST_PIXELS = 32


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
        overwrite: replace an existing file.
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
        if self.out.exists() and not self.overwrite:
            raise ValueError(f"out: {self.out} already exists; choose another name, or overwrite it (--overwrite)")

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
        test: test images in the file.
        resumed: images already passed through the backbone before an interruption, counting each view.
        passed: images passed through the backbone this time, counting each view.
        seconds: time that took.
        size: file size in bytes.
    """

    spec: FeatureSpec
    train: int
    train_of: int
    unlabeled: int
    test: int
    resumed: int
    passed: int
    seconds: float
    size: int


@dataclass(frozen=True)
class Chosen:
    """The images of one split to embed.

    Attributes:
        split: the dataset's split.
        rows: rows of the images in it, ascending.
    """

    split: Split
    rows: Int64[Tensor, " n"]

    @property
    def images(self) -> PixelRows:
        """The images."""
        return PixelRows([self.split.images], self.rows)

    @property
    def labels(self) -> Int64[Tensor, " n"]:
        """Their labels."""
        return self.split.labels[self.rows]

    @property
    def files(self) -> list[str]:
        """Their file names; empty if they did not come from image files."""
        return [self.split.files[row] for row in self.rows.tolist()] if self.split.files else []


def embed(options: EmbedOptions) -> Embedded:
    """Run images through a backbone in several views and save the features; resumes an interrupted embedding.

    Raises:
        ValueError: if the data or the backbone cannot be used, or `out` has an unfinished embedding with other settings.
        ImportError: if the backbone needs packages that are not installed.
        OSError: on a write error such as a full disk; finished rows are kept.
        Interrupted: after Ctrl-C or SIGTERM; finished rows are kept.

    Warns:
        UserWarning: if a resumed embedding keeps its original weights although the backbone's have changed.
    """
    device = choose_device(options.device)
    dataset, chosen = _choose_images(options)
    model, spec = _describe(options, dataset, chosen)
    part = Part(options.out)
    with part.opened():
        plan = _plan(options, spec, chosen)
        if not part.is_begun(plan):
            part.clear()
        network = build_network(
            model,
            spec,
            part.path(WEIGHTS),
            device,
            sample=chosen["train"].images,
            backbone_options={"weights": options.weights, "untrained": options.untrained},
        )
        spec = replace(
            spec,
            num_features=network.num_features,
            stage_names=network.stage_names,
            num_statistics=network.num_statistics,
        )
        part.begin(plan, _arrays(spec, chosen))
        done = part.done()
        if options.progress:
            rows = {name: len(one.rows) - done.get(name, 0) for name, one in chosen.items()}
            say_expected_time(
                network, chosen["train"].images, rows, fast=options.fast or options.image_size is not None
            )
        clock = time.perf_counter()
        passed = _pass_all(part, network, chosen, spec, done=done, options=options)
        seconds = time.perf_counter() - clock
        write_archive(part.path("features.npz"), _members(part, spec, chosen))
        part.finish(part.path("features.npz"))
    return Embedded(
        spec=spec,
        train=len(chosen["train"].rows),
        train_of=len(dataset.train),
        unlabeled=int((chosen["train"].labels == UNLABELED).sum()),
        test=len(chosen["test"].rows) if "test" in chosen else 0,
        resumed=sum(done.get(split, 0) * _views(spec, split) for split in chosen),
        passed=passed,
        seconds=seconds,
        size=options.out.stat().st_size,
    )


def _choose_images(options: EmbedOptions) -> tuple[Dataset, dict[str, Chosen]]:
    """The dataset, and the images of each split to embed.

    Raises:
        ValueError: if the data cannot be used, or are features instead of images.
    """
    dataset = load_by_name(
        options.dataset,
        data_dir=options.data_dir,
        image_size=options.side(),
        test_fraction=options.test_fraction,
        progress=options.progress,
        mixed_size=fallback_size(options.backbone),
    )
    chosen = {}
    for name, split, limit in (("train", dataset.train, options.limit), ("test", dataset.test, options.limit_test)):
        if split is not None and len(split):
            rows = torch.arange(len(split)) if limit is None else draw_subset(split.labels, limit, seed=options.seed)
            chosen[name] = Chosen(split, rows)
    if "train" not in chosen:
        raise ValueError(f"{options.dataset}: got no training images, expected at least one")
    return dataset, chosen


def _describe(options: EmbedOptions, dataset: Dataset, chosen: dict[str, Chosen]) -> tuple[ModelSpec, FeatureSpec]:
    """The spec to build the backbone from, and the file's spec, whose features and stages are not known yet."""
    images = chosen["train"].images
    channels, height, width = images.shape
    spec = FeatureSpec(
        path=options.out,
        dataset=dataset.name,
        class_names=dataset.class_names,
        backbone=options.backbone,
        backbone_variant=options.backbone_variant,
        flip="yes" if flips(options.flip, dataset.name) else "no",
        strong_operations=options.strong_operations,
        cutout=options.cutout,
        in_channels=channels,
        image_size=(height, width),
        normalization=normalization(dataset.name, images),
        num_features=0,
        stage_names=(),
        num_statistics=0,
        weak_views=options.weak_views,
        strong_views=options.strong_views,
        seed=options.seed,
        created_by=f"momatch {__version__}",
    )
    # Only the classifier's backbone and preprocessing are used; the head does not matter.
    return whole_model_spec(TrainConfig(head="linear", embedding_dim=0), spec, dataset.class_names), spec


def _plan(options: EmbedOptions, spec: FeatureSpec, chosen: dict[str, Chosen]) -> dict[str, object]:
    """Everything the rows depend on, except batch size and device, which change only the last digits."""
    digest = hashlib.sha256(repr(spec.class_names).encode())
    for part in chosen.values():
        digest.update(part.rows.numpy().tobytes())
        digest.update(part.labels.numpy().tobytes())
        update_digest(digest, part.images)
    # Features and stages of the backbone follow from the rest.
    follow = ("num_features", "stage_names", "num_statistics")
    values = {key: value for key, value in asdict(spec).items() if key not in ("path", *follow)}
    limits = {"limit": options.limit, "limit_test": options.limit_test, "test_fraction": options.test_fraction}
    return {
        "format": VERSION,
        **limits,
        **values,
        "images": {name: len(part.rows) for name, part in chosen.items()},
        "digest": digest.hexdigest(),
    }


def _arrays(spec: FeatureSpec, chosen: dict[str, Chosen]) -> dict[str, tuple[str, tuple[int, ...]]]:
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, part in chosen.items():
        n = len(part.rows)
        arrays[f"{name}_features.npy"] = (FEATURES_DTYPE.str, (n, _views(spec, name), spec.num_features))
        arrays[f"{name}_stages.npy"] = (STAGES_DTYPE.str, (n, spec.num_statistics))
        arrays[f"{name}_pictures.npy"] = ("|u1", (n, *_picture_shape(spec)))
    return arrays


def _views(spec: FeatureSpec, split: str) -> int:
    return spec.num_views if split == "train" else 1


def _picture_shape(spec: FeatureSpec) -> tuple[int, int, int]:
    scale = min(1.0, MOST_PIXELS / max(spec.image_size))
    height, width = (max(1, round(scale * side)) for side in spec.image_size)
    return spec.in_channels, height, width


def _pass_all(
    part: Part,
    network: Network,
    chosen: dict[str, Chosen],
    spec: FeatureSpec,
    *,
    done: dict[str, int],
    options: EmbedOptions,
) -> int:
    """Pass the remaining images through the network; returns how many, counting each view."""
    journal = Journal(part.folder, list(_arrays(spec, chosen)))
    total = sum(len(one.rows) * _views(spec, name) for name, one in chosen.items())
    before = reached = sum(done.get(name, 0) * _views(spec, name) for name in chosen)
    bar = CountProgress(total, label="embed", done=before, enabled=options.progress)
    with StopSignals() as signals, bar:
        try:
            for name, one in chosen.items():
                writer = RowWriter(part, name, journal)
                for first in range(done.get(name, 0), len(one.rows), options.batch_size):
                    rows = one.rows[first : first + options.batch_size]
                    images = one.images.gather(torch.arange(first, first + len(rows)))
                    features, stages = network.views(images, rows) if name == "train" else network.plain(images)
                    writer.write(first, features=features, stages=stages, pictures=_pictures(images, spec))
                    bar.add(len(rows) * _views(spec, name))
                    reached += len(rows) * _views(spec, name)
                    if signals.received is not None:
                        raise Interrupted(
                            f"stopped with {reached:,} of {total:,} images done and saved; run the same command to resume",
                            signals.received,
                        )
        finally:
            journal.sync()
    return total - before


def _pictures(images: Tensor, spec: FeatureSpec) -> np.ndarray:
    small = PixelRows([images]).converted(_picture_shape(spec))
    return small.gather(torch.arange(len(images))).numpy()


def _members(part: Part, spec: FeatureSpec, chosen: dict[str, Chosen]) -> dict[str, bytes | Path]:
    members: dict[str, bytes | Path] = {MARKER: spec.to_json()}
    for name, one in chosen.items():
        members[f"{name}_labels.npy"] = _npy(one.labels)
        members |= {f"{name}_{kind}.npy": part.path(f"{name}_{kind}.npy") for kind in KINDS}
        if one.files:
            members[f"{name}_files.json"] = json_bytes(one.files, indent=None)
    return members | {WEIGHTS: part.path(WEIGHTS)}


def _npy(labels: Int64[Tensor, " n"]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, labels.numpy(), version=(1, 0))
    return buffer.getvalue()
