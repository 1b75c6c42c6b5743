"""``momatch embed``: run images through a backbone once, so that training takes seconds."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from momatch.config.settings import Device
from momatch.console.warned import warnings_said

if TYPE_CHECKING:
    from momatch.embedding import Embedded

_OUT = Annotated[Path, tyro.conf.arg(metavar="FILE.npz")]
_COUNT = Annotated[int, tyro.conf.arg(metavar="INT")]
_MAYBE = tyro.conf.arg(metavar="INT", help_behavior_hint="")


@dataclass(frozen=True)
class Arguments:
    """Run images through a backbone once, in several views, and save the features.

    momatch train --dataset FILE.npz then fits projection, head and constraint in seconds, drawing weak and strong views from
    the file. To resume an interrupted embedding, run the same command again. So too when images were added, moved or deleted:
    only new ones pass through the network.

    Attributes:
        dataset: a known name (see momatch data), an image folder, a .csv/.parquet manifest or an .npz of images.
        out: features file to write.
        backbone: a built-in network; timm:NAME, torchvision:NAME, hf:REPO (transformers) or onnx:FILE; your own as
            package.module:factory; or several with commas between them, whose features are put side by side.
        backbone_variant: "published" reproduces USB's Wide ResNet exactly.
        weights: file with the backbone's pretrained weights (.safetensors, or a state dict), for machines without a hub.
        untrained: use random weights where the backbone would have pretrained ones.
        weak_views: weak views per training image, in addition to the plain one.
        strong_views: strong views per training image.
        flip: mirror images at random; "auto" skips datasets where mirroring changes the class (digits, mnist, kmnist, svhn).
        strong_operations: random operations per strong view.
        cutout: largest side of the square blanked in strong views, as a fraction of the image side; 0 turns it off.
        image_size: resize images to this side in pixels before making views (default: the size that the backbone was trained
            at).
        fast: about half the size that the backbone was trained at (128 for 224 pixels): a third of the time, at the cost of
            some accuracy.
        test_fraction: hold out this fraction of each class for testing if the dataset has no test images.
        limit: use at most this many training images. Labelled images are kept first; unlabelled ones fill up the rest. If
            there are more labelled images than this, classes keep their proportions.
        limit_test: use at most this many test images; classes keep their proportions.
        data_dir: directory of known datasets and downloads ($MOMATCH_DATA).
        batch_size: images per batch.
        seed: seed for views, for the images that a limit selects, and for random backbone weights.
        device: "auto" picks cuda, then mps, then cpu.
        overwrite: embed every image again, and replace an existing file whatever it holds.
        progress: show progress.
    """

    dataset: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATASET")]]
    out: _OUT
    backbone: Annotated[str, tyro.conf.arg(metavar="TEXT")] = "efficientnet-lite0"
    backbone_variant: Literal["default", "published"] = "default"
    weights: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    untrained: tyro.conf.FlagCreatePairsOff[bool] = False
    weak_views: _COUNT = 1
    strong_views: _COUNT = 2
    flip: Literal["auto", "yes", "no"] = "auto"
    strong_operations: _COUNT = 3
    cutout: Annotated[float, tyro.conf.arg(metavar="NUMBER")] = 0.5
    image_size: Annotated[int | None, _MAYBE] = None
    fast: tyro.conf.FlagCreatePairsOff[bool] = False
    test_fraction: Annotated[float, tyro.conf.arg(metavar="NUMBER")] = 0.0
    limit: Annotated[int | None, _MAYBE] = None
    limit_test: Annotated[int | None, _MAYBE] = None
    data_dir: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    batch_size: _COUNT = 64
    seed: _COUNT = 0
    device: Device = "auto"
    overwrite: bool = False
    progress: bool = True


def main(argv: Sequence[str]) -> int:
    """Run ``momatch embed``; returns the exit code."""
    arguments = tyro.cli(Arguments, prog="momatch embed", args=list(argv))
    from momatch.training.allocator import keep_large_blocks

    # Before any thread starts.
    keep_large_blocks()
    from momatch.embedding import EmbedOptions, embed

    options = EmbedOptions(**{field.name: getattr(arguments, field.name) for field in fields(arguments)})
    with warnings_said("embed"):
        embedded = embed(options)
    for line in summary(embedded):
        print(line)
    return 0


def summary(embedded: "Embedded") -> Iterator[str]:
    """What was written, how long it took and the command to run next, as lines."""
    from momatch.models.backbones.custom import imports_code

    spec = embedded.spec
    part = f" of {embedded.train_of:,}" if embedded.train < embedded.train_of else ""
    yield (
        f"{spec.path}: {embedded.train:,}{part} training images of {spec.dataset} in {spec.num_views} views (1 plain, "
        f"{spec.weak_views} weak, {spec.strong_views} strong), {embedded.test:,} test images"
    )
    yield f"{spec.num_features} features each, by {spec.backbone}; {embedded.size / 1e6:,.1f} MB"
    if embedded.kept or embedded.dropped:
        added = embedded.train + embedded.test - embedded.kept
        yield f"kept the features of {embedded.kept:,} images, added {added:,}, dropped {embedded.dropped:,} that are gone"
    before = f", {embedded.resumed:,} were already done" if embedded.resumed else ""
    if embedded.passed or embedded.resumed:
        speed = embedded.passed / max(embedded.seconds, 1e-9)
        yield (
            f"{embedded.passed:,} images through the network in {embedded.seconds:,.1f} s ({speed:,.0f} per second){before}"
        )
    if embedded.without_labels:
        yield f"no label yet: {', '.join(embedded.without_labels)}"
    yield ""
    if len(spec.class_names) - len(embedded.without_labels) < 2:
        yield "Label a few images of two classes or more, then train; features are kept"
        return
    trust = " --trust-code" if imports_code(spec.backbone) else ""
    yield f"Next: momatch train --dataset {shlex.quote(str(spec.path))}{trust}"
