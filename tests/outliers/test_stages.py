"""Statistics of stages against numpy, reading them without a trace in the network, and finding them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from momatch.models.backbones import BACKBONES
from momatch.outliers.stages import INPUT, MAX_CHANNELS, MAX_STAGES, StageReader, find_stages, statistics


class Residual(nn.Module):
    """Two convolutions around a shortcut, with activations in place."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(channels, out, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network of three image sizes that declares no stages."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layer1 = nn.Sequential(Residual(4, 4, 1), Residual(4, 4, 1))
        self.layer2 = nn.Sequential(Residual(4, 6, 2), Residual(6, 6, 1))
        self.layer3 = nn.Sequential(Residual(6, 8, 2), Residual(8, 8, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(self.layer3(self.layer2(self.layer1(self.stem(x))))).flatten(1)


class Attention(nn.Module):
    """Self-attention whose weights are the output of a module, as in many a ViT."""

    def __init__(self, width):
        super().__init__()
        self.qkv, self.softmax, self.out = nn.Linear(width, 3 * width), nn.Softmax(-1), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return self.out((self.softmax(q @ k.mT) @ v).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm(x))


class ViT(nn.Module):
    def __init__(self, depth=12, width=8):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.blocks, self.norm = nn.ModuleList(Encoder(width) for _ in range(depth)), nn.LayerNorm(width)

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 0]


class Attentive(nn.Module):
    """A stage that returns a tuple, and one that is never run."""

    def __init__(self):
        super().__init__()
        self.attention, self.idle = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(5, 5)

    def forward(self, x):
        tokens = x.flatten(1)[:, None]
        return self.attention(tokens, tokens, tokens)[0][:, 0]


def vectors():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 5), nn.ReLU(inplace=True))


def naive(output):
    """Means and log deviations of (n, C, H, W) or (n, T, C), one channel at a time."""
    output = output.double().numpy()
    if output.ndim == 3:
        output = output.transpose(0, 2, 1)[..., None]
    rows = []
    for image in output:
        deviations = np.array([channel.std() for channel in image])
        floor = 1e-3 * np.mean([abs(channel.mean()) + channel.std() for channel in image]) + 1e-12
        rows.append([*(channel.mean() for channel in image), *np.log(deviations + floor)])
    return np.array(rows)


def hooks(network):
    return sum(len(module._forward_hooks) for module in network.modules())


# --- Statistics ---


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)), seed=st.integers(0, 99)
)
@settings(max_examples=30)
def test_statistics_are_those_of_numpy(shape, seed):
    maps = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3 + 1
    np.testing.assert_allclose(statistics(maps).numpy(), naive(maps), rtol=1e-9, atol=1e-9)
    tokens = maps.flatten(2).mT
    np.testing.assert_allclose(statistics(tokens).numpy(), naive(tokens), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(statistics(tokens), statistics(maps))
    assert torch.equal(statistics(maps[:, :, 0, 0]), maps[:, :, 0, 0])


@pytest.mark.parametrize("value", [0.3, -1.7, 100.0])
def test_rounding_in_a_constant_map_does_not_matter(value):
    """Its deviation is 0 or some rounding errors, depending on who computes it."""
    flat = torch.full((1, 3, 9, 8), value)
    noisy = flat * (1 + torch.finfo(torch.float32).eps * torch.randn(flat.shape))
    torch.testing.assert_close(statistics(noisy), statistics(flat), rtol=0, atol=5e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 4, 5, 5), (3, 25, 4), (3, 4)])
def test_statistics_are_in_float32_or_better(dtype, shape):
    output = (100 * torch.randn(shape)).to(dtype)
    assert statistics(output).dtype == torch.float32
    torch.testing.assert_close(statistics(output), statistics(output.double()).float(), rtol=1e-4, atol=1e-4)
    assert statistics(output.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_constant_maps_have_finite_statistics(dtype):
    maps = torch.randn(3, 4, 5, 5, dtype=dtype)
    maps[0], maps[1, 2] = 7.0, 0.0
    assert statistics(maps).isfinite().all()
    assert statistics(torch.full_like(maps, min(torch.finfo(dtype).max / 2, 1e30))).isfinite().all()
    assert statistics(maps[:, :, :1, :1]).isfinite().all()


# --- Reading ---


@pytest.mark.parametrize(
    ("network", "names", "shape", "width"),
    [
        (ResNet, ("layer1", "layer2.0", "layer3"), (5, 3, 16, 16), 2 * (4 + 6 + 8)),
        (ResNet, (INPUT, "stem"), (5, 3, 16, 16), 2 * (3 + 4)),
        (ResNet, (), (5, 3, 16, 16), 8),
        (ViT, ("patches", "blocks.3"), (5, 3, 16, 16), 2 * (8 + 8)),
        (vectors, (INPUT, "0", "2"), (5, 4), 4 + 6 + 5),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_features_stay_the_same_bit_for_bit(network, names, shape, width, training):
    network, x = network().train(training), torch.randn(shape)
    expected = network(x)
    features, seen = StageReader(network, names)(x)
    assert torch.equal(features, expected)
    assert seen.shape == (5, width)
    assert hooks(network) == 0


def test_stages_are_read_in_the_order_of_their_names():
    network, x = ResNet().eval(), torch.randn(2, 3, 16, 16)
    _, seen = StageReader(network, ("layer2", INPUT, "stem"))(x)
    stem = network.stem(x)
    layer2 = network.layer2(network.layer1(stem))
    torch.testing.assert_close(seen, torch.cat([statistics(layer2), statistics(x), statistics(stem)], 1))


def test_activations_in_place_do_not_change_what_was_read():
    network, x = vectors(), torch.randn(5, 4)
    _, seen = StageReader(network, ("0",))(x)
    assert torch.equal(seen, network[0](x))
    assert (seen < 0).any()
    features, seen = StageReader(network, ())(x)
    features.zero_()
    assert not torch.equal(seen, features)
    first = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    assert torch.equal(StageReader(first, (INPUT,))(x.clone())[1], x)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(StageReader(network, ("0",))(x)[1], statistics(network[0](x)))


@pytest.mark.parametrize(("channels", "step"), [(MAX_CHANNELS, 1), (MAX_CHANNELS + 1, 2), (3 * MAX_CHANNELS, 3)])
def test_of_wide_stages_every_kth_channel_is_read(channels, step):
    maps, x = nn.Sequential(nn.Conv2d(3, channels, 1), nn.Flatten()), torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(StageReader(maps, ("0",))(x)[1], statistics(maps[0](x)[:, ::step]))
    tokens, x = nn.Sequential(nn.Linear(4, channels), nn.Flatten()), torch.randn(2, 7, 4)
    torch.testing.assert_close(StageReader(tokens, ("0",))(x)[1], statistics(tokens[0](x)[:, :, ::step]))
    wide, x = nn.Sequential(nn.Linear(4, channels)), torch.randn(2, 4)
    torch.testing.assert_close(StageReader(wide, ("0",))(x)[1], wide(x)[:, ::step])


def test_stages_that_cannot_be_read():
    network, x = Attentive(), torch.randn(5, 4)
    with pytest.raises(ValueError, match=r"got 'layer9', expected names of modules in Attentive, such as attention"):
        StageReader(network, ("attention", "layer9"))
    with pytest.raises(ValueError, match=r"got 'layer9', expected 'input' or no names: Linear has no modules inside"):
        StageReader(nn.Linear(4, 5), ("layer9",))
    with pytest.raises(ValueError, match="got 'idle', which the network did not run"):
        StageReader(network, ("idle",))(x)
    with pytest.raises(ValueError, match="stage 'attention': got a tuple, expected a tensor"):
        StageReader(network, ("attention",))(x)
    assert hooks(network) == 0
    with pytest.raises(ValueError, match=r"stage '0': got shape \(4, 5\), expected a tensor"):
        StageReader(nn.Sequential(nn.Flatten(0, 1), nn.Linear(5, 5)), ("0",))(torch.randn(2, 2, 5))


def test_an_exception_leaves_no_hooks_and_no_modes():
    network = ResNet().train()
    network.layer2.eval()
    modes = [module.training for module in network.modules()]
    wrong = torch.randn(2, 5, 16, 16)
    with pytest.raises(RuntimeError):
        StageReader(network, ("stem", "layer1"))(wrong)
    with pytest.raises(RuntimeError):
        find_stages(network, wrong)
    assert hooks(network) == 0
    assert [module.training for module in network.modules()] == modes


@pytest.mark.parametrize("names", [("stem", "layer2"), (INPUT,), ()])
def test_export(names, unchecked):
    class Read(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network
            self.reader = StageReader(network, names)

        def forward(self, x):
            return self.reader(x)

    read, x = Read(ResNet().eval()), torch.randn(4, 3, 16, 16)
    batch = torch.export.Dim("n", min=1, max=100)
    program = torch.export.export(read, (x,), dynamic_shapes=({0: batch},), strict=False)
    for n in (1, 4):
        torch.testing.assert_close(program.module()(x[:n]), read(x[:n]), rtol=1e-4, atol=1e-5)


def test_export_keeps_what_was_read_from_activations_in_place(unchecked):
    class Read(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network
            self.reader = StageReader(network, ("0", "2"))

        def forward(self, x):
            return self.reader(x)

    read, x = Read(vectors()), torch.randn(5, 4)
    torch.testing.assert_close(torch.export.export(read, (x,), strict=False).module()(x), read(x))


@pytest.mark.parametrize("where", ["network", "stage", "wrapped", "wrapped stage"])
def test_compiled_networks_are_read_as_well(where):
    network, x = ResNet().eval(), torch.randn(2, 3, 16, 16)
    names = ("stem", "layer2.0", "layer3")
    with torch.no_grad():
        expected = StageReader(network, names)(x)
        compiled = network
        if where == "network":
            network.compile(backend="eager")
        elif where == "stage":
            network.layer2.compile(backend="eager")
        elif where == "wrapped":
            compiled = torch.compile(network, backend="eager")
        else:
            network.layer2 = torch.compile(network.layer2, backend="eager")
            names = ("stem", "layer2._orig_mod.0", "layer3")
        compiled(x)  # compiled before there are hooks
        torch.testing.assert_close(StageReader(compiled, names)(x), expected)
        assert find_stages(compiled, x)[-1] == "layer3"
        torch.testing.assert_close(compiled(x), expected[0])


# --- Finding ---


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_declare_stages_that_they_run(name):
    options = {"image_size": (16, 16)} if name == "mlp" else {}
    if name == "efficientnet-lite0":
        pytest.importorskip("efficientnet_lite_pytorch")
        options = {"pretrained": False, "enlarge_to": 32}
    backbone, x = BACKBONES[name](3, **options).eval(), torch.randn(2, 3, 16, 16)
    names = find_stages(backbone, x)
    assert names == backbone.stage_names
    with torch.no_grad():
        features, seen = StageReader(backbone, names)(x)
    assert features.shape == (2, backbone.num_features)
    assert seen.isfinite().all()


def test_a_residual_network_has_a_stage_for_each_size():
    network, x = ResNet(), torch.randn(2, 3, 16, 16)
    names = find_stages(network, x)
    assert [name.split(".")[0] for name in names] == ["layer1", "layer2", "layer3"]
    assert StageReader(network, names)(x)[1].shape == (2, 2 * (4 + 6 + 8))


@pytest.mark.parametrize(("depth", "blocks"), [(3, [0, 1, 2]), (12, [1, 3, 5, 7, 9, 11]), (17, [1, 4, 7, 10, 13, 16])])
def test_a_transformer_has_evenly_spaced_blocks(depth, blocks):
    network, x = ViT(depth), torch.randn(2, 3, 16, 16)
    names = find_stages(network, x)
    assert names == tuple(f"blocks.{number}" for number in blocks)
    assert len(names) <= MAX_STAGES
    assert StageReader(network, names)(x)[1].shape == (2, 2 * 8 * len(names))


def test_an_mlp_has_its_linear_layers():
    assert find_stages(vectors(), torch.randn(2, 4)) == ("0", "2")
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    assert find_stages(deep, torch.randn(2, 4)) == ("1", "4", "7", "10", "13", "16", "19")


def test_a_network_without_stages_gives_its_features():
    network, x = nn.Flatten(), torch.randn(2, 3, 4, 4)
    names = find_stages(network, x)
    assert names == ()
    features, seen = StageReader(network, names)(x)
    assert torch.equal(seen, features)


def test_a_module_that_is_called_as_the_input_is_not_found():
    network = nn.Sequential()
    network.add_module(INPUT, nn.Linear(4, 4))
    network.add_module("last", nn.Linear(4, 4))
    assert find_stages(network, torch.randn(2, 4)) == ("last",)


def test_finding_stages_leaves_the_network_and_the_random_state_alone():
    class Noisy(ResNet):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x))

    network, x = Noisy().train(), torch.randn(2, 3, 16, 16)
    network.layer2.eval()
    modes = [module.training for module in network.modules()]
    values = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    assert len(find_stages(network, x)) == 3
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, values[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert hooks(network) == 0


def test_one_image_with_a_large_map():
    output = torch.randn(
        1, 64, 96, 96, generator=torch.Generator().manual_seed(0)
    )  # more values than are taken at once
    torch.testing.assert_close(statistics(output), statistics(output.repeat(2, 1, 1, 1))[:1])


def test_a_module_that_is_no_stage_each_time_is_left_out():
    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.shared = nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, 5, 2, 2), nn.Identity()

        def forward(self, x):
            x = self.first(x)
            x = self.shared(x.reshape(-1, 4, 2, x.shape[3])).reshape(x.shape)  # more rows than images
            return self.shared(self.second(x)).mean((2, 3))

    x = torch.rand(2, 3, 16, 16)
    names = find_stages(Windows(), x)
    assert names == ("first", "second")
    assert StageReader(Windows(), names)(x)[1].shape == (2, 2 * (4 + 5))
