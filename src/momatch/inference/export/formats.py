"""File formats of the graph: ONNX, run by onnxruntime, or a torch.export program (.pt2), run by PyTorch without momatch."""

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from momatch._version import __version__
from momatch.inference.export.graph import INPUT, OUTPUTS, description, first_line, trace, without_torchs_own_warnings
from momatch.inference.export.onnx_backbones import backbone_opset, opset_of, put_in_backbones
from momatch.inference.export.parity import Runner
from momatch.models.backbones import OnnxGraph
from momatch.models.backbones.onnx_graph import graphs_as_nodes
from momatch.models.saved_model import SavedModel

#: torch translates to this opset and converts from there; conversion to older ones fails for most networks.
FIRST_OPSET = 18
#: Protocol buffers cannot be larger.
MOST_BYTES = 2**31 - 1
#: Prefix of the metadata keys.
PREFIX = "momatch."
#: Name of the metadata file inside a .pt2 archive.
DESCRIPTION = "momatch.json"


def onnx_graph(model: SavedModel, opset: int | None) -> tuple[bytes, Runner, str]:
    """The bytes of the file, a function that runs them, and the name of the runtime.

    Raises:
        ImportError: if a package is missing.
        ValueError: if the opset is not supported or older than that of an ONNX backbone, ONNX lacks an operation of the
            network, or the graph is too large; or as `momatch.inference.export.graph.trace` and
            `momatch.inference.export.onnx_backbones.put_in_backbones`.
    """
    onnx, runtime = onnx_packages()
    latest = onnx.defs.onnx_opset_version()
    if opset is not None and not FIRST_OPSET <= opset <= latest:
        raise ValueError(f"opset: got {opset}, expected {FIRST_OPSET} to {latest}, as the installed onnx supports")
    own = backbone_opset(model)
    if own and opset is None:
        opset = max(FIRST_OPSET, own)
    if opset is not None and opset < own:
        raise ValueError(
            f"opset: got {opset}, expected at least {own}, that of the ONNX backbone: graphs are not converted to older ones"
        )
    with graphs_as_nodes() if own else nullcontext():
        program = trace(model)
    proto = _translate(program, opset)
    if opset_of(proto) < own:
        raise ValueError(
            f"opset: torch {torch.__version__} translates to opset {opset_of(proto)}, expected {own}, that of the ONNX "
            "backbone; write the backbone's file again with that opset and train with it, or update torch and onnxscript"
        )
    put_in_backbones(proto)
    proto.producer_name, proto.producer_version = "momatch", __version__
    proto.doc_string = f"{model.spec.backbone} with {model.spec.head} head, trained on {model.spec.dataset}"
    onnx.helper.set_model_props(proto, {PREFIX + key: text for key, text in description(model).items()})
    if proto.ByteSize() > MOST_BYTES:
        raise ValueError("ONNX: got a graph of more than 2 GB, expected less: it must fit in one file")
    data: bytes = proto.SerializeToString()
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"onnxruntime {runtime.__version__} cannot load the graph: {first_line(error)}") from error

    def run(images: Tensor) -> dict[str, Tensor]:
        got = session.run(list(OUTPUTS), {INPUT: images.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(OUTPUTS, got, strict=True)}

    return data, run, f"onnxruntime {runtime.__version__} (opset {opset_of(proto)})"


def onnx_packages() -> tuple[Any, Any]:
    """The modules onnx and onnxruntime.

    Raises:
        ImportError: if they or onnxscript are not installed.
    """
    try:
        import_module("onnxscript")
        return import_module("onnx"), import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(f"{error}; ONNX needs more packages: pip install 'momatch[onnx]'") from error


def torch_program(model: SavedModel, opset: int | None) -> tuple[bytes, Runner, str]:
    """The bytes of the archive, a function that runs them, and the name of the runtime.

    Raises:
        ValueError: if an opset is given, or a backbone is an ONNX graph; or as `momatch.inference.export.graph.trace`.
    """
    if opset is not None:
        raise ValueError(f"opset: got {opset} for a torch.export program, expected none: it applies to ONNX only")
    if any(isinstance(part, OnnxGraph) for part in model.classifier.modules()):
        raise ValueError(
            f"backbone {model.spec.backbone!r}: got an ONNX graph, which torch.export cannot hold, expected a torch network; "
            "export it to ONNX (--to onnx), or share it as a folder (--to folder)"
        )
    program, file = trace(model), io.BytesIO()
    with without_torchs_own_warnings():
        torch.export.save(program, file, extra_files={DESCRIPTION: json.dumps(description(model))})
        data = file.getvalue()
        loaded = torch.export.load(io.BytesIO(data)).module()

    @torch.no_grad()
    def run(images: Tensor) -> dict[str, Tensor]:
        return dict(zip(OUTPUTS, loaded(images), strict=True))

    return data, run, f"torch {torch.__version__}"


def _translate(program: torch.export.ExportedProgram, opset: int | None) -> Any:
    try:
        with without_torchs_own_warnings(), _quiet("torch.onnx"), _quiet("onnxscript"):
            translated = torch.onnx.export(
                program, (), dynamo=True, verbose=False, input_names=[INPUT], output_names=OUTPUTS, opset_version=opset
            )
    except Exception as error:
        raise ValueError(f"ONNX: the network cannot be converted: {_cause(error)}") from error
    assert translated is not None, "torch.onnx.export returns a program with dynamo"
    return translated.model_proto


def _cause(error: BaseException) -> str:
    """The first line of the root cause, which names the operation; the outer errors only say how to report a torch bug."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence a logger's warnings, such as those about missing torchvision, which is not needed."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


Encoder = Callable[[SavedModel, int | None], tuple[bytes, Runner, str]]

#: Format -> file extension and encoder.
FORMATS: Mapping[str, tuple[str, Encoder]] = {
    "onnx": (".onnx", onnx_graph),
    "torch": (".pt2", torch_program),
}
