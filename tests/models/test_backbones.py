"""Networks against counts and formulas written down here a second time, and the errors of everything that can be misused."""

import functools

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from momatch.models.backbones import BACKBONES, SmallCNN, build_backbone

WRN = ("wrn-28-2", "wrn-37-2", "wrn-10-1")
IMAGE_NETWORKS = (*WRN, "cnn-small", "cnn-tiny")


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def wide_resnet_count(in_channels, widths, blocks):
    """Parameters by arithmetic: convolutions 9 i o, shortcuts i o where the shape changes, two a batch norm channel."""
    total, channels = 9 * in_channels * 16 + 16, 16
    for width in widths:
        for position in range(blocks):
            before = channels if position == 0 else width
            total += 2 * before + 9 * before * width + 2 * width + 9 * width * width
            if position == 0 and (before != width or width > widths[0]):
                total += before * width
        channels = width
    return total + 2 * channels


@pytest.mark.parametrize(
    ("name", "widths", "blocks", "with_ten_classes"),
    [
        ("wrn-28-2", (32, 64, 128), 4, 1_467_626),
        ("wrn-37-2", (32, 64, 128, 256), 4, 5_929_450),
        ("wrn-10-1", (16, 32, 64), 1, None),
    ],
)
@pytest.mark.parametrize("in_channels", [1, 3])
def test_parameter_counts(name, widths, blocks, with_ten_classes, in_channels):
    network = build_backbone(name, in_channels)
    assert count(network) == wide_resnet_count(in_channels, widths, blocks)
    assert network.num_features == widths[-1]
    if in_channels == 3 and with_ten_classes is not None:  # the published networks' own counts
        assert count(network) + 10 * (network.num_features + 1) == with_ten_classes


def naive_block(block, x, *, stride, first_of_network, raw):
    """A block from its weights with torch.nn.functional, out of place, in training mode."""
    bn = {key: getattr(block, key) for key in ("bn1", "bn2") if getattr(block, key) is not None}
    a = x if raw else F.leaky_relu(F.batch_norm(x, None, None, bn["bn1"].weight, bn["bn1"].bias, True, eps=1e-5), 0.1)
    h = F.conv2d(a, block.conv1.weight, stride=stride, padding=1)
    h = F.leaky_relu(F.batch_norm(h, None, None, bn["bn2"].weight, bn["bn2"].bias, True, eps=1e-5), 0.1)
    h = F.conv2d(h, block.conv2.weight, padding=1)
    if block.shortcut is None:
        return x + h
    return F.conv2d(a if first_of_network else x, block.shortcut.weight, stride=stride) + h


@pytest.mark.parametrize(
    ("name", "strides", "variant"),
    [
        ("wrn-28-2", (1, 2, 2), "preactivation"),
        ("wrn-28-2", (1, 2, 2), "published"),
        ("wrn-37-2", (2, 2, 2, 2), "preactivation"),
    ],
)
def test_wide_resnet_is_its_formula_in_value_and_gradient(name, strides, variant):
    torch.manual_seed(0)
    network = build_backbone(name, variant=variant).double()
    for parameter in network.parameters():  # batch norms that do something
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    x = torch.randn(3, 3, 32, 32, dtype=torch.double)

    h = F.conv2d(x, network.stem.weight, network.stem.bias, padding=1)
    for index, (stage, stride) in enumerate(zip(network.stages, strides, strict=True)):
        for position, block in enumerate(stage):
            opens = position == 0
            raw = variant == "published" and opens and index > 0
            h = naive_block(block, h, stride=stride if opens else 1, first_of_network=opens and index == 0, raw=raw)
    h = F.batch_norm(h, None, None, network.bn.weight, network.bn.bias, True, eps=1e-3)
    expected = F.adaptive_avg_pool2d(F.leaky_relu(h, 0.1), 1).flatten(1)

    direction = torch.randn_like(expected)
    features = network(x)
    torch.testing.assert_close(features, expected, rtol=1e-10, atol=1e-10)
    parameters = list(network.parameters())
    ours = torch.autograd.grad((features * direction).sum(), parameters)
    theirs = torch.autograd.grad((expected * direction).sum(), parameters)
    # No parameter is without effect, except that batch norm removes the stem's bias.
    for parameter, our, their in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-8, atol=1e-8)
        assert parameter is network.stem.bias or our.abs().max() > 1e-6


@pytest.mark.parametrize(("name", "momentum"), [("wrn-28-2", 0.001), ("wrn-37-2", 0.001), ("wrn-10-1", 0.1)])
def test_batch_norm_momentum(name, momentum):
    norms = [module for module in build_backbone(name).modules() if isinstance(module, nn.BatchNorm2d)]
    assert {norm.momentum for norm in norms} == {momentum}
    assert [norm.eps for norm in norms] == [1e-5] * (len(norms) - 1) + [1e-3]
    norms = build_backbone(name, bn_momentum=0.05).modules()
    assert {module.momentum for module in norms if isinstance(module, nn.BatchNorm2d)} == {0.05}


def test_running_statistics_follow_the_momentum():
    network = build_backbone("wrn-28-2").double()
    x = 3 + torch.randn(4, 3, 16, 16, dtype=torch.double)
    stem = network.stem(x)
    network(x)
    first = network.stages[0][0].bn1
    torch.testing.assert_close(first.running_mean, 0.001 * stem.mean((0, 2, 3)))
    torch.testing.assert_close(first.running_var, 0.999 + 0.001 * stem.var((0, 2, 3)))


def test_initialisation_is_kaiming_fan_out_with_zero_bias():
    torch.manual_seed(0)
    for name in ("wrn-28-2", "cnn-small"):
        for module in build_backbone(name).modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * module.kernel_size[0] ** 2
                samples = module.weight.numel()
                assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=4 / samples**0.5)
                assert module.bias is None or not module.bias.any()
            elif isinstance(module, nn.BatchNorm2d):
                assert bool((module.weight == 1).all())
                assert not module.bias.any()


def test_state_dict_names_are_stable():
    """Checkpoints outlive versions: a renamed parameter must be a decision."""
    keys = set(build_backbone("wrn-28-2").state_dict())
    assert {"stem.weight", "stem.bias", "bn.weight", "bn.running_var"} <= keys
    assert {"stages.0.0.bn1.bias", "stages.0.0.conv1.weight", "stages.0.0.bn2.running_mean"} <= keys
    assert {"stages.0.0.shortcut.weight", "stages.2.3.conv2.weight"} <= keys
    assert "stages.0.1.shortcut.weight" not in keys
    assert {"layers.0.weight", "layers.1.running_var"} <= set(build_backbone("cnn-small").state_dict())
    assert {"layers.0.weight", "layers.1.running_var"} <= set(build_backbone("mlp", 4).state_dict())


@functools.cache
def on_meta(name, channels):
    with torch.device("meta"):  # shapes without arithmetic
        return build_backbone(name, channels)


@settings(max_examples=25)
@given(
    name=st.sampled_from(IMAGE_NETWORKS),
    channels=st.sampled_from([1, 2, 3]),
    height=st.integers(8, 40),
    width=st.integers(8, 40),
    training=st.booleans(),
)
def test_any_channels_and_size(name, channels, height, width, training):
    network = on_meta(name, channels).train(training)
    x = torch.empty(2, channels, height, width, device="meta")
    if min(height, width) < network.min_size:
        with pytest.raises(ValueError, match="expected at least 16 x 16"):
            network(x)
    else:
        assert network(x).shape == (2, network.num_features)


@pytest.mark.parametrize("name", [*IMAGE_NETWORKS, "mlp"])
def test_every_network_runs_on_meta(name):
    with torch.device("meta"):
        features = build_backbone(name, 3, image_size=16)(torch.empty(2, 3, 16, 16))
    assert features.is_meta
    assert features.ndim == 2


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_channels_last_gives_the_same(name):
    torch.manual_seed(0)
    network = build_backbone(name).eval()
    x = torch.randn(2, 3, 16, 16)
    expected = network(x)
    network.to(memory_format=torch.channels_last)
    for images in (x, x.contiguous(memory_format=torch.channels_last)):
        torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_bfloat16_autocast_trains(name):
    torch.manual_seed(0)
    network = build_backbone(name)
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.randn(2, 3, 16, 16)).float().square().mean().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in network.parameters())


def test_vmap_over_an_ensemble():
    torch.manual_seed(0)
    members = [build_backbone("wrn-10-1", 1).eval() for _ in range(2)]
    parameters, buffers = torch.func.stack_module_state(members)
    x = torch.randn(3, 1, 8, 8)

    def call(parameters, buffers):
        return torch.func.functional_call(members[0], (parameters, buffers), (x,))

    features = torch.vmap(call)(parameters, buffers)
    torch.testing.assert_close(features, torch.stack([member(x) for member in members]), rtol=1e-4, atol=1e-5)


def test_compiles_to_one_graph(monkeypatch):
    # The shape checker that the tests install is no part of the program and cannot be traced.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    torch.manual_seed(0)
    network = build_backbone("wrn-10-1", 1)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    x = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(compiled(x), network(x), rtol=1e-4, atol=1e-5)
    compiled(x).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_bad_images_are_refused(name):
    network = build_backbone(name, 1)
    with pytest.raises(ValueError, match=r"got shape \(2, 3, 32, 32\), expected \(n, 1, H, W\)"):
        network(torch.zeros(2, 3, 32, 32))
    with pytest.raises(ValueError, match=r"got shape \(2, 5\)"):
        network(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="got 32 x 7 pixels"):
        network(torch.zeros(2, 1, 32, 7))
    with pytest.raises(ValueError, match="uint8, expected normalised floating"):
        network(torch.zeros(2, 1, 32, 32, dtype=torch.uint8))
    with pytest.raises(ValueError, match="got images of 7 x 32 pixels"):
        build_backbone(name, 1, image_size=(7, 32))


def test_mlp_takes_vectors_and_images():
    torch.manual_seed(0)
    assert build_backbone("mlp", 5, hidden=(7, 6))(torch.randn(3, 5)).shape == (3, 6)
    network = build_backbone("mlp", 1, image_size=(8, 6)).eval()
    x = torch.randn(3, 1, 8, 6)
    assert network.num_features == 128
    torch.testing.assert_close(network(x), network(x.flatten(1)))
    for wrong in (torch.zeros(3, 1, 8, 7), torch.zeros(3, 47), torch.zeros(48)):
        with pytest.raises(ValueError, match=r"expected \(n, 48\)"):
            network(wrong)
    with pytest.raises(ValueError, match="hidden: got no layers"):
        build_backbone("mlp", 5, hidden=())
    with pytest.raises(ValueError, match="hidden: got 0"):
        build_backbone("mlp", 5, hidden=(3, 0))


def test_cnn_small_learns_digits():
    datasets = pytest.importorskip("sklearn.datasets")
    torch.manual_seed(0)
    data = datasets.load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1).sub(4.9).div(6.0)
    y = torch.tensor(data.target)
    backbone = build_backbone("cnn-small", 1, image_size=8)
    network = nn.Sequential(backbone, nn.Linear(backbone.num_features, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(100):
        batch = torch.randint(1297, (64,))
        optimizer.zero_grad()
        F.cross_entropy(network(x[batch]), y[batch]).backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        accuracy = (network(x[1297:]).argmax(1) == y[1297:]).float().mean().item()
    assert accuracy > 0.7  # chance is 0.1


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match=r"got 'wrn_28_2'; did you mean 'wrn-28-2'\?"):
        build_backbone("wrn_28_2")
    with pytest.raises(ValueError, match=r"did you mean 'efficientnet-lite0'\?"):
        build_backbone("efficientnet")
    with pytest.raises(ValueError, match=r"got 'zzz'; Expected one of wrn-28-2, .*package\.module:factory"):
        build_backbone("zzz")


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_unknown_options_are_refused(name):
    with pytest.raises(ValueError, match=r"unexpected keyword argument 'depth'; it accepts: in_channels"):
        build_backbone(name, depth=3)


def test_bad_values_are_refused():
    with pytest.raises(ValueError, match="in_channels: got 0"):
        build_backbone("wrn-28-2", 0)
    with pytest.raises(ValueError, match="image_size: got 0"):
        build_backbone("wrn-28-2", image_size=0)
    with pytest.raises(ValueError, match="variant: got 'usb', expected 'preactivation' or 'published'"):
        build_backbone("wrn-28-2", variant="usb")
    with pytest.raises(ValueError, match="width: got 0"):
        build_backbone("cnn-small", width=0)
    with pytest.raises(ValueError, match="got a module and options"):
        build_backbone(SmallCNN(), width=3)
