"""Backbones by name: models of other packages (stand-ins here), weights from a file, several at once."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from momatch import Classifier, build_backbone
from momatch.data.rows import PixelRows
from momatch.models.backbones import fallback_size, input_size_of
from momatch.models.backbones.custom import check_trusted, imports_code
from momatch.models.backbones.side_by_side import SideBySide
from momatch.models.outputs import standardize_backbone
from momatch.outliers.stages import StageReader, find_stages
from tests.models.small_onnx import F, write_graph

MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


class Net(nn.Module):
    """A small network with a classifier, as the packages have them."""

    def __init__(self, num_classes=10, fixed=None):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.body = nn.Conv2d(8, 12, 3, 2, 1)
        self.fc = nn.Linear(12, num_classes) if num_classes else nn.Identity()
        self.fixed = fixed

    def forward(self, x):
        if self.fixed is not None and x.shape[2:] != (self.fixed, self.fixed):
            raise AssertionError("wrong size")
        return self.fc(self.body(self.stem(x).relu()).relu().mean((2, 3)))


def standing_in(monkeypatch, name, **content):
    module = ModuleType(name)
    for key, value in content.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def timm(monkeypatch):
    def create_model(name, *, pretrained, num_classes):
        if pretrained:
            raise OSError("offline")
        torch.manual_seed(0)
        return Net(num_classes, fixed=64 if name == "vit" else None)

    config = SimpleNamespace(input_size=(3, 64, 64), mean=MEAN, std=STD, has_weights=True)
    known = {"net": config, "vit": config, "bare": SimpleNamespace(**{**vars(config), "has_weights": False})}
    return standing_in(
        monkeypatch,
        "timm",
        is_model=known.__contains__,
        list_models=lambda: list(known),
        get_pretrained_cfg=known.get,
        create_model=create_model,
    )


def test_timm(timm):
    assert input_size_of("timm:net") == 64
    backbone = build_backbone("timm:net", image_size=96, untrained=True)
    assert (backbone.num_features, backbone.input_size, backbone.resize_to) == (12, 64, None)
    assert backbone.normalization == (MEAN, STD)
    assert all(parameter.requires_grad for parameter in backbone.parameters())
    x = torch.rand(2, 3, 96, 96)
    names = find_stages(backbone, x)
    assert names[-1] == "network.body"
    assert StageReader(backbone, names)(x)[1].shape == (2, 2 * (8 + 12))


def test_a_network_of_one_size_gets_images_of_that_size(timm):
    backbone = build_backbone("timm:vit", image_size=96, untrained=True)
    assert backbone.resize_to == 64
    assert backbone(torch.rand(2, 3, 96, 96)).shape == (2, 12)
    assert build_backbone("timm:net", image_size=16, untrained=True).resize_to == 64  # too small for any network


def test_no_pretrained_weights_at_hand(timm):
    with pytest.raises(
        ValueError, match=r"'timm:net': got no pretrained weights \(OSError: offline\).*--weights.*--untrained"
    ):
        build_backbone("timm:net")
    with pytest.raises(ValueError, match="timm has none for it"):
        build_backbone("timm:bare")
    with pytest.raises(ValueError, match="which timm does not have; did you mean timm:net"):
        build_backbone("timm:nett")
    with pytest.raises(ValueError, match="expected only frozen"):
        build_backbone("timm:net", untrained=True, depth=3)


@pytest.mark.parametrize("name", ["timm", "torchvision.models", "transformers"])
def test_a_missing_package_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    prefix = {"transformers": "hf"}.get(name, name.partition(".")[0])
    with pytest.raises(ImportError, match=f"pip install {name.partition('.')[0]}$"):
        build_backbone(f"{prefix}:x")


def test_weights_from_a_file(timm, tmp_path):
    wanted = Net()
    x = torch.rand(2, 3, 64, 64)
    features = wanted.body(wanted.stem(x).relu()).relu().mean((2, 3))
    state = wanted.state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pth")
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 3}, tmp_path / "c.pt")
    for file in ("a.safetensors", "b.pth", "c.pt"):
        backbone = build_backbone("timm:net", image_size=64, weights=str(tmp_path / file))
        torch.testing.assert_close(backbone(x), features)
        assert backbone.frozen
        assert not any(parameter.requires_grad for parameter in backbone.parameters())
    own = build_backbone("cnn-tiny")
    torch.save(own.state_dict(), tmp_path / "cnn.pt")
    loaded = build_backbone("cnn-tiny", weights=str(tmp_path / "cnn.pt"))
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in own.state_dict().items())


def test_bad_weights_are_refused(timm, tmp_path):
    def refused(match, content=None, name="bad.pt", **options):
        if content is not None:
            torch.save(content, tmp_path / name)
        with pytest.raises(ValueError, match=match):
            build_backbone("timm:net", weights=str(tmp_path / name), **options)

    refused("which is no file", name="nowhere.pt")
    refused("could run any code", Net())
    refused("got a list, expected a state dict", [1, 2])
    refused("without 4 of the 4 that backbone 'timm:net' has", {"other": torch.zeros(2)})
    refused("stem.weight: got shape", Net().state_dict() | {"stem.weight": torch.zeros(2)})
    refused("got both, expected at most one", Net().state_dict(), untrained=True)
    (tmp_path / "bad.safetensors").write_bytes(b"x")
    refused("cannot be read as weights", name="bad.safetensors")
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07no weights")
    with pytest.raises(ValueError, match=r"bad.onnx: cannot be read as weights, expected safetensors") as error:
        build_backbone("timm:net", weights=str(tmp_path / "bad.onnx"))
    assert "weights_only" not in str(error.value)


def test_torchvision(monkeypatch):
    given = SimpleNamespace(crop_size=[48], mean=MEAN, std=STD)
    best = SimpleNamespace(transforms=lambda: given)

    def get_model(name, weights):
        if weights is not None:
            raise OSError("offline")
        return Net()

    models = standing_in(
        monkeypatch,
        "torchvision.models",
        list_models=lambda module: ["net"],
        get_model_weights=lambda name: SimpleNamespace(DEFAULT=best),
        get_model=get_model,
    )
    standing_in(monkeypatch, "torchvision", models=models)
    backbone = build_backbone("torchvision:net", untrained=True)
    assert (backbone.num_features, backbone.input_size, backbone.normalization) == (12, 48, (MEAN, STD))
    with pytest.raises(ValueError, match="got no pretrained weights"):
        build_backbone("torchvision:net")
    with pytest.raises(ValueError, match="which torchvision does not have"):
        build_backbone("torchvision:other")


class Config(SimpleNamespace):
    """A configuration as in transformers."""

    def to_dict(self):
        return {"model_type": "net", "width": self.width}

    @classmethod
    def from_dict(cls, values):
        return cls(width=values["width"])


class HfNet(nn.Module):
    """A model as in transformers."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.stem = nn.Conv2d(3, config.width, 4, 4)

    @classmethod
    def from_pretrained(cls, path, *, config, state_dict, output_loading_info):
        assert path is None
        made = cls(config)
        own = {key.removeprefix("net."): value for key, value in state_dict.items()}
        loaded = made.load_state_dict(own, strict=False)
        return made, {"missing_keys": set(loaded.missing_keys)}

    def forward(self, pixel_values):
        tokens = self.stem(pixel_values).flatten(2).transpose(1, 2)
        return SimpleNamespace(last_hidden_state=tokens, pooler_output=tokens.mean(1))


@pytest.fixture
def transformers(monkeypatch):
    def from_pretrained(name, output_loading_info):
        if name == "far":
            raise OSError("offline")
        missing = {"half": {"pooler.weight"}, "broken": {"stem.weight"}}.get(name, set())
        return HfNet(Config(width=5)), {"missing_keys": missing}

    def processor(name):
        return {"size": {"height": 32, "width": 32}, "image_mean": list(MEAN), "image_std": list(STD)}, {}

    return standing_in(
        monkeypatch,
        "transformers",
        image_processing_base=SimpleNamespace(ImageProcessingMixin=SimpleNamespace(get_image_processor_dict=processor)),
        AutoModel=SimpleNamespace(from_pretrained=from_pretrained, from_config=HfNet),
        AutoConfig=SimpleNamespace(from_pretrained=lambda name: Config(width=5)),
        CONFIG_MAPPING={"net": Config},
        MODEL_MAPPING={Config: HfNet},
    )


def test_transformers(transformers):
    x = torch.rand(2, 3, 32, 32)
    backbone = build_backbone("hf:net", image_size=32)
    assert (backbone.num_features, backbone.input_size, backbone.normalization) == (5, 32, (MEAN, STD))
    assert backbone.frozen
    tokens = backbone.network.network(x).last_hidden_state
    torch.testing.assert_close(backbone(x), tokens.mean(1))
    # A checkpoint without its pooling layer: the first token.
    torch.testing.assert_close((half := build_backbone("hf:half"))(x), half.network.network(x).last_hidden_state[:, 0])
    # Built again from its weights alone.
    again = build_backbone("hf:far", image_size=32, state=half.state_dict())
    again.load_state_dict(half.state_dict())
    torch.testing.assert_close(again(x), half(x))
    with pytest.raises(ValueError, match=r"lacks 1 weights, such as stem\.weight"):
        build_backbone("hf:broken")
    with pytest.raises(ValueError, match="OSError: offline"):
        build_backbone("hf:far")
    with pytest.raises(ValueError, match="description of a transformers model cannot be read"):
        build_backbone("hf:net", state={})


def test_transformers_with_weights_from_a_file(transformers, tmp_path):
    x = torch.rand(2, 3, 32, 32)
    wanted = HfNet(Config(width=5))
    # As a class of the package that has the network as a part saves it.
    state = {f"net.{key}": value for key, value in wanted.state_dict().items()}
    save_file(state | {"classifier": torch.zeros(2)}, tmp_path / "a.safetensors")
    backbone = build_backbone("hf:folder", image_size=32, weights=str(tmp_path / "a.safetensors"))
    assert backbone.frozen
    torch.testing.assert_close(backbone(x), wanted(x).pooler_output)
    again = build_backbone("hf:gone", image_size=32, state=backbone.state_dict())
    again.load_state_dict(backbone.state_dict())
    torch.testing.assert_close(again(x), backbone(x))
    save_file({"other": torch.zeros(2)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"without 2 that backbone 'hf:folder' has, expected all: stem\.bias"):
        build_backbone("hf:folder", weights=str(tmp_path / "b.safetensors"))
    save_file(HfNet(Config(width=7)).state_dict(), tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"do not fit the configuration of 'hf:folder' \(Error.* size mismatch"):
        build_backbone("hf:folder", weights=str(tmp_path / "c.safetensors"))
    with pytest.raises(ValueError, match="which is no file"):
        build_backbone("hf:folder", weights=str(tmp_path / "d.safetensors"))


class RareFeature(nn.Module):
    """The last feature is nearly nothing, except in bright images."""

    num_features = 3

    def forward(self, x):
        means = x.mean((2, 3))
        return torch.cat([means[:, :2], torch.where(means[:, 2:] > 2.0, 5.0, 1e-6 * means[:, 2:])], 1)


def test_a_feature_that_the_sample_hardly_has_is_not_blown_up():
    backbone = SideBySide([RareFeature(), RareFeature()], in_channels=3, find=False)
    backbone.standardize([torch.rand(40, 3, 8, 8)])
    bright = backbone(torch.ones(1, 3, 8, 8) * 1.5)
    assert float(bright.abs().max()) < 1000


def test_several_side_by_side(tmp_path):
    path = write_graph(tmp_path / "a.onnx")
    name = f"onnx:{path},cnn-tiny"
    classifier = Classifier.build(name, num_classes=3, image_size=32).eval()
    backbone = classifier.backbone
    assert backbone.num_features == F + 64
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    standardize_backbone(classifier, PixelRows([images]))
    x = classifier.preprocess(images)
    features = backbone(x)
    torch.testing.assert_close(features.mean(0), torch.zeros(F + 64), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(F + 64), atol=1e-3, rtol=0)
    alone = build_backbone(f"onnx:{path}", image_size=32)
    mean, std = (torch.tensor(values)[:, None, None] for values in alone.normalization)
    wanted = alone((x - mean) / std)
    torch.testing.assert_close(
        features[:, :F], (wanted - wanted.mean(0)) / wanted.std(0, correction=0), atol=1e-3, rtol=1e-3
    )
    names = find_stages(backbone, x)
    assert [stage.split(".")[1] for stage in names] == ["0"] * 3 + ["1"] * 4
    assert torch.equal(StageReader(backbone, names)(x)[0], features)
    path.unlink()
    again = build_backbone(name, image_size=32, state=backbone.state_dict()).eval()
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(x), features)
    with pytest.raises(ValueError, match="got 1 files for 2 backbones"):
        build_backbone("cnn-tiny,cnn-small", weights="a.pt")


def test_what_imports_code():
    assert not any(map(imports_code, ("cnn-tiny", "timm:resnet18", "onnx:a.onnx,hf:a/b", "torchvision:vgg11")))
    assert imports_code("my.module:net")
    assert imports_code("onnx:a.onnx,my.module:net")
    with pytest.raises(ValueError, match=r"import the module .my\.module. and call .net."):
        check_trusted("onnx:a.onnx,my.module:net", "model.json", trust_code=False)
    check_trusted("onnx:a.onnx,my.module:net", "model.json", trust_code="onnx:a.onnx,my.module:net")


def test_default_sizes(tmp_path):
    path = write_graph(tmp_path / "a.onnx", shape=["n", 3, 64, 64])
    assert input_size_of(f"onnx:{path}") == 64
    assert input_size_of(f"onnx:{path},efficientnet-lite0") == input_size_of("efficientnet-lite0") == 224
    assert input_size_of("cnn-tiny") is None
    assert input_size_of("nowhere.at_all:net") is None
    assert (fallback_size("wrn-28-2"), fallback_size("wrn-37-2"), fallback_size("my.module:net")) == (32, 96, 224)
    for name in ("timm:", "onnx:"):
        with pytest.raises(ValueError, match="expected a name behind the colon"):
            build_backbone(name)
