"""Models with ONNX backbones as one ONNX graph: the backbone's nodes in it say what the backbone says."""

import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from momatch import SavedModel, build_backbone
from momatch.inference.export import export_model, formats, parity
from momatch.inference.export.onnx_backbones import backbone_opset, opset_of, put_in_backbones
from tests.models.small_onnx import write_graph
from tests.training.small_models import random_images, small_model

onnxruntime = pytest.importorskip("onnxruntime")

STAGES = 3
SIDE = 40


def model_around(*backbones, opset=18, stages=STAGES):
    """A graph of nothing but a node for each backbone; outputs of all of them, the images as each one takes them."""
    nodes, weights, outputs = [], [], []
    for number, backbone in enumerate(backbones):
        names = [f"out{number}_{output}" for output in range(1 + stages)]
        weights.append(numpy_helper.from_array(backbone.graph.numpy(), f"graph{number}"))
        nodes.append(helper.make_node("OnnxGraph", ["images", f"graph{number}"], names, domain="momatch"))
        ranks = [2] + [4] * stages
        outputs += [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
            for name, rank in zip(names, ranks, strict=True)
        ]
    kind = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8}
    images = helper.make_tensor_value_info("images", kind[backbones[0]._content["dtype"]], ["n", None, None, None])
    graph = helper.make_graph(nodes, "model", [images], outputs, weights)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("momatch", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run(proto, images):
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [torch.from_numpy(value) for value in session.run(None, {"images": images.numpy()})]


def wanted(backbone, x):
    """Features and stages by the module."""
    maps = {}
    hooks = [
        stage.register_forward_hook(lambda _module, _inputs, out, number=number: maps.update({number: out}))
        for number, stage in enumerate(backbone.stages)
    ]
    features = backbone(x)
    for hook in hooks:
        hook.remove()
    return [features, *maps.values()]


def assert_says_what(backbone, proto, x):
    for n in (1, 2, 7):
        found = run(proto, backbone._converted(backbone._rgb(x[:n])))
        expected = wanted(backbone, x[:n])
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.reshape(other.shape), other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def x():
    return torch.rand(7, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"outputs": ("stage0", "stage1", "stage2")},
        {"shape": ["n", 3, SIDE, SIDE]},
        {"shape": [1, 3, SIDE, SIDE]},  # one at a time
        {"shape": [2, 3, "h", "w"]},
        {"shape": [5, 3, SIDE, SIDE]},  # parts of five, the last one filled up
        {"shape": [3, SIDE, SIDE, 3], "channels_last": True},
        {"kind": TensorProto.UINT8},
        {"kind": TensorProto.FLOAT16},
        {"before": "Sub"},
    ],
)
def test_every_kind_of_input(tmp_path, x, changes):
    backbone = build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx', **changes)}", image_size=SIDE)
    proto = model_around(backbone)
    put_in_backbones(proto)
    assert {entry.domain for entry in proto.opset_import} == {""}
    assert_says_what(backbone, proto, 255 * x if changes.get("kind") == TensorProto.UINT8 else x)


@pytest.mark.parametrize("target", [18, 21])
@pytest.mark.parametrize("opset", [9, 11, 13, 17, 18])
def test_opsets_are_converted(tmp_path, x, opset, target):
    backbone = build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx', opset=opset)}", image_size=SIDE)
    proto = model_around(backbone, opset=target, stages=len(backbone.stages))
    put_in_backbones(proto)
    assert opset_of(proto) == target
    assert_says_what(backbone, proto, x)


def test_two_graphs_and_one_twice(tmp_path, x):
    one = build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx')}", image_size=SIDE)
    other = build_backbone(f"onnx:{write_graph(tmp_path / 'b.onnx', before='Sub')}", image_size=SIDE)
    proto = model_around(one, other, one)
    put_in_backbones(proto)
    found = run(proto, x)
    for number, backbone in enumerate((one, other, one)):
        for got, expected in zip(found[number * (1 + STAGES) :], wanted(backbone, x), strict=False):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_what_is_not_read_is_left_out(tmp_path, x):
    backbone = build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx')}", image_size=SIDE)
    proto = model_around(backbone, stages=0)
    put_in_backbones(proto)
    assert not [node for node in proto.graph.node if node.op_type == "ReduceMean"]
    names = [tensor.name for tensor in proto.graph.initializer]
    assert names == ["backbone1.kernel0", "backbone1.kernel1", "backbone1.kernel2", "backbone1.matrix"]
    torch.testing.assert_close(run(proto, x)[0], backbone(x), rtol=1e-4, atol=1e-5)


def changed(path, change):
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def halve(model):
    """Kernels in half precision, as of a file made small."""
    for tensor in model.graph.initializer:
        if tensor.name.startswith("kernel"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for number in range(3):
        (conv,) = (node for node in model.graph.node if node.output[0] == f"conv{number}")
        conv.input[1] = f"wide{number}"
        model.graph.node.insert(
            0, helper.make_node("Cast", [f"kernel{number}"], [f"wide{number}"], to=TensorProto.FLOAT)
        )


def compute_in_half(model):
    """All of the network in half precision, its images and features too."""
    del model.graph.node[0]
    model.graph.node[0].input[0] = "images"
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16


@pytest.mark.parametrize("shape", [["n", 3, SIDE, SIDE], [2, 3, SIDE, SIDE]])
def test_a_network_in_half_precision(tmp_path, x, shape):
    path = changed(write_graph(tmp_path / "a.onnx", shape=shape, kind=TensorProto.FLOAT16), compute_in_half)
    backbone = build_backbone(f"onnx:{path}", image_size=SIDE)
    assert backbone(x).dtype == torch.float32
    proto = model_around(backbone)
    put_in_backbones(proto)
    assert_says_what(backbone, proto, x)


def test_half_precision_stays(tmp_path, x):
    path = changed(write_graph(tmp_path / "a.onnx", opset=17), halve)
    backbone = build_backbone(f"onnx:{path}", image_size=SIDE)
    proto = model_around(backbone)
    put_in_backbones(proto)
    kernels = [tensor.data_type for tensor in proto.graph.initializer if "kernel" in tensor.name]
    assert kernels == [TensorProto.FLOAT16] * 3
    assert_says_what(backbone, proto, x)


def branch(model):
    """A branch that reads a weight and a value of the graph around it."""
    then, other = (
        helper.make_graph(
            [helper.make_node("MatMul", ["flat", "matrix"], [name])] if name == "then_features" else
            [helper.make_node("Constant", [], [name], value_float=0.0)],
            name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name in ("then_features", "other_features")
    )  # fmt: skip
    del model.graph.node[-1]
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["features"], then_branch=then, else_branch=other))


def call(model):
    """The last layer as a function of the file's own."""
    node = model.graph.node[-1]
    node.op_type, node.domain = "Last", "own"
    body = [helper.make_node("MatMul", ["values", "weights"], ["result"])]
    model.functions.append(
        helper.make_function("own", "Last", ["values", "weights"], ["result"], body, [helper.make_opsetid("", 18)])
    )
    model.opset_import.append(helper.make_opsetid("own", 1))


def as_inputs(model):
    """Weights that are listed as inputs too, as in old files."""
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer
    )


@pytest.mark.parametrize("change", [branch, call, as_inputs])
@pytest.mark.parametrize("shape", [["n", 3, SIDE, SIDE], [2, 3, SIDE, SIDE]])
def test_branches_functions_and_old_files(tmp_path, x, change, shape):
    path = changed(write_graph(tmp_path / "a.onnx", shape=shape), change)
    backbone = build_backbone(f"onnx:{path}", image_size=SIDE)
    proto = model_around(backbone)
    put_in_backbones(proto)
    assert not proto.functions
    assert_says_what(backbone, proto, x)


def test_weights_in_a_second_file(tmp_path, x):
    model = onnx.load(write_graph(tmp_path / "a.onnx"))
    path = tmp_path / "b.onnx"
    onnx.save(model, path, save_as_external_data=True, location="b.data", size_threshold=0)
    backbone = build_backbone(f"onnx:{path}", image_size=SIDE)
    (tmp_path / "b.data").unlink()
    proto = model_around(backbone)
    put_in_backbones(proto)
    assert_says_what(backbone, proto, x)
    with pytest.raises(ValueError, match=r"b\.onnx: cannot be read as an ONNX graph.*b\.data"):
        build_backbone(f"onnx:{path}")


def test_a_graph_that_cannot_be_converted(tmp_path):
    backbone = build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx')}", image_size=SIDE)
    old = onnx.load_from_string(backbone.graph.numpy().tobytes())
    old.opset_import[0].version = 1  # its nodes are not of that version
    backbone.graph = torch.frombuffer(bytearray(old.SerializeToString()), dtype=torch.uint8)
    with pytest.raises(
        ValueError, match=r"graph of opset 1, .*cannot convert to opset 18: .*again with opset 18.*--to folder"
    ):
        put_in_backbones(model_around(backbone))


def test_operators_of_two_versions(tmp_path):
    path = changed(
        write_graph(tmp_path / "a.onnx"),
        lambda model: model.opset_import.append(helper.make_opsetid("com.microsoft", 1)),
    )
    backbone = build_backbone(f"onnx:{path}", image_size=SIDE)
    proto = model_around(backbone)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 2))
    with pytest.raises(ValueError, match=r"versions 2 and 1 of the operators 'com\.microsoft', expected one"):
        put_in_backbones(proto)


def model_with(path, also="", **facts):
    return small_model(
        backbone=f"onnx:{path}{also}", in_channels=3, image_size=(SIDE, SIDE - 4), normalization=None, **facts
    )


MODELS = {
    "side by side, an older opset, in parts, made smaller": (
        {"opset": 13, "shape": [1, 24, 24, 3], "channels_last": True}, ",cnn-tiny", {},
    ),
    "two files at once": ({"before": "Sub"}, ",onnx:OTHER", {}),
    "in parts, enlarged": ({"shape": [5, 3, 64, 64]}, "", {}),
    "features alone": ({"opset": 11}, "", {}),
    "judged by the head": ({"kind": TensorProto.UINT8}, "", {"judged": False}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("graph", "also", "facts"),
    [
        pytest.param(*values, id=name, marks=() if name.startswith("side") else pytest.mark.slow)
        for name, values in MODELS.items()
    ],
)
def test_from_pixels_to_predictions(tmp_path, monkeypatch, graph, also, facts):
    monkeypatch.setattr(parity, "COUNT", 12)
    path = write_graph(tmp_path / "a.onnx", **graph)
    other = write_graph(tmp_path / "b.onnx", opset=20)
    model = model_with(path, also.replace("OTHER", str(other)), **facts)
    # What is exported is in the model: the file is not needed again.
    model.save_pretrained(tmp_path / "folder")
    path.unlink()
    exported = export_model(SavedModel.from_pretrained(tmp_path / "folder"), tmp_path / "model.onnx")
    assert f"(opset {20 if 'OTHER' in also else 18})" in exported.runner
    proto = onnx.load(exported.path)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    for n in (1, 3, 12):
        images = random_images(model.spec, n, seed=n)
        names = ("label", "posterior", "log_density", "distance", "outlier_score", "p_value")
        scores = model.predict(images)
        for name, value in zip(names, session.run(list(names), {"images": images.numpy()}), strict=True):
            expected = getattr(scores, "labels" if name == "label" else name)
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4, err_msg=name)


def test_what_is_refused(tmp_path, monkeypatch):
    model = model_with(write_graph(tmp_path / "a.onnx", opset=20))
    out = tmp_path / "model"
    assert backbone_opset(model) == 20
    with pytest.raises(ValueError, match=r"got an ONNX graph, which torch\.export cannot hold.*--to onnx"):
        export_model(model, out, to="torch")
    with pytest.raises(ValueError, match="opset: got 18, expected at least 20, that of the ONNX backbone"):
        export_model(model, out, opset=18)
    monkeypatch.setattr(formats, "trace", lambda model: None)
    for limit, opset, message in [
        (2**31, 18, "translates to opset 18, expected 20, that of the ONNX backbone; write the backbone's file again"),
        (1000, 20, "got a graph of more than 2 GB, expected less"),
    ]:
        monkeypatch.setattr(formats, "MOST_BYTES", limit)
        translated = model_around(model.classifier.backbone, opset=opset)
        monkeypatch.setattr(formats, "_translate", lambda program, opset, translated=translated: translated)
        with pytest.raises(ValueError, match=message):
            export_model(model, out)
    monkeypatch.setitem(sys.modules, "torch.onnx.ops", None)
    with pytest.raises(ImportError, match=r"needs torch 2\.8 or later, got .*pip install -U torch"):
        export_model(model, out)
    assert not out.exists()


def test_only_a_translation_sees_nodes(tmp_path):
    """Anyone else who traces the backbone is told that it cannot be: a node computes nothing in torch."""
    backbone = build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx')}", image_size=SIDE)
    with pytest.raises(RuntimeError):
        torch.export.export(backbone, (torch.rand(2, 3, SIDE, SIDE),))
