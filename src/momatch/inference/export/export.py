"""`export_model`: make the graph, compare it with the model, then write it."""

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
    """An exported file.

    Attributes:
        path: the file.
        size: in bytes.
        runner: the runtime used for the comparison, e.g. "onnxruntime 1.31.1 (opset 20)".
        parity: differences from the model.
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

    The graph is run on synthetic images in several batch sizes and compared with the model. It is written only if they agree.

    Args:
        model: `Run.model`, or `SavedModel.from_pretrained`.
        path: the file to write.
        to: "onnx", or "torch" for a torch.export program.
        opset: ONNX opset version; None for torch's default, or for that of an ONNX backbone (18 if it is older).
        overwrite: replace an existing file.
        images: further images for the comparison, of the model's shape.

    Raises:
        ValueError: if the model cannot be exported, the graph differs from it, or the file exists.
        ImportError: if a package is missing.
        OSError: if writing fails; an existing file is then intact.
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
    # Run the model first: its own errors are clearer than those of the tracer.
    model.predict(checked[:1])
    data, run, runner = FORMATS[to][1](model, opset)
    parity = compare(model, run, checked)
    with explain_write_errors("writing the export", path.parent):
        replace_files({path: data})
    return Exported(path, len(data), runner, parity)
