"""Networks of the user's own: what is found out about them, and what is refused."""

import sys
import textwrap

import pytest
import torch
from torch import nn

from momatch.models.backbones import SmallCNN, build_backbone


@pytest.fixture
def own_networks(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn

            number = 3

            class Pooled(nn.Module):
                def __init__(self, in_channels, features=5, declares=None):
                    super().__init__()
                    self.conv = nn.Conv2d(in_channels, features, 3)
                    self.bn = nn.BatchNorm2d(features)
                    self.seen = []
                    if declares is not None:
                        self.feature_dim = declares
                def forward(self, x):
                    self.seen.append((tuple(x.shape), self.training))
                    return self.bn(self.conv(x)).mean((2, 3))

            def lazy():
                return nn.Sequential(nn.Flatten(), nn.LazyLinear(7))

            def sized(image_size):
                return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size[0] * image_size[1], 4))

            def everything(**options):
                return Pooled(options.pop("channels"), **options)

            def number_returned():
                return 3

            def unpooled():
                return nn.Conv2d(3, 4, 3)

            class Tuple(nn.Module):
                def forward(self, x):
                    return x, x

            class namespace:
                factory = lazy
            """
        )
    )
    (tmp_path / "own_broken.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_networks"
    for name in ("own_networks", "own_broken"):
        sys.modules.pop(name, None)


def test_own_network_gets_channels_and_a_dry_run(own_networks):
    network = build_backbone(f"{own_networks}:Pooled", 1, image_size=(12, 9), features=6)
    assert network.num_features == 6
    assert network.conv.in_channels == 1
    assert network.seen == [((2, 1, 12, 9), False)]
    # The dry run leaves no trace.
    assert network.training
    assert network.bn.training
    assert int(network.bn.num_batches_tracked) == 0


def test_own_network_that_declares_its_features(own_networks):
    network = build_backbone(f"{own_networks}:Pooled", 1, declares=5)
    assert network.num_features == 5
    assert network.seen == []  # nothing to find out
    with pytest.raises(ValueError, match="declares 8 features but returns 5; return features, not classes"):
        build_backbone(f"{own_networks}:Pooled", 1, image_size=8, declares=8)
    with pytest.raises(ValueError, match="declares 'many' features"):
        build_backbone(f"{own_networks}:Pooled", 1, declares="many")


def test_own_factories_get_what_they_ask_for(own_networks):
    assert build_backbone(f"{own_networks}:sized", image_size=9)[1].in_features == 3 * 81
    assert build_backbone(f"{own_networks}:lazy", 2, image_size=4)[1].in_features == 2 * 16
    assert build_backbone(f"{own_networks}:namespace.factory", image_size=8).num_features == 7
    assert build_backbone(f"{own_networks}:everything", 2, channels=2, features=3).num_features == 3


def test_own_module_instance():
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network[0].eval()
    assert build_backbone(network, 2) is network
    assert network.num_features == 4
    assert [module.training for module in network.modules()] == [True, False, True, True]
    with torch.device("meta"):
        assert build_backbone(SmallCNN(1), 1).num_features == 128


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (":factory", "expected package.module:factory"),
        ("own_networks:", "expected package.module:factory"),
        (
            "no_such_package.module:factory",
            "there is no module 'no_such_package'; install the package or put its folder",
        ),
        ("own_networks.sub:factory", "there is no module 'own_networks.sub'"),
        ("own_networks:nothing", "'own_networks' has no attribute 'nothing'"),
        ("own_networks:number", "which is a int, expected a callable"),
        ("own_networks:number_returned", "got a int, expected a torch.nn.Module"),
        ("own_networks:unpooled", r"returned shape \(2, 4, 30, 30\) for 2 images, expected \(2, features\); pool"),
        ("own_networks:Tuple", "returned a tuple, expected a tensor"),
        ("own_networks:lazy", "has lazy layers, whose shape depends on the input; pass the image_size of the data"),
        ("builtins:dict", "got a dict, expected a torch.nn.Module"),
        ("own_networks:sized", "missing a required argument: 'image_size'; it accepts: image_size"),
    ],
)
def test_bad_own_networks_are_refused(own_networks, path, message):
    with pytest.raises(ValueError, match=message):
        build_backbone(path)


def test_own_network_that_cannot_take_the_images(own_networks):
    with pytest.raises(ValueError, match=r"a dry run on images of shape \(2, 3, 2, 2\) failed with RuntimeError"):
        build_backbone(f"{own_networks}:Pooled", image_size=2)


def test_errors_inside_of_own_modules_are_not_hidden(own_networks):
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        build_backbone("own_broken:factory")
