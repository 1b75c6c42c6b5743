"""ONNX files as backbones: features, normalisation, stages, and that a saved model holds the whole graph."""

import copy
import json

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto

from momatch import build_backbone
from momatch.models.backbones import input_size_of
from momatch.outliers.stages import StageReader, find_stages, statistics
from tests.models.small_onnx import F, write_graph

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture
def images():
    return torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_features_are_those_of_onnx_runtime(tmp_path, images):
    path = write_graph(tmp_path / "a.onnx")
    backbone = build_backbone(f"onnx:{path}", image_size=64)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"images": images.numpy()})
    np.testing.assert_allclose(backbone(images).numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert (backbone.num_features, backbone.input_size) == (F, 224)
    assert not list(backbone.parameters())  # frozen
    assert not backbone(images.requires_grad_()).requires_grad


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
@pytest.mark.parametrize("outputs", [(), ("stage0", "stage1", "stage2")])
def test_stages_have_the_statistics_of_the_whole_maps(tmp_path, images, opset, outputs):
    path = write_graph(tmp_path / "a.onnx", opset=opset, outputs=outputs)
    backbone = build_backbone(f"onnx:{path}", image_size=64)
    names = find_stages(backbone, images)
    assert names == ("stages.0", "stages.1", "stages.2")
    features, found = StageReader(backbone, names)(images)
    assert torch.equal(features, backbone(images))
    whole = write_graph(tmp_path / "whole.onnx", outputs=("stage0", "stage1", "stage2"))
    _, *maps = onnxruntime.InferenceSession(whole).run(None, {"images": images.numpy()})
    wanted = torch.cat([statistics(torch.from_numpy(each)) for each in maps], 1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_graph_of_an_old_opset_has_features_alone(tmp_path, images):
    backbone = build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx', opset=11)}", image_size=64)
    assert find_stages(backbone, images) == ()
    features, found = StageReader(backbone, ())(images)
    assert torch.equal(features, found)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, IMAGENET),
        ({"before": "Sub"}, ((0.0,) * 3, (1.0,) * 3)),  # it normalises itself
        ({"metadata": {"Image.NominalPixelRange": "Normalized_1_1"}}, ((0.5,) * 3, (0.5,) * 3)),
        ({"metadata": {"Image.NominalPixelRange": "NominalRange_0_255"}}, ((0.0,) * 3, (1 / 255,) * 3)),
        ({"kind": TensorProto.UINT8}, ((0.0,) * 3, (1 / 255,) * 3)),
    ],
)
def test_normalization(tmp_path, changes, expected):
    assert build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx', **changes)}").normalization == expected


def test_normalization_from_the_file_beside(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1] * 3, "image_std": [0.2] * 3}))
    path = write_graph(tmp_path / "a.onnx")
    assert build_backbone(f"onnx:{path}").normalization == ((0.1,) * 3, (0.2,) * 3)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"preprocessor_config\.json: cannot be read"):
        build_backbone(f"onnx:{path}")


def test_other_layouts_give_the_same_features(tmp_path, images):
    plain = build_backbone(f"onnx:{write_graph(tmp_path / 'a.onnx')}", image_size=64)
    path = write_graph(tmp_path / "b.onnx", shape=["n", "h", "w", 3], channels_last=True)
    torch.testing.assert_close(build_backbone(f"onnx:{path}", image_size=64)(images), plain(images))
    path = write_graph(tmp_path / "c.onnx", shape=[2, 3, 64, 64])  # two at a time, of one size
    fixed = build_backbone(f"onnx:{path}", image_size=48)
    assert input_size_of(f"onnx:{path}") == fixed.input_size == 64
    torch.testing.assert_close(fixed(images), plain(images))
    assert fixed(images[:, :, :48, :48]).shape == (5, F)  # resized inside
    pixels = build_backbone(f"onnx:{write_graph(tmp_path / 'd.onnx', kind=TensorProto.UINT8)}", image_size=64)
    raw = (images * 255).round()
    torch.testing.assert_close(pixels(raw), plain(raw), rtol=1e-4, atol=1e-3)


def test_gray_images_are_as_if_they_were_rgb(tmp_path, images):
    path = write_graph(tmp_path / "a.onnx")
    gray, rgb = build_backbone(f"onnx:{path}", 1, image_size=64), build_backbone(f"onnx:{path}", 3, image_size=64)
    mean, std = (torch.tensor(values)[:, None, None] for values in IMAGENET)
    one = images[:, :1]
    torch.testing.assert_close(gray((one - mean[0]) / std[0]), rgb((one.expand(-1, 3, -1, -1) - mean) / std))


def test_the_weights_are_the_graph(tmp_path, images):
    path = write_graph(tmp_path / "a.onnx")
    backbone = build_backbone(f"onnx:{path}", image_size=64)
    state, wanted = backbone.state_dict(), backbone(images)
    path.unlink()
    again = build_backbone(f"onnx:{path}", image_size=64, state=state)
    again.load_state_dict(state)
    assert torch.equal(again(images), wanted)
    assert torch.equal(copy.deepcopy(again)(images), wanted)
    other = build_backbone(f"onnx:{write_graph(tmp_path / 'b.onnx', before='Sub')}", image_size=64)
    other.load_state_dict(state)
    assert torch.equal(other(images), wanted)
    with pytest.raises(ValueError, match="without 'graph', expected it"):
        build_backbone(f"onnx:{path}", state={})


def test_bad_graphs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        build_backbone("onnx:nowhere.onnx")
    (tmp_path / "b.onnx").write_bytes(b"no graph at all")
    with pytest.raises(ValueError, match="cannot be read as an ONNX graph"):
        build_backbone(f"onnx:{tmp_path / 'b.onnx'}")
    path = write_graph(tmp_path / "c.onnx", outputs=("flat",))
    with pytest.raises(ValueError, match=r"features \[2, 6\], flat \[2, 16\].*exactly one of features"):
        build_backbone(f"onnx:{path}")
    path = write_graph(tmp_path / "d.onnx", shape=["n", 3, 32, 64])
    with pytest.raises(ValueError, match="32 x 64 pixels, expected a square"):
        build_backbone(f"onnx:{path}")
    path = write_graph(tmp_path / "a.onnx")
    for options in ({"weights": "a.pt"}, {"untrained": True}, {"frozen": False}):
        with pytest.raises(ValueError, match="the file holds its weights"):
            build_backbone(f"onnx:{path}", **options)
    with pytest.raises(ValueError, match="in_channels: got 4"):
        build_backbone(f"onnx:{path}", 4)
