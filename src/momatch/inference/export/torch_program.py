"""A model as a program of torch.export (.pt2): runs in PyTorch without this library; what AOTInductor and ExecuTorch take."""

import io
import json

import torch
from torch import Tensor

from momatch.inference.export.facts import description
from momatch.inference.export.graph import OUTPUTS, trace, without_torchs_own_warnings
from momatch.inference.export.parity import Runner
from momatch.models.saved_model import SavedModel

#: The name of the description inside of the archive.
FACTS = "momatch.json"


def torch_program(model: SavedModel, opset: int | None) -> tuple[bytes, Runner, str]:
    """The bytes of the archive, what runs them, and what that is in words.

    Raises:
        ValueError: if an opset is given, which is ONNX's; or as `momatch.inference.export.graph.trace`.
    """
    if opset is not None:
        raise ValueError(f"opset: got {opset} for a program of torch, expected none: it is ONNX's")
    program, file = trace(model), io.BytesIO()
    with without_torchs_own_warnings():
        torch.export.save(program, file, extra_files={FACTS: json.dumps(description(model))})
        data = file.getvalue()
        loaded = torch.export.load(io.BytesIO(data)).module()

    @torch.no_grad()
    def run(images: Tensor) -> dict[str, Tensor]:
        return dict(zip(OUTPUTS, loaded(images), strict=True))

    return data, run, f"torch {torch.__version__}"
