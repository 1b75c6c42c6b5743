"""``momatch label``: a page to label images on."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from momatch.config.settings import Device
from momatch.console.warned import warnings_said

if TYPE_CHECKING:
    from momatch.labeling.server import LabelServer


@dataclass(frozen=True)
class Arguments:
    """Label images on a page in your browser, those first whose labels say most.

    Images are embedded once. Every answer is written to a manifest at once; run the same command again to go on.

    Attributes:
        images: folder of images. Images in class folders count as labelled.
        classes: names of the classes, separated by commas. Those of folders and of the manifest are added, and more can be
            added on the page.
        labels: the manifest (default: labels.csv in the folder).
        features: the features file (default: features.npz in the folder); made if it does not exist.
        backbone: as for momatch embed (default: that of the features file, else efficientnet-lite0).
        weights: as for momatch embed.
        untrained: as for momatch embed.
        image_size: as for momatch embed.
        fast: as for momatch embed.
        port: to listen on, on this machine only; 0 for a free one.
        browser: open the page in a browser.
        seed: seed for suggestions and views.
        device: "auto" picks cuda, then mps, then cpu.
        progress: show progress.
    """

    images: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FOLDER")]]
    classes: Annotated[str, tyro.conf.arg(metavar="NAME,NAME,...")] = ""
    labels: Annotated[Path | None, tyro.conf.arg(metavar="FILE.csv", help_behavior_hint="")] = None
    features: Annotated[Path | None, tyro.conf.arg(metavar="FILE.npz", help_behavior_hint="")] = None
    backbone: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    weights: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    untrained: tyro.conf.FlagCreatePairsOff[bool] = False
    image_size: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    fast: tyro.conf.FlagCreatePairsOff[bool] = False
    port: Annotated[int, tyro.conf.arg(metavar="INT")] = 0
    browser: bool = True
    seed: Annotated[int, tyro.conf.arg(metavar="INT")] = 0
    device: Device = "auto"
    progress: bool = True


def main(argv: Sequence[str]) -> int:
    """Run ``momatch label``; returns the exit code."""
    arguments = tyro.cli(Arguments, prog="momatch label", args=list(argv))
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise ImportError(f"momatch label needs {error.name}; pip install 'momatch[label]'", name=error.name) from error
    del starlette, uvicorn
    from momatch.data.sources.manifest import PAGE_LABELS
    from momatch.labeling.opening import LabelOptions, open_session
    from momatch.labeling.server import LabelServer, listen

    folder = arguments.images
    options = LabelOptions(
        images=folder,
        labels=arguments.labels or folder / PAGE_LABELS,
        features=arguments.features or folder / "features.npz",
        classes=tuple(name.strip() for name in arguments.classes.split(",") if name.strip()),
        backbone=arguments.backbone,
        weights=arguments.weights,
        untrained=arguments.untrained,
        image_size=arguments.image_size,
        fast=arguments.fast,
        seed=arguments.seed,
        device=arguments.device,
        progress=arguments.progress,
    )
    with ExitStack() as opened:
        # First: a port that cannot be used is not found out after the images were embedded.
        listening = opened.enter_context(listen(arguments.port))
        # Said before the page opens: a warning that images are left out is of no use afterwards.
        with warnings_said("label"):
            session = opened.enter_context(open_session(options))
        with warnings_said("label"):
            _serve(LabelServer(session, listening), session.paths.labels, browser=arguments.browser)
        counts = session.state()
        labeled = sum(one["labels"] for one in counts["classes"])
        if labeled == 0:
            print("No image is labelled yet; the same command goes on.")
            return 0
        print(f"{labeled:,} of {counts['images']:,} images are labelled in {options.labels}. Next:")
        for command in counts["commands"]:
            print(f"  {command}")
    return 0


def _serve(server: "LabelServer", labels: Path, *, browser: bool) -> None:
    """Show the page until Ctrl-C, the way to end it: everything is on disk."""
    print(f"{server.address}\nLabels go to {labels}. Press Ctrl-C to stop.", flush=True)
    if browser:
        import webbrowser

        webbrowser.open(server.address)
    try:
        server.run()
    except KeyboardInterrupt:
        print(file=sys.stderr)
