"""``momatch export``: write a trained model as one graph, or as a model folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from momatch.models.saved_model import SavedModel
    from momatch.training.run import Run


@dataclass(frozen=True)
class Arguments:
    """Export a trained model: ONNX, torch.export, or a model folder.

    The exported graph is compared with the model before it is written.

    Attributes:
        run: directory of a finished run, or a model folder.
        to: onnx: one graph from raw pixels to label, posterior, log density, distance and p-value. torch: the same graph, for
            torch.export.load. folder: weights, settings and model card, for SavedModel.from_pretrained.
        out: file or folder to write (default: model.onnx or model.pt2 in RUN; required for a folder).
        overwrite: replace an existing file or model.
        opset: ONNX opset version (default: chosen by torch, or that of an ONNX backbone).
        trust_code: allow importing the model's custom backbone (package.module:factory), which runs that module's code.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    to: Literal["onnx", "torch", "folder"] = "onnx"
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    opset: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    trust_code: tyro.conf.FlagCreatePairsOff[bool] = False


def main(argv: Sequence[str]) -> int:
    """Run ``momatch export``; returns the exit code."""
    arguments = tyro.cli(Arguments, prog="momatch export", args=list(argv))
    if not arguments.run.is_dir():
        raise ValueError(f"{arguments.run}: no such directory, expected a run directory or a model folder")
    if arguments.opset is not None and arguments.to != "onnx":
        raise ValueError(f"--opset: got {arguments.opset} with --to {arguments.to}, expected it with --to onnx only")
    return _folder(arguments) if arguments.to == "folder" else _file(arguments)


def _folder(arguments: Arguments) -> int:
    folder = arguments.out
    if folder is None:
        raise ValueError("--out: got none, expected the folder to write: momatch export RUN --to folder --out DIR")
    from momatch.models.model_files import check_model_folder

    if check_model_folder(folder) and not arguments.overwrite:
        raise ValueError(f"{folder}: a model already exists here; pass --overwrite to replace it")
    from momatch.storage.durable import may_replace
    from momatch.storage.run_directory import CARD

    kept = not may_replace(folder / CARD)
    _, model = _load(arguments.run, trust_code=arguments.trust_code)
    model.save_pretrained(folder)
    print(f"model: {folder}")
    if kept:
        print(f"{folder / CARD} was edited or written by someone else; kept")
    print(f'load it with: momatch.SavedModel.from_pretrained("{folder}")')
    return 0


def _file(arguments: Arguments) -> int:
    from momatch.inference.export import FORMATS, export_model
    from momatch.inference.export.parity import own_images
    from momatch.storage.durable import check_target

    path = arguments.out or arguments.run / f"model{FORMATS[arguments.to][0]}"
    # Fail before the work, not after it.
    check_target(path, overwrite=arguments.overwrite)
    if arguments.to == "onnx":
        from momatch.inference.export.formats import onnx_packages

        onnx_packages()
    run, model = _load(arguments.run, trust_code=arguments.trust_code)
    images = None if run is None else own_images(run)
    exported = export_model(
        model, path, to=arguments.to, opset=arguments.opset, overwrite=arguments.overwrite, images=images
    )
    spec = model.spec
    print(
        f"{path}: {exported.size / 2**20:,.1f} MB, takes uint8 images (n, {spec.in_channels}, {_size(spec.image_size)})"
    )
    kinds = "synthetic images" if images is None else f"{len(images)} images of {spec.dataset} and synthetic images"
    print(f"matches the model, run by {exported.runner} on {kinds}")
    print(f"  {exported.parity}")
    return 0


def _load(path: Path, *, trust_code: bool | str) -> "tuple[Run | None, SavedModel]":
    from momatch.models.saved_model import SavedModel
    from momatch.storage.run_config import holds_run
    from momatch.training.run import Run

    if not holds_run(path):
        return None, SavedModel.from_pretrained(path, trust_code=trust_code)
    run = Run.load(path, trust_code=trust_code)
    return run, run.model


def _size(image_size: tuple[int, int]) -> str:
    return f"{image_size[0]}, {image_size[1]}"
