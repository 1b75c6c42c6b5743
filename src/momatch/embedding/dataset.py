"""`embed`: from a dataset of images to a features file."""

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
from momatch.data.conversion import convert_images
from momatch.data.dataset import UNLABELED, Dataset
from momatch.data.feature_facts import MARKER, FeatureFacts
from momatch.data.features import FEATURES_DTYPE, WEIGHTS
from momatch.data.journal import Journal
from momatch.data.rows import ImageRows
from momatch.data.statistics import normalization
from momatch.embedding.archive import write_archive
from momatch.embedding.images import Chosen, choose_images
from momatch.embedding.network import Network, build_network
from momatch.embedding.options import EmbedOptions
from momatch.embedding.part import Part, RowWriter
from momatch.models.spec import ModelSpec
from momatch.storage.durable import json_bytes
from momatch.training.features import model_facts
from momatch.training.setup import choose_device, flips, update_digest

#: Longest side of a picture that is kept for reports.
MOST_PIXELS = 32


@dataclass(frozen=True)
class Embedded:
    """What came of an embedding.

    Attributes:
        facts: what the file says about itself.
        train: training images in it.
        train_of: that the dataset has.
        unlabeled: training images in it without a label.
        test: test images in it.
        resumed: images that an earlier, interrupted process had passed through the backbone (each view counts).
        passed: images that this one passed.
        seconds: that they took.
        size: of the file, in bytes.
    """

    facts: FeatureFacts
    train: int
    train_of: int
    unlabeled: int
    test: int
    resumed: int
    passed: int
    seconds: float
    size: int


def embed(options: EmbedOptions) -> Embedded:
    """Pass images through a backbone in several views and keep what it makes of them, or go on doing so.

    Args:
        options: what, by what and how.

    Raises:
        ValueError: if the data or the backbone cannot be used, or another embedding was begun in the same place.
        ImportError: if the backbone needs packages that are not installed.
        OSError: if the disk is full, for example; what is done is kept.
        Interrupted: after Ctrl-C or SIGTERM; what is done is kept.

    Warns:
        UserWarning: if it goes on with the weights it was begun with, and the backbone has got others since.
    """
    device = choose_device(options.device)
    dataset, chosen = choose_images(options)
    model, facts = _facts(options, dataset, chosen)
    part = Part(options.out)
    with part.opened():
        plan = _plan(options, facts, chosen)
        if not part.is_begun(plan):
            part.clear()
        network = build_network(model, facts, part.path(WEIGHTS), device)
        facts = replace(facts, num_features=network.num_features)
        part.begin(plan, _arrays(facts, chosen))
        done = part.done()
        clock = time.perf_counter()
        passed = _pass_all(part, network, chosen, facts, done=done, options=options)
        seconds = time.perf_counter() - clock
        write_archive(part.path("features.npz"), _members(part, facts, chosen))
        part.finish(part.path("features.npz"))
    return Embedded(
        facts=facts,
        train=len(chosen["train"].rows),
        train_of=len(dataset.train),
        unlabeled=int((chosen["train"].labels == UNLABELED).sum()),
        test=len(chosen["test"].rows) if "test" in chosen else 0,
        resumed=sum(done.get(split, 0) * _views(facts, split) for split in chosen),
        passed=passed,
        seconds=seconds,
        size=options.out.stat().st_size,
    )


def _facts(options: EmbedOptions, dataset: Dataset, chosen: dict[str, Chosen]) -> tuple[ModelSpec, FeatureFacts]:
    """What the backbone is built from, and what the file will say; the number of features is not known yet."""
    images = chosen["train"].images
    channels, height, width = images.image_shape
    facts = FeatureFacts(
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
        weak_views=options.weak_views,
        strong_views=options.strong_views,
        seed=options.seed,
        created_by=f"momatch {__version__}",
    )
    # Of a classifier the backbone and its preprocessing are used, whatever the head.
    return model_facts(TrainConfig(head="linear", embedding_dim=0), facts, dataset.class_names), facts


def _plan(options: EmbedOptions, facts: FeatureFacts, chosen: dict[str, Chosen]) -> dict[str, object]:
    """Everything that the rows depend on; batch size and device do so in the last digits alone."""
    digest = hashlib.sha256(repr(facts.class_names).encode())
    for part in chosen.values():
        digest.update(part.rows.numpy().tobytes())
        digest.update(part.labels.numpy().tobytes())
        update_digest(digest, part.images)
    # How many features there are follows from the rest.
    values = {key: value for key, value in asdict(facts).items() if key not in ("path", "num_features")}
    limits = {"limit": options.limit, "limit_test": options.limit_test, "test_fraction": options.test_fraction}
    return {
        **limits,
        **values,
        "images": {name: len(part.rows) for name, part in chosen.items()},
        "digest": digest.hexdigest(),
    }


def _arrays(facts: FeatureFacts, chosen: dict[str, Chosen]) -> dict[str, tuple[str, tuple[int, ...]]]:
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, part in chosen.items():
        n = len(part.rows)
        arrays[f"{name}_features.npy"] = (FEATURES_DTYPE.str, (n, _views(facts, name), facts.num_features))
        arrays[f"{name}_pictures.npy"] = ("|u1", (n, *_picture_shape(facts)))
    return arrays


def _views(facts: FeatureFacts, split: str) -> int:
    return facts.num_views if split == "train" else 1


def _picture_shape(facts: FeatureFacts) -> tuple[int, int, int]:
    scale = min(1.0, MOST_PIXELS / max(facts.image_size))
    height, width = (max(1, round(scale * side)) for side in facts.image_size)
    return facts.in_channels, height, width


def _pass_all(
    part: Part,
    network: Network,
    chosen: dict[str, Chosen],
    facts: FeatureFacts,
    *,
    done: dict[str, int],
    options: EmbedOptions,
) -> int:
    """Pass what is not done yet through the network; returns how many images that was, each view counted."""
    journal = Journal(part.folder, list(_arrays(facts, chosen)))
    total = sum(len(one.rows) * _views(facts, name) for name, one in chosen.items())
    before = reached = sum(done.get(name, 0) * _views(facts, name) for name in chosen)
    bar = CountProgress(total, label="embed", done=before, enabled=options.progress)
    with StopSignals() as signals, bar:
        try:
            for name, one in chosen.items():
                writer = RowWriter(part, name, journal)
                for first in range(done.get(name, 0), len(one.rows), options.batch_size):
                    rows = one.rows[first : first + options.batch_size]
                    images = one.images.gather(torch.arange(first, first + len(rows)))
                    features = network.views(images, rows) if name == "train" else network.plain(images)
                    writer.write(first, features=features, pictures=_pictures(images, facts))
                    bar.add(len(rows) * _views(facts, name))
                    reached += len(rows) * _views(facts, name)
                    if signals.received is not None:
                        raise Interrupted(
                            f"stopped with {reached:,} of {total:,} images done and saved; the same command goes on from there",
                            signals.received,
                        )
        finally:
            journal.sync()
    return total - before


def _pictures(images: Tensor, facts: FeatureFacts) -> np.ndarray:
    small = convert_images(ImageRows.of(images), _picture_shape(facts))
    return small.gather(torch.arange(len(images))).numpy()


def _members(part: Part, facts: FeatureFacts, chosen: dict[str, Chosen]) -> dict[str, bytes | Path]:
    members: dict[str, bytes | Path] = {MARKER: facts.to_json()}
    for name, one in chosen.items():
        members[f"{name}_labels.npy"] = _npy(one.labels)
        members |= {f"{name}_{kind}.npy": part.path(f"{name}_{kind}.npy") for kind in ("features", "pictures")}
        if one.files:
            members[f"{name}_files.json"] = json_bytes(one.files, indent=None)
    return members | {WEIGHTS: part.path(WEIGHTS)}


def _npy(labels: Int64[Tensor, " n"]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, labels.numpy(), version=(1, 0))
    return buffer.getvalue()
