"""``momatch embed``: images once through a backbone, so that training takes seconds."""

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
    """Run images once through a backbone, in several views, and keep what it makes of them.

    momatch train --dataset FILE.npz then fits projection, head and constraint in seconds: weak and strong views are drawn from
    the file. An embedding that was stopped goes on where it was when the same command is given again.

    Attributes:
        dataset: a known name (see momatch data), an image folder, a .csv/.parquet manifest or an .npz of images.
        out: the features file to make.
        backbone: a known network or package.module:factory of your own.
        backbone_variant: "published" repeats USB's Wide ResNet exactly.
        weak_views: weak views of each training image, beside the plain one.
        strong_views: strong views of each training image.
        flip: mirror images at random; "auto": not where mirroring changes the class (digits, mnist, kmnist, svhn).
        strong_operations: random changes that a strong view makes to an image.
        cutout: largest side of the square that a strong view blanks, as a fraction of the image's; 0 for none.
        image_size: side to which images are brought before views are made of them.
        test_fraction: hold out this fraction of each class for testing, where the dataset has no test images.
        limit: training images to take: all labelled ones, the rest drawn from the unlabelled by the seed; where the labelled
            ones alone are more, each class keeps its share of them.
        limit_test: test images to take, drawn by the seed, of each class its share.
        data_dir: where known datasets lie and are downloaded to ($MOMATCH_DATA).
        batch_size: images a pass.
        seed: of the views, of the images that a limit takes, and of a backbone that starts from random weights.
        device: "auto" takes cuda, then mps, then cpu.
        overwrite: replace the file if it is there.
        progress: show progress.
    """

    dataset: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATASET")]]
    out: _OUT
    backbone: Annotated[str, tyro.conf.arg(metavar="TEXT")] = "efficientnet-lite0"
    backbone_variant: Literal["default", "published"] = "default"
    weak_views: _COUNT = 1
    strong_views: _COUNT = 2
    flip: Literal["auto", "yes", "no"] = "auto"
    strong_operations: _COUNT = 3
    cutout: Annotated[float, tyro.conf.arg(metavar="NUMBER")] = 0.5
    image_size: Annotated[int | None, _MAYBE] = None
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
    from momatch.embedding import EmbedOptions, embed
    from momatch.training.allocator import keep_large_blocks

    keep_large_blocks()
    options = EmbedOptions(**{field.name: getattr(arguments, field.name) for field in fields(arguments)})
    with warnings_said("embed"):
        embedded = embed(options)
    for line in summary(embedded):
        print(line)
    return 0


def summary(embedded: "Embedded") -> Iterator[str]:
    """The lines that say what was made, how long it took and what comes next."""
    spec = embedded.spec
    part = f" of {embedded.train_of:,}" if embedded.train < embedded.train_of else ""
    yield (
        f"{spec.path}: {embedded.train:,}{part} training images of {spec.dataset} in {spec.num_views} views (1 plain, "
        f"{spec.weak_views} weak, {spec.strong_views} strong), {embedded.test:,} test images"
    )
    yield f"{spec.num_features} features each, by {spec.backbone}; {embedded.size / 1e6:,.1f} MB"
    before = f", {embedded.resumed:,} were done before" if embedded.resumed else ""
    speed = embedded.passed / max(embedded.seconds, 1e-9)
    yield f"{embedded.passed:,} images through the network in {embedded.seconds:,.1f} s ({speed:,.0f} a second){before}"
    yield ""
    # Where images without labels are the dataset's own, the few labels that there are should all be shown.
    shown = 0 if embedded.unlabeled else 4
    trust = " --trust-code" if ":" in spec.backbone else ""
    yield f"Next: momatch train --dataset {shlex.quote(str(spec.path))} --labels-per-class {shown}{trust}"
