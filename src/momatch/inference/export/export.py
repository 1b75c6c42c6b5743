"""A model to a file: the graph is made, compared with the model, and only then written."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from momatch.inference.export.formats import FORMATS
from momatch.inference.export.parity import Parity, compare, made_up_images
from momatch.models.saved_model import SavedModel
from momatch.storage.checkpoint import explain_write_errors
from momatch.storage.durable import check_target, replace_files


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: of the file.
        size: in bytes.
        runner: what the file was run with for the comparison.
        parity: how far it is from the model.
    """

    path: Path
    size: int
    runner: str
    parity: Parity


def export_model(
    model: SavedModel,
    path: str | Path,
    *,
    to: str = "onnx",
    opset: int | None = None,
    overwrite: bool = False,
    images: UInt8[Tensor, "n C H W"] | None = None,
) -> Exported:
    """Write a model as one graph from raw pixels to label, posterior, log density, distance and p-value.

    The file is run on made-up images, one and several at a time, and compared with the model; what differs is not written.

    Args:
        model: `Run.model`, or `SavedModel.from_pretrained`.
        path: of the file.
        to: "onnx", or "torch" for a program of torch.export.
        opset: version of ONNX's operators; None for torch's choice.
        overwrite: replace a file that is there.
        images: to compare on as well, of the model's shape.

    Raises:
        ValueError: if the model cannot be exported, the graph differs from it, or the file is there already.
        ImportError: if a package is missing.
        OSError: if the file cannot be written; one that was there is then intact.
    """
    path = Path(path)
    if to not in FORMATS:
        raise ValueError(f"to: got {to!r}, expected one of {', '.join(FORMATS)}")
    check_target(path, overwrite=overwrite)
    checked = made_up_images(model.spec)
    if images is not None:
        if images.shape[1:] != checked.shape[1:]:
            raise ValueError(
                f"images: got shape {tuple(images.shape)}, expected (n, {', '.join(map(str, checked.shape[1:]))})"
            )
        checked = torch.cat([images, checked])
    # What the model itself refuses it refuses in its own words, not in those of a tracer.
    model.predict(checked[:1])
    data, run, runner = FORMATS[to][1](model, opset)
    parity = compare(model, run, checked)
    with explain_write_errors("writing the export", path.parent):
        replace_files({path: data})
    return Exported(path, len(data), runner, parity)
