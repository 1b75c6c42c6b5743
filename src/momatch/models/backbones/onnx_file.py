"""Prepare an ONNX file as a backbone: which output holds the features, which show the stages, what its input takes.

ONNX has no common place for the normalisation of images. In this order, the file declares it
- by a preprocessor_config.json beside it, as exporters of transformers write,
- by the image metadata of the ONNX standard (``Image.NominalPixelRange``),
- by itself, if it does arithmetic on its input before the first layer with weights: then it takes pixels from 0 to 1,
- otherwise it takes ImageNet's mean and standard deviation.

The stages are the maps that the file has as further outputs. Without any they are chosen among all maps in the graph, as in a
torch network (`momatch.outliers.stages`). Whole maps would be slow to hand over, so nodes are added that reduce each to two
pixels with the same mean and deviation in every channel.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from momatch.models.backbones.base import Declared
from momatch.outliers.stages import MAX_CHANNELS, choose_maps

#: Key of the metadata that says what the graph holds.
CONTENT = "momatch.backbone"
#: The input size of a graph that takes any.
DEFAULT_SIZE = 224
#: The ranges of the ONNX standard that are supported.
_RANGES = {
    "NominalRange_0_255": ((0.0,) * 3, (1 / 255,) * 3),
    "Normalized_0_1": ((0.0,) * 3, (1.0,) * 3),
    "Normalized_1_1": ((0.5,) * 3, (0.5,) * 3),
}
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_ARITHMETIC = frozenset({"Sub", "Add", "Mul", "Div", "BatchNormalization", "InstanceNormalization"})
_WITH_WEIGHTS = frozenset({"Conv", "Gemm", "MatMul", "ConvInteger", "QLinearConv"})
#: Nodes whose outputs may be stages; the others reshape, or are parts of an activation.
_LAYERS = frozenset({"Conv", "Relu", "LeakyRelu", "PRelu", "Clip", "HardSwish", "Add", "Concat", "LayerNormalization"})
#: Slices and reductions are written in the form of these opsets.
_OLDEST_OPSET = 13
_AXES_AS_INPUT = 18
#: Protocol buffers cannot be larger.
_MOST_BYTES = 2**31 - 1


def onnx_declared(path: str) -> Declared:
    """What an ONNX file declares about its input.

    Raises:
        ImportError: if onnx is not installed.
        ValueError: if it cannot be read, or has no image input.
    """
    model = _load(path)
    return _declared(model, _Input(path, model), Path(path).expanduser())


def prepared_graph(path: str) -> bytes:
    """The graph with one output of features and the stages behind it, and what it takes in its metadata.

    Raises:
        ImportError: if onnx is not installed.
        ValueError: if it cannot be read, or has no image input or not exactly one output of features.
    """
    onnx = _onnx()
    model = _load(path)
    source = _Input(path, model)
    declared = _declared(model, source, Path(path).expanduser())
    size = source.size or declared.size
    shapes = _shapes(model, source, size)
    features = _features(path, [output.name for output in model.graph.output], shapes)
    stages = _stages(model, shapes, features)
    (kind,) = (output.type.tensor_type.elem_type for output in model.graph.output if output.name == features)
    if kind != onnx.TensorProto.FLOAT:
        model.graph.node.append(
            onnx.helper.make_node("Cast", [features], ["momatch_features"], to=onnx.TensorProto.FLOAT)
        )
        features = "momatch_features"
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(features, onnx.TensorProto.FLOAT, None))
    reduced = [_reduce(model, name, shapes[name], number) for number, name in enumerate(stages)]
    content = {
        "features": features,
        "stages": reduced,
        "stage_names": list(stages),
        "size": size,
        "fixed": source.size is not None,
        "batch": source.batch,
        "channels_last": source.channels_last,
        "dtype": source.dtype,
        "normalization": declared.normalization,
    }
    onnx.helper.set_model_props(model, {CONTENT: json.dumps(content)})
    data: bytes = model.SerializeToString()
    return data


def _onnx() -> Any:
    try:
        import_module("onnxruntime")
        import_module("onnx.shape_inference")
        return import_module("onnx")
    except ImportError as error:
        raise ImportError(f"onnx: needs more packages ({error}); pip install 'momatch[onnx]'") from error


def _load(path: str) -> Any:
    onnx = _onnx()
    place = Path(path).expanduser()
    if not place.is_file():
        raise ValueError(f"backbone: got 'onnx:{path}', but there is no such file, expected an ONNX graph")
    try:
        model = onnx.load(str(place))
    except Exception as error:
        # protobuf, onnx and the file system each raise their own errors.
        raise ValueError(f"{path}: cannot be read as an ONNX graph ({type(error).__name__}: {error})") from error
    if not model.graph.node:
        raise ValueError(f"{path}: cannot be read as an ONNX graph (it has no nodes)")
    if model.ByteSize() > _MOST_BYTES:
        raise ValueError(f"{path}: got a graph of more than 2 GB, expected less: it must fit in one file")
    return model


class _Input:
    """The image input of a graph.

    Raises:
        ValueError: if there is none, or not only one.
    """

    def __init__(self, path: str, model: Any) -> None:
        onnx = _onnx()
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in constants]
        shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inputs]
        if len(inputs) != 1 or len(shapes[0]) != 4:
            got = ", ".join(f"{value.name} {shape}" for value, shape in zip(inputs, shapes, strict=True))
            raise ValueError(
                f"{path}: got the inputs {got or 'none'}, expected one of images, (n, 3, H, W) or (n, H, W, 3)"
            )
        kinds = {
            onnx.TensorProto.FLOAT: "float32",
            onnx.TensorProto.FLOAT16: "float16",
            onnx.TensorProto.UINT8: "uint8",
        }
        kind = inputs[0].type.tensor_type.elem_type
        if kind not in kinds:
            raise ValueError(
                f"{path}: got an input of {onnx.TensorProto.DataType.Name(kind)}, expected FLOAT, FLOAT16 or UINT8"
            )
        self.value = inputs[0]
        self.name: str = inputs[0].name
        self.dtype = kinds[kind]
        batch, *rest = shapes[0]
        self.batch: int = batch  # 0 for any
        self.channels_last = rest[2] == 3 and rest[0] != 3
        channels = rest[2] if self.channels_last else rest[0]
        height, width = rest[:2] if self.channels_last else rest[1:]
        if channels not in (0, 3):
            raise ValueError(f"{path}: got an input of {channels} channels, expected 3")
        if height != width and height and width:
            raise ValueError(f"{path}: got an input of {height} x {width} pixels, expected a square or any size")
        self.size: int | None = height or width or None

    def images(self, size: int) -> np.ndarray:
        """Gray images to try the graph on."""
        n = self.batch or 2
        shape = (n, size, size, 3) if self.channels_last else (n, 3, size, size)
        noise = np.random.default_rng(0).random(shape, np.float32)
        return (255 * noise).astype(np.uint8) if self.dtype == "uint8" else noise.astype(self.dtype)


def _declared(model: Any, source: _Input, path: Path) -> Declared:
    beside = path.parent / "preprocessor_config.json"
    size = source.size or DEFAULT_SIZE
    if source.dtype == "uint8":
        return Declared(size, _RANGES["NominalRange_0_255"])
    if beside.is_file():
        try:
            found = json.loads(beside.read_text("utf-8"))
            mean, std = (tuple(map(float, found[key])) for key in ("image_mean", "image_std"))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{beside}: cannot be read ({error!r}), expected image_mean and image_std") from error
        return Declared(size, (mean, std))
    properties = {entry.key: entry.value for entry in model.metadata_props}
    declared = properties.get("Image.NominalPixelRange")
    if declared in _RANGES:
        return Declared(size, _RANGES[declared])
    return Declared(size, _RANGES["Normalized_0_1"] if _normalises(model, source.name) else _IMAGENET)


def _normalises(model: Any, name: str) -> bool:
    """Whether a graph does arithmetic on its input before the first layer with weights."""
    seen = {name}
    for node in model.graph.node:
        if seen.isdisjoint(node.input):
            continue
        if node.op_type in _WITH_WEIGHTS:
            return False
        if node.op_type in _ARITHMETIC:
            return True
        seen.update(node.output)
    return False


def _shapes(model: Any, source: _Input, size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the graph's maps and outputs for two images, in the order in which they are computed.

    Raises:
        ValueError: if the graph does not run.
    """
    onnx, runtime = _onnx(), import_module("onnxruntime")
    wider = onnx.ModelProto()
    wider.CopyFrom(model)
    outputs = [output.name for output in model.graph.output]
    images = source.images(size)
    if any(entry.domain == "" and entry.version >= _OLDEST_OPSET for entry in model.opset_import):
        # Shapes are inferred first, so that only maps are handed over, not every intermediate result.
        fixed = onnx.helper.make_tensor_value_info(
            source.name, source.value.type.tensor_type.elem_type, list(images.shape)
        )
        wider.graph.input[list(model.graph.input).index(source.value)].CopyFrom(fixed)
        for output in wider.graph.output:
            output.type.tensor_type.ClearField("shape")
        inferred = onnx.shape_inference.infer_shapes(wider).graph
        layers = {name for node in model.graph.node if node.op_type in _LAYERS for name in node.output}
        maps = [
            value for value in inferred.value_info if value.name in layers and _is_map(onnx, value, images.shape[0])
        ]
        wider.graph.output.extend([value for value in maps if value.name not in outputs])
    names = [output.name for output in wider.graph.output]
    try:
        settings = runtime.SessionOptions()
        settings.log_severity_level = 4
        session = runtime.InferenceSession(wider.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        found = dict(zip(names, session.run(names, {source.name: images}), strict=True))
    except Exception as error:
        raise ValueError(
            f"the ONNX graph does not run on images of {size} pixels: {str(error).splitlines()[0]}"
        ) from error
    order = [name for node in model.graph.node for name in node.output]
    return {name: found[name].shape for name in order if name in found}


def _is_map(onnx: Any, value: Any, n: int) -> bool:
    kind = value.type.tensor_type
    dims = [dim.dim_value for dim in kind.shape.dim]
    floating = kind.elem_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    return floating and len(dims) in (3, 4) and dims[0] == n and all(dims)


def _features(path: str, outputs: list[str], shapes: dict[str, tuple[int, ...]]) -> str:
    vectors = [name for name in outputs if len(shapes[name]) > 1 and int(np.prod(shapes[name][2:])) == 1]
    if len(vectors) != 1:
        got = ", ".join(f"{name} {list(shapes[name])}" for name in outputs)
        raise ValueError(f"{path}: got the outputs {got} for two images, expected exactly one of features, (n, F)")
    return vectors[0]


def _stages(model: Any, shapes: dict[str, tuple[int, ...]], features: str) -> tuple[str, ...]:
    """The maps to read: those that the graph has as outputs, otherwise chosen; none if its opset is too old."""
    if not any(entry.domain == "" and entry.version >= _OLDEST_OPSET for entry in model.opset_import):
        return ()
    declared = {output.name for output in model.graph.output} - {features}
    maps = {name: shape for name, shape in shapes.items() if name != features and len(shape) in (3, 4)}
    if declared & set(maps):
        maps = {name: shape for name, shape in maps.items() if name in declared}
        return choose_maps(maps, lambda _: True)
    sums = {name for node in model.graph.node if node.op_type == "Add" for name in node.output}
    return choose_maps(maps, lambda name: name in sums)


def _reduce(model: Any, name: str, shape: tuple[int, ...], number: int) -> str:
    """Add nodes that reduce a map to two pixels with the same mean and deviation in each channel; returns their output."""
    onnx = _onnx()
    graph, make = model.graph, onnx.helper.make_node
    channels, pixels = (1, (2, 3)) if len(shape) == 4 else (2, (1,))

    def named(what: str) -> str:
        return f"momatch_stage{number}_{what}"

    def constant(what: str, *values: int) -> str:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, np.int64), named(what)))
        return named(what)

    def mean_of(source: str, what: str) -> Any:
        if any(entry.domain == "" and entry.version >= _AXES_AS_INPUT for entry in model.opset_import):
            return make("ReduceMean", [source, constant(f"{what}_axes", *pixels)], [named(what)], keepdims=1)
        return make("ReduceMean", [source], [named(what)], keepdims=1, axes=list(pixels))

    thinned, step = name, -(-shape[channels] // MAX_CHANNELS)
    if step > 1:
        bounds = [constant(*pair) for pair in (("from", 0), ("to", 2**31), ("axis", channels), ("step", step))]
        graph.node.append(make("Slice", [name, *bounds], [named("thinned")]))
        thinned = named("thinned")
    graph.node.extend(
        [
            make("Cast", [thinned], [named("map")], to=onnx.TensorProto.FLOAT),
            mean_of(named("map"), "mean"),
            make("Sub", [named("map"), named("mean")], [named("centered")]),
            make("Mul", [named("centered"), named("centered")], [named("squared")]),
            mean_of(named("squared"), "variance"),
            make("Sqrt", [named("variance")], [named("deviation")]),
            make("Sub", [named("mean"), named("deviation")], [named("low")]),
            make("Add", [named("mean"), named("deviation")], [named("high")]),
            make("Concat", [named("low"), named("high")], [named("pixels")], axis=pixels[-1]),
        ]
    )
    graph.output.append(onnx.helper.make_tensor_value_info(named("pixels"), onnx.TensorProto.FLOAT, None))
    return named("pixels")


def as_buffer(graph: bytes) -> torch.Tensor:
    """The bytes of a graph as a tensor, which is saved with the weights."""
    return torch.frombuffer(bytearray(graph), dtype=torch.uint8)
