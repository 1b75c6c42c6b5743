"""A frozen backbone that is an ONNX graph, run by ONNX Runtime. Its bytes are a buffer: the weights of the module."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from momatch.models.backbones.base import Declared
from momatch.models.backbones.onnx_file import CONTENT, as_buffer
from momatch.models.backbones.rgb import SMALLEST, RgbBackbone

#: Domain and name of the node that stands for a graph in a traced model. Its inputs are the images as the graph takes them and
#: the graph's bytes; its outputs are float32: the features, then the stages if they are read.
NODE_DOMAIN, NODE_NAME = "momatch", "OnnxGraph"
_as_nodes = ContextVar("as_nodes", default=False)


@contextmanager
def graphs_as_nodes() -> Iterator[None]:
    """Trace each `OnnxGraph` as one node instead of running it, for a translation to ONNX.

    Raises:
        ImportError: if torch is too old.
    """
    try:
        import_module("torch.onnx.ops")
    except ImportError as error:
        raise ImportError(
            f"an ONNX backbone in an ONNX export needs torch 2.8 or later, got {torch.__version__}; pip install -U torch"
        ) from error
    token = _as_nodes.set(True)
    try:
        yield
    finally:
        _as_nodes.reset(token)


class OnnxGraph(RgbBackbone):
    """Features of an ONNX graph.

    The graph's bytes are in the buffer `graph`, so features files, checkpoints and saved models hold the whole network. It has
    no gradient, and runs on the CPU whatever the device of the images.

    Args:
        graph: from `momatch.models.backbones.onnx_file.prepared_graph`.
        in_channels: 1 or 3.
        image_size: height and width of the data's images, if known.

    Raises:
        ImportError: if ONNX Runtime is not installed.
        ValueError: if it does not run the graph.
    """

    graph: UInt8[Tensor, " bytes"]

    def __init__(self, graph: bytes, *, in_channels: int = 3, image_size: tuple[int, int] | None = None) -> None:
        sessions = _Sessions(graph)
        content = sessions.content
        mean, std = content["normalization"]
        declared = Declared(content["size"], (tuple(mean), tuple(std)))
        super().__init__(declared, in_channels)
        self.register_buffer("graph", as_buffer(graph))
        self._sessions = sessions
        self._content = content
        # What the graph computes about its stages passes through them, where a reader of stages finds it.
        self.stages = nn.ModuleList(nn.Identity() for _ in content["stages"])
        self.stage_names = tuple(f"stages.{number}" for number in range(len(content["stages"])))
        if content["fixed"] or (image_size is not None and min(image_size) < SMALLEST):
            self.resize_to = declared.size
        self.num_features = self(torch.zeros(1, in_channels, declared.size, declared.size)).shape[1]

    def forward(self, x: Tensor) -> Float[Tensor, "n F"]:
        """Features of images under `normalization`.

        Args:
            x: (n, C, H, W).

        Raises:
            ValueError: if `x` has another number of channels or is not floating.
        """
        images = self._converted(self._rgb(x.detach()).float().cpu())
        is_read = any(stage._forward_hooks for stage in self.stages)
        wanted = [self._content["features"], *(self._content["stages"] if is_read else ())]
        run = self._node if _as_nodes.get() else self._run
        # Not less precise than the images: a model in float64 shows what the layers behind the graph lose in float32.
        kind = torch.promote_types(x.dtype, torch.float32)
        features, *maps = (value.to(x.device, kind) for value in run(images, wanted))
        for stage, pixels in zip(self.stages, maps, strict=False):
            stage(pixels)
        return features.flatten(1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Another graph may come with the weights: that of the file from which an embedding was begun.
        value = state_dict.get(f"{prefix}graph")
        if isinstance(value, Tensor) and not torch.equal(value.cpu(), self.graph.cpu()):
            self._sessions = _Sessions(bytes(value.cpu().numpy().tobytes()))
            self._content = self._sessions.content
            self.graph = torch.empty_like(value, device=self.graph.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _run(self, images: Tensor, wanted: list[str]) -> list[Tensor]:
        batch = self._content["batch"]
        if not batch or len(images) == batch:
            return [torch.from_numpy(value) for value in self._sessions.run(images.numpy(), wanted)]
        # A graph for a fixed number of images gets them in parts, the last one filled up.
        parts = []
        for part in images.split(batch):
            filled = torch.cat([part, part[:1].expand(batch - len(part), -1, -1, -1)])
            found = self._sessions.run(filled.numpy(), wanted)
            parts.append([torch.from_numpy(value)[: len(part)] for value in found])
        return [torch.cat(values) for values in zip(*parts, strict=True)]

    def _node(self, images: Tensor, wanted: list[str]) -> list[Tensor]:
        blank = np.zeros((self._content["batch"] or 1, *images.shape[1:]), self._content["dtype"])
        shapes = [(images.shape[0], *value.shape[1:]) for value in self._sessions.run(blank, wanted)]
        return list(
            torch.onnx.ops.symbolic_multi_out(
                f"{NODE_DOMAIN}::{NODE_NAME}",
                (images, self.graph),
                dtypes=[torch.float32] * len(shapes),
                shapes=shapes,
                version=1,
            )
        )

    def _converted(self, images: Float[Tensor, "n 3 H W"]) -> Tensor:
        if self._content["channels_last"]:
            images = images.permute(0, 2, 3, 1)
        kind = self._content["dtype"]
        if kind == "uint8":
            images = images.round().clamp(0, 255)
        return images.to(getattr(torch, kind)).contiguous()


class _Sessions:
    """The graph as ONNX Runtime runs it: a session for each number of threads that is asked for. Copies share it."""

    def __init__(self, graph: bytes) -> None:
        self._graph = graph
        self._lock = threading.Lock()
        self._open: dict[int, Any] = {}
        try:
            self._runtime = import_module("onnxruntime")
        except ImportError as error:
            raise ImportError(f"onnx: needs ONNX Runtime ({error}); pip install 'momatch[onnx]'") from error
        found = self._session().get_modelmeta().custom_metadata_map
        if CONTENT not in found:
            raise ValueError(
                "the ONNX graph has no description, expected one that momatch prepared; is the file damaged?"
            )
        self.content: dict[str, Any] = json.loads(found[CONTENT])

    def run(self, images: np.ndarray, wanted: list[str]) -> list[np.ndarray]:
        session = self._session()
        options = self._runtime.RunOptions()
        options.only_execute_path_to_fetches = True
        found: list[np.ndarray] = session.run(wanted, {session.get_inputs()[0].name: images}, options)
        return found

    def _session(self) -> Any:
        # torch's number of threads is that of the calling thread: one, where several run a batch each.
        threads = torch.get_num_threads()
        with self._lock:
            if threads not in self._open:
                settings = self._runtime.SessionOptions()
                settings.intra_op_num_threads = threads
                settings.log_severity_level = 3
                try:
                    self._open[threads] = self._runtime.InferenceSession(
                        self._graph, settings, providers=["CPUExecutionProvider"]
                    )
                except Exception as error:
                    raise ValueError(f"ONNX Runtime cannot load the graph: {str(error).splitlines()[0]}") from error
            return self._open[threads]

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Sessions":
        return self
