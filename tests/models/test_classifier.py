"""The joined model: its parts, where normalisation happens, and one exported graph."""

import copy

import pytest
import torch
from torch import nn

from momatch.heads import AAGMM, HEADS, Linear
from momatch.models.backbones import SmallCNN
from momatch.models.classifier import Classifier

CIFAR10 = ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255))


def images(n=2, channels=3, size=8, seed=0):
    return torch.randint(
        256, (n, channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize("head", sorted(HEADS))
@pytest.mark.parametrize("embedding_dim", [0, 5])
def test_build_joins_the_parts(head, embedding_dim):
    torch.manual_seed(0)
    classifier = Classifier.build("cnn-small", head, num_classes=4, embedding_dim=embedding_dim, in_channels=1).eval()
    x = torch.randn(3, 1, 8, 8)
    z = classifier.embed(x)
    features = classifier.backbone(x)
    assert z.shape == (3, embedding_dim or 128)
    torch.testing.assert_close(z, classifier.projection(features) if embedding_dim else features)
    assert classifier(x).shape == (3, 4)
    torch.testing.assert_close(classifier(x), classifier.head(z))
    assert (classifier.projection is None) == (embedding_dim == 0)


def test_defaults_are_the_benchmark():
    classifier = Classifier.build(num_classes=10)
    assert classifier.backbone.num_features == 128
    assert isinstance(classifier.head, AAGMM)
    assert classifier.projection.weight.shape == (8, 128)
    assert not classifier.projection.bias.any()
    # Xavier-normal: variance 2 / (in + out).
    assert classifier.projection.weight.std().item() == pytest.approx((2 / 136) ** 0.5, rel=0.1)
    linear = Classifier.build(num_classes=10, head="linear", embedding_dim=0)
    assert sum(parameter.numel() for parameter in linear.parameters()) == 1_467_626


def test_options_reach_the_parts():
    classifier = Classifier.build(
        "cnn-small", num_classes=3, backbone_options={"width": 4}, head_options={"learn_prior": True}
    )
    assert classifier.backbone.num_features == 16
    assert classifier.head.prior_logits is not None


def test_bytes_are_normalised_inside_and_floats_are_not():
    torch.manual_seed(0)
    classifier = Classifier.build("cnn-small", num_classes=10, normalization=CIFAR10).eval()
    raw = images()
    torch.testing.assert_close(classifier(raw), classifier(classifier.preprocess(raw)), rtol=0, atol=0)
    plain = Classifier(classifier.backbone, classifier.head, classifier.projection)
    torch.testing.assert_close(plain(classifier.preprocess(raw)), classifier(raw), rtol=0, atol=0)
    with pytest.raises(
        ValueError, match=r"got uint8, .* no preprocess; build it with preprocess=Normalize\(mean, std\)"
    ):
        plain(raw)


def test_backbones_own_normalisation_has_precedence():
    backbone = SmallCNN()
    backbone.normalization = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    classifier = Classifier.build(backbone, num_classes=10, normalization=CIFAR10)
    torch.testing.assert_close(classifier.preprocess.mean, torch.tensor((0.1, 0.2, 0.3)))
    assert Classifier.build("cnn-small", num_classes=10).preprocess is None
    backbone = SmallCNN()
    backbone.normalization = nn.Identity()  # a layer of that name is no statistics
    assert Classifier.build(backbone, num_classes=10).preprocess is None


def test_state_dict_carries_everything():
    first = Classifier.build("cnn-small", num_classes=10, normalization=CIFAR10).eval()
    second = Classifier.build("cnn-small", num_classes=10, normalization=((0.1,) * 3, (0.1,) * 3)).eval()
    keys = set(first.state_dict())
    assert {"preprocess.mean", "preprocess.std", "projection.weight", "projection.bias", "head.centers"} <= keys
    assert {key.split(".")[0] for key in keys} == {"preprocess", "backbone", "projection", "head"}
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(images()), first(images()), rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(first)(images()), first(images()), rtol=0, atol=0)


def test_runs_on_meta_and_under_autocast():
    with torch.device("meta"):
        classifier = Classifier.build(num_classes=10, normalization=CIFAR10)
        assert classifier(torch.empty(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 10)
    torch.manual_seed(0)
    classifier = Classifier.build("wrn-10-1", num_classes=10, normalization=CIFAR10)
    with torch.autocast("cpu", torch.bfloat16):
        log_joint = classifier(images())
    assert log_joint.dtype == torch.float32  # heads compute in float32
    log_joint.sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in classifier.parameters())


def test_vectors():
    classifier = Classifier.build("mlp", "kmeans", num_classes=3, in_channels=11)
    assert classifier(torch.randn(4, 11)).shape == (4, 3)


def test_parts_that_do_not_fit_are_refused():
    backbone = SmallCNN(width=4)
    with pytest.raises(ValueError, match="head: got embedding_dim 8, expected 16 as the backbone returns"):
        Classifier(backbone, AAGMM(8, 3))
    with pytest.raises(ValueError, match="projection: got 9 input features, expected 16 as the backbone returns"):
        Classifier(backbone, AAGMM(8, 3), nn.Linear(9, 8))
    with pytest.raises(ValueError, match="got embedding_dim 7, expected 8 as the projection returns"):
        Classifier(backbone, Linear(7, 3), nn.Linear(16, 8))
    with pytest.raises(ValueError, match="head: got 'gmm', expected one of aagmm, kmeans, linear"):
        Classifier.build(head="gmm", num_classes=3)
    with pytest.raises(ValueError, match="normalization: got 3 means, expected one for each of the 1 channels"):
        Classifier.build("cnn-small", num_classes=3, in_channels=1, normalization=CIFAR10)
    with pytest.raises(ValueError, match="num_classes: got 0"):
        Classifier.build(num_classes=0)
    with pytest.raises(ValueError, match=r"embedding_dim .*got -1"):
        Classifier.build(num_classes=3, embedding_dim=-1)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (nn.Conv2d(3, 4, 3), r"backbone: returned shape \(2, 4, 6, 6\), expected a tensor \(n, features\)"),
        (nn.LSTM(8, 4), "backbone: returned"),
    ],
)
def test_backbones_that_return_no_features_are_refused(backbone, message):
    classifier = Classifier(backbone, Linear(4, 2))
    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(ValueError, match=message):
        classifier(x if isinstance(backbone, nn.Conv2d) else x[0])


def test_any_module_can_be_a_projection():
    classifier = Classifier(SmallCNN(width=4), AAGMM(6, 3), nn.Sequential(nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 6)))
    assert classifier(torch.randn(2, 3, 8, 8)).shape == (2, 3)
