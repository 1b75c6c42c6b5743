"""Backbones: those of the benchmarks, small ones for a CPU, a pretrained one, and your own.

The contract is that of `Backbone`: ``backbone(x)`` maps normalised floating images (n, C, H, W) to features (n, D) with
D = ``backbone.num_features``, and ``backbone.normalization`` is the (mean, std) that it needs, or None for the dataset's.
"""

from collections.abc import Callable
from difflib import get_close_matches

from torch import nn

from momatch.models.backbones.base import Backbone as Backbone
from momatch.models.backbones.base import Normalization as Normalization
from momatch.models.backbones.custom import UntrustedCodeError as UntrustedCodeError
from momatch.models.backbones.custom import call_factory, check_backbone, import_factory, parameters
from momatch.models.backbones.efficientnet import EfficientNetLite0 as EfficientNetLite0
from momatch.models.backbones.small import MLP as MLP
from momatch.models.backbones.small import SmallCNN as SmallCNN
from momatch.models.backbones.small import cnn_tiny
from momatch.models.backbones.wide_resnet import WideResNet as WideResNet
from momatch.models.backbones.wide_resnet import wrn_10_1, wrn_28_2, wrn_37_2
from momatch.numerics.checks import check_positive_int

#: Name -> factory that takes `in_channels` and its own options.
BACKBONES: dict[str, Callable[..., Backbone]] = {
    "wrn-28-2": wrn_28_2,
    "wrn-37-2": wrn_37_2,
    "wrn-10-1": wrn_10_1,
    "cnn-small": SmallCNN,
    "cnn-tiny": cnn_tiny,
    "mlp": MLP,
    "efficientnet-lite0": EfficientNetLite0,
}


def build_backbone(
    name: str | nn.Module,
    in_channels: int = 3,
    *,
    image_size: int | tuple[int, int] | None = None,
    **options: object,
) -> nn.Module:
    """Build a backbone by name.

    Args:
        name: a key of `BACKBONES`; ``package.module:factory``, your own callable that returns a module from (n, C, H, W) to
            (n, features); or such a module itself.
        in_channels: channels of the images (1 gray, 3 RGB). Passed to your factory if it has a parameter of that name.
        image_size: height and width of the images (or the side of square ones), if known. It sets the input size of the
            ``mlp`` (None: vectors of `in_channels` features) and of the dry run of your own module, and lets images that are
            too small be rejected now. Passed to your factory as (height, width) if it has a parameter of that name.
        options: passed to the factory.

    Returns:
        A module with the attribute `num_features`.

    Raises:
        ValueError: if the name or an option is unknown, the images are too small, or your own module breaks the contract.
        ImportError: if a backbone needs packages that are not installed.
    """
    check_positive_int("in_channels", in_channels)
    if isinstance(image_size, int):
        image_size = (image_size, image_size)
    for side in image_size or ():
        check_positive_int("image_size", side)
    if isinstance(name, nn.Module):
        if options:
            raise ValueError(f"backbone: got a module and options {options}, expected no options with a module")
        return check_backbone(type(name).__name__, name, in_channels, image_size)
    if name not in BACKBONES and ":" not in name:
        raise ValueError(_unknown(name))
    factory: Callable[..., object] = BACKBONES[name] if name in BACKBONES else import_factory(name)
    known: dict[str, object] = {"in_channels": in_channels, "image_size": image_size}
    given = {key: value for key, value in known.items() if key in parameters(factory) and value is not None}
    backbone = call_factory(name, factory, given | options)
    if name not in BACKBONES:
        return check_backbone(name, backbone, in_channels, image_size)
    assert isinstance(backbone, Backbone)
    if image_size is not None and min(image_size) < backbone.min_size:
        raise ValueError(
            f"backbone {name!r}: got images of {image_size[0]} x {image_size[1]} pixels, "
            f"expected at least {backbone.min_size} x {backbone.min_size}; enlarge them or choose another backbone"
        )
    return backbone


def _unknown(name: str) -> str:
    close = get_close_matches(name.lower().replace("_", "-"), BACKBONES, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"backbone: got {name!r}; {hint}Expected one of {', '.join(BACKBONES)}, or package.module:factory"
