"""ONNX backbones in an ONNX export: their graphs, in place of the nodes that stand for them in the traced model.

A graph is brought to the opset of the export, its names get a prefix, and of its nodes and weights those are taken that the
wanted outputs need. Weights stay as they are in the file, in half precision too. A graph for a fixed number of images becomes
the body of a Scan over parts of the batch, the last one filled up.
"""

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from momatch.models.backbones import OnnxGraph
from momatch.models.backbones.onnx_file import CONTENT
from momatch.models.backbones.onnx_graph import NODE_DOMAIN, NODE_NAME
from momatch.models.saved_model import SavedModel

#: Names of the standard's own operators.
_STANDARD = ("", "ai.onnx")


def opset_of(proto: Any) -> int:
    """The version of the standard's operators that a graph uses; 0 if it uses none."""
    return max((entry.version for entry in proto.opset_import if entry.domain in _STANDARD), default=0)


def backbone_opset(model: SavedModel) -> int:
    """The latest opset among the model's ONNX backbones; 0 if it has none."""
    graphs = (part.graph for part in model.classifier.modules() if isinstance(part, OnnxGraph))
    return max((opset_of(_read(graph.cpu().numpy().tobytes())) for graph in graphs), default=0)


def put_in_backbones(proto: Any) -> None:
    """Replace the nodes that stand for ONNX backbones by their graphs, in place.

    Args:
        proto: the translated model.

    Raises:
        ValueError: if a graph cannot be converted to the model's opset, or uses other versions of further operators.
    """
    graph = proto.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes, bytes_of_graphs = [], []
    for node in graph.node:
        if (node.domain, node.op_type) != (NODE_DOMAIN, NODE_NAME):
            nodes.append(node)
            continue
        images, weights = node.input
        bytes_of_graphs.append(weights)
        backbone = _Backbone(stored[weights], opset_of(proto), prefix=f"backbone{len(bytes_of_graphs)}.")
        new, constants = backbone.nodes(images, list(node.output))
        nodes.extend(new)
        graph.initializer.extend(constants)
        _import(proto, backbone.model)
    if not bytes_of_graphs:
        return
    kept = [tensor for tensor in graph.initializer if tensor.name not in bytes_of_graphs]
    for field, values in ((graph.node, nodes), (graph.initializer, kept)):
        del field[:]
        field.extend(values)
    others = [entry for entry in proto.opset_import if entry.domain != NODE_DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(others)


class _Backbone:
    """The graph of a backbone, ready to be put into another.

    Args:
        weights: the initializer that holds its bytes.
        opset: of the other graph.
        prefix: of all names.

    Raises:
        ValueError: if it cannot be converted to that opset.
    """

    def __init__(self, weights: Any, opset: int, *, prefix: str) -> None:
        self._onnx, self._prefix = import_module("onnx"), prefix
        model = _read(self._onnx.numpy_helper.to_array(weights).tobytes())
        self._content = json.loads(next(entry.value for entry in model.metadata_props if entry.key == CONTENT))
        self.model = _converted(model, opset)
        _rename(self.model.graph, prefix)

    def nodes(self, images: str, outputs: list[str]) -> tuple[list[Any], list[Any]]:
        """The nodes from the images to the outputs, and the constants that they need."""
        graph = self.model.graph
        constants = {tensor.name for tensor in graph.initializer}
        (source,) = (value for value in graph.input if value.name not in constants)
        wanted = [self._prefix + name for name in (self._content["features"], *self._content["stages"])]
        nodes, weights = _needed(graph, wanted[: len(outputs)])
        make = self._onnx.helper.make_node
        inner = [f"{name}.part" for name in wanted[: len(outputs)]] if self._content["batch"] else outputs
        ends = [make("Identity", [name], [new]) for name, new in zip(wanted, inner, strict=False)]
        if not self._content["batch"]:
            return [make("Identity", [images], [source.name]), *nodes, *ends], weights
        found = [self._onnx.helper.make_tensor_value_info(name, self._onnx.TensorProto.FLOAT, None) for name in inner]
        body = self._onnx.helper.make_graph([*nodes, *ends], f"{self._prefix}part", [source], found, weights)
        return self._in_parts(body, images, outputs)

    def _in_parts(self, body: Any, images: str, outputs: list[str]) -> tuple[list[Any], list[Any]]:
        """The images in parts of a fixed number, the last filled up with its last image; the rest is cut off again."""
        make, named = self._onnx.helper.make_node, (self._prefix + "parts.{}").format
        batch: int = self._content["batch"]
        values = {"zero": 0, "one": 1, "start": [0], "batch": [batch], "less": [batch - 1]}
        values |= {"any": [-1], "last": [1], "any_batch": [-1, batch]}
        constants = [
            self._onnx.numpy_helper.from_array(np.array(value, np.int64), named(name)) for name, value in values.items()
        ]

        def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
            return make(kind, [named(name) for name in inputs.split()], [named(output)], **attributes)

        parts = [f"{name}.parts" for name in outputs]
        nodes = [
            make("Shape", [images], [named("n")], start=0, end=1),
            node("Add", "n less", "n_less"),
            node("Div", "n_less batch", "count"),
            node("Mul", "count batch", "filled"),
            node("Squeeze", "filled", "end"),
            node("Range", "zero end one", "all_rows"),
            node("Sub", "n last", "last_row"),
            node("Min", "all_rows last_row", "rows"),
            make("Gather", [images, named("rows")], [named("images")], axis=0),
            make("Shape", [images], [named("image_shape")], start=1),
            node("Concat", "any_batch image_shape", "split_shape", axis=0),
            node("Reshape", "images split_shape", "split"),
            make("Scan", [named("split")], parts, body=body, num_scan_inputs=1),
        ]
        for number, (part, output) in enumerate(zip(parts, outputs, strict=True)):
            nodes += [
                make("Shape", [part], [named(f"shape{number}")], start=2),
                node("Concat", f"any shape{number}", f"joined_shape{number}", axis=0),
                make("Reshape", [part, named(f"joined_shape{number}")], [named(f"joined{number}")]),
                make("Slice", [named(f"joined{number}"), named("start"), named("n"), named("start")], [output]),
            ]
        return nodes, constants


def _read(data: bytes) -> Any:
    return import_module("onnx").load_from_string(data)


def _converted(model: Any, opset: int) -> Any:
    own = opset_of(model)
    if model.functions:
        model = import_module("onnx.inliner").inline_local_functions(model)
    if own in (0, opset):
        return model
    try:
        return import_module("onnx.version_converter").convert_version(model, opset)
    except Exception as error:
        # The converter raises errors of several kinds.
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"backbone: got an ONNX graph of opset {own}, which onnx cannot convert to opset {opset}: {cause}; write the "
            f"backbone's file again with opset {opset} and train with it, or share the model as it is (--to folder)"
        ) from error


def _rename(graph: Any, prefix: str) -> None:
    """Put a prefix before all names. Shapes are left out: the names of their sizes mean other sizes in another graph."""
    del graph.value_info[:]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = prefix + value.name
    for node in graph.node:
        node.name = prefix + node.name if node.name else ""
        for names in (node.input, node.output):
            names[:] = [prefix + name if name else "" for name in names]
        for inner in _inner(node):
            _rename(inner, prefix)


def _needed(graph: Any, wanted: Iterable[str]) -> tuple[list[Any], list[Any]]:
    """The nodes and weights that the wanted values need."""
    read, nodes = set(wanted), []
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            nodes.append(node)
            read.update(_reads(node))
    return nodes[::-1], [tensor for tensor in graph.initializer if tensor.name in read]


def _reads(node: Any) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for graph in _inner(node):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from _reads(inner)


def _inner(node: Any) -> Iterator[Any]:
    """The graphs inside a node: branches and bodies of loops."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def _import(proto: Any, other: Any) -> None:
    proto.ir_version = max(proto.ir_version, other.ir_version)
    known = {entry.domain: entry.version for entry in proto.opset_import}
    for entry in other.opset_import:
        if entry.domain in _STANDARD:
            continue
        if known.setdefault(entry.domain, entry.version) != entry.version:
            raise ValueError(
                f"backbones: got ONNX graphs with versions {known[entry.domain]} and {entry.version} of the operators "
                f"{entry.domain!r}, expected one; share the model as it is (--to folder)"
            )
    del proto.opset_import[:]
    make = import_module("onnx").helper.make_opsetid
    proto.opset_import.extend(make(domain, version) for domain, version in known.items())
