"""Small real ONNX graphs for the tests."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Features of the graphs.
F = 6


def write_graph(path: Path, **changes: object) -> Path:
    """Three convolutions of stride 2, a global mean and a linear layer.

    Args:
        path: file to write.
        changes: `opset`; `shape` of the input; `before`, a node put before the network; `channels_last`; `outputs`, maps that
            are outputs as well; `kind`, the input's type; `metadata`.
    """
    options = {"opset": 18, "shape": ["n", 3, "h", "w"], "before": None, "channels_last": False, "outputs": ()}
    options |= {"kind": TensorProto.FLOAT, "metadata": {}} | changes
    rng = np.random.default_rng(0)
    weights, nodes, last = [], [], "images"

    def constant(name, value):
        weights.append(numpy_helper.from_array(value, name))
        return name

    if options["channels_last"]:
        nodes.append(helper.make_node("Transpose", [last], ["first"], perm=[0, 3, 1, 2]))
        last = "first"
    if options["kind"] != TensorProto.FLOAT:
        nodes.append(helper.make_node("Cast", [last], ["floating"], to=TensorProto.FLOAT))
        last = "floating"
    if options["before"]:
        half = constant("half", np.float32(0.5))
        nodes.append(helper.make_node(options["before"], [last, half], ["normalised"]))
        last = "normalised"
    channels = 3
    for stage in range(3):
        wide = 4 * 2**stage
        kernel = constant(f"kernel{stage}", rng.normal(0, 0.3, (wide, channels, 3, 3)).astype(np.float32))
        nodes.append(helper.make_node("Conv", [last, kernel], [f"conv{stage}"], strides=[2, 2], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"conv{stage}"], [f"stage{stage}"]))
        last, channels = f"stage{stage}", wide
    matrix = constant("matrix", rng.normal(0, 1, (channels, F)).astype(np.float32))
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    nodes.append(helper.make_node("MatMul", ["flat", matrix], ["features"]))
    images = helper.make_tensor_value_info("images", options["kind"], options["shape"])
    outputs = [helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, None])]
    outputs += [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * (2 if name == "flat" else 4))
        for name in options["outputs"]
    ]
    graph = helper.make_graph(nodes, "small", [images], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", options["opset"])], ir_version=9)
    helper.set_model_props(model, options["metadata"])
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
