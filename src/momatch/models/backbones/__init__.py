"""Backbones: those of the benchmarks, small ones for a CPU, pretrained ones of other packages, ONNX graphs, and your own.

The contract is that of `Backbone`: ``backbone(x)`` maps normalised floating images (n, C, H, W) to features (n, D) with
D = ``backbone.num_features``, and ``backbone.normalization`` is the (mean, std) that it needs, or None for the dataset's.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from torch import Tensor, nn

from momatch.models.backbones.base import Backbone as Backbone
from momatch.models.backbones.base import Normalization as Normalization
from momatch.models.backbones.custom import PREFIXES, call_factory, check_backbone, import_factory, parameters
from momatch.models.backbones.custom import UntrustedCodeError as UntrustedCodeError
from momatch.models.backbones.efficientnet import EfficientNetLite0 as EfficientNetLite0
from momatch.models.backbones.onnx_file import onnx_declared, prepared_graph
from momatch.models.backbones.onnx_graph import OnnxGraph as OnnxGraph
from momatch.models.backbones.packages import PACKAGES, transformers_from_state, transformers_with_weights
from momatch.models.backbones.rgb import Pretrained as Pretrained
from momatch.models.backbones.side_by_side import SideBySide as SideBySide
from momatch.models.backbones.small import MLP as MLP
from momatch.models.backbones.small import SmallCNN as SmallCNN
from momatch.models.backbones.small import cnn_tiny
from momatch.models.backbones.weights import load_weights
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


#: The side that the benchmarks use for a network, where it is not 32 pixels.
_FALLBACK = {"wrn-37-2": 96}
#: Built-in networks that come with pretrained weights.
_PRETRAINED = frozenset({"efficientnet-lite0"})


def build_backbone(
    name: str | nn.Module,
    in_channels: int = 3,
    *,
    image_size: int | tuple[int, int] | None = None,
    weights: str | None = None,
    untrained: bool = False,
    state: Mapping[str, Tensor] | None = None,
    **options: object,
) -> nn.Module:
    """Build a backbone by name.

    Args:
        name: a key of `BACKBONES`; ``timm:NAME``, ``torchvision:NAME``, ``hf:REPO`` (transformers) or ``onnx:FILE``
            (docs/backbones.md); ``package.module:factory``, your own callable that returns a module from (n, C, H, W) to
            (n, features); several of these with commas between them; or a module itself.
        in_channels: channels of the images (1 gray, 3 RGB). Passed to your factory if it has a parameter of that name.
        image_size: height and width of the images (or the side of square ones), if known. It sets the input size of the
            ``mlp`` (None: vectors of `in_channels` features) and of the dry run of your own module, and lets images that are
            too small be rejected now. Passed to your factory as (height, width) if it has a parameter of that name.
        weights: file with the network's weights, safetensors or a state dict, instead of those of a hub; for several
            backbones one for each, with commas between them, empty for those that need none.
        untrained: use random weights where there would be pretrained ones; an ONNX graph beside others keeps its own.
        state: the weights that the caller will load into the module: nothing is downloaded or read from other files.
        options: passed to the factory.

    Returns:
        A module with the attribute `num_features`.

    Raises:
        ValueError: if the name or an option is unknown, there are no pretrained weights at hand, the images are too small, or
            your own module breaks the contract.
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
    if weights is not None and untrained:
        raise ValueError("weights and untrained: got both, expected at most one of them")
    names = name.split(",")
    files = [None] * len(names) if weights is None else [file or None for file in weights.split(",")]
    if len(files) != len(names):
        raise ValueError(
            f"weights: got {len(files)} files for {len(names)} backbones, expected one for each, with commas between them"
        )
    if len(names) == 1:
        return _build_one(name, in_channels, image_size, files[0], untrained=untrained, state=state, options=options)
    members = []
    # The weights of a graph cannot be others; those of its companions can.
    can_be_random = [not part.startswith("onnx:") for part in names]
    for number, (part, file) in enumerate(zip(names, files, strict=True)):
        own = None if state is None else _under(state, f"members.{number}.")
        is_random = untrained and (can_be_random[number] or not any(can_be_random))
        members.append(_build_one(part, in_channels, image_size, file, untrained=is_random, state=own, options=options))
    return SideBySide(members, in_channels=in_channels, image_size=image_size, find=state is None)


def fallback_size(name: str) -> int:
    """The side for images of mixed sizes if nobody names one and the backbone has none of its own."""
    return _FALLBACK.get(name, 32 if name in BACKBONES else 224)


def input_size_of(name: str) -> int | None:
    """The side of the images that a backbone's weights were trained on, its default image size; None if it has none.

    Args:
        name: as for `build_backbone`; of several the largest. Your own module is not imported: it has none.

    Raises:
        ValueError: if a model of another package or an ONNX file is unknown.
        ImportError: if a package is not installed.
    """
    sizes = [_input_size_of_one(part) for part in name.split(",")]
    return max((size for size in sizes if size is not None), default=None)


def without_weights(name: str, weights: str | None = None) -> list[str]:
    """Those of the backbones in `name` that have no pretrained weights: networks of ours to train from scratch.

    Args:
        name: as for `build_backbone`. Your own module is not imported: it brings its weights.
        weights: as for `build_backbone`.
    """
    names = name.split(",")
    files = [""] * len(names) if weights is None else weights.split(",")
    return [
        part
        for part, file in zip(names, files, strict=False)
        if not file and part in BACKBONES and part not in _PRETRAINED
    ]


def _input_size_of_one(name: str) -> int | None:
    prefix, _, rest = name.partition(":")
    if prefix in PACKAGES:
        return PACKAGES[prefix].declared(rest).size
    if prefix == "onnx":
        return onnx_declared(rest).size
    return EfficientNetLite0.input_size if name in _PRETRAINED else None


def _build_one(
    name: str,
    in_channels: int,
    image_size: tuple[int, int] | None,
    weights: str | None,
    *,
    untrained: bool,
    state: Mapping[str, Tensor] | None,
    options: Mapping[str, object],
) -> nn.Module:
    prefix, colon, rest = name.partition(":")
    if colon and prefix in PREFIXES and not rest:
        raise ValueError(f"backbone: got {name!r}, expected a name behind the colon")
    if prefix == "onnx" and colon:
        if weights is not None or untrained or options:
            raise ValueError(
                f"backbone {name!r}: got weights, untrained or options, expected none: the file holds its weights"
            )
        graph = prepared_graph(rest) if state is None else bytes(_entry(state, "graph", name).numpy().tobytes())
        return OnnxGraph(graph, in_channels=in_channels, image_size=image_size)
    if prefix in PACKAGES and colon:
        source = _Source(state, weights, pretrained=state is None and not untrained)
        backbone: nn.Module = _of_package(prefix, rest, in_channels, image_size, source=source, options=options)
    else:
        given = dict(options)
        if name in _PRETRAINED and (untrained or weights is not None or state is not None):
            given.setdefault("pretrained", False)
        backbone = _own_or_built_in(name, in_channels, image_size, given)
        if weights is not None:
            load_weights(name, getattr(backbone, "network", backbone), weights)
    return backbone


class _Source(NamedTuple):
    """Where the weights of a model come from: a saved state, a file, the package's hub, or none of these.

    Attributes:
        state: saved weights, which the caller loads.
        weights: file with weights.
        pretrained: there are weights that others have trained, in the file or on the hub.
    """

    state: Mapping[str, Tensor] | None
    weights: str | None
    pretrained: bool


def _of_package(
    prefix: str,
    name: str,
    in_channels: int,
    image_size: tuple[int, int] | None,
    *,
    source: _Source,
    options: Mapping[str, object],
) -> Pretrained:
    frozen = options.get("frozen", source.pretrained)
    if options.keys() - {"frozen"} or not isinstance(frozen, bool):
        raise ValueError(f"backbone '{prefix}:{name}': got options {dict(options)}, expected only frozen=True or False")
    network: nn.Module
    if prefix == "hf" and source.state is not None:
        network, declared = transformers_from_state(_under(source.state, "network."))
    elif prefix == "hf" and source.weights is not None:
        network = transformers_with_weights(name, source.weights)
        declared = PACKAGES[prefix].declared(name)
    else:
        from_hub = source.pretrained and source.weights is None
        network, declared = PACKAGES[prefix].network(name, from_hub), PACKAGES[prefix].declared(name)
        if source.weights is not None:
            load_weights(f"{prefix}:{name}", network, source.weights)
    return Pretrained(
        f"{prefix}:{name}",
        network,
        declared,
        in_channels=in_channels,
        image_size=image_size,
        frozen=frozen,
    )


def _own_or_built_in(
    name: str, in_channels: int, image_size: tuple[int, int] | None, options: Mapping[str, object]
) -> nn.Module:
    if name not in BACKBONES and ":" not in name:
        raise ValueError(_unknown(name))
    factory: Callable[..., object] = BACKBONES[name] if name in BACKBONES else import_factory(name)
    known: dict[str, object] = {"in_channels": in_channels, "image_size": image_size}
    given = {key: value for key, value in known.items() if key in parameters(factory) and value is not None}
    backbone = call_factory(name, factory, given | dict(options))
    if name not in BACKBONES:
        return check_backbone(name, backbone, in_channels, image_size)
    assert isinstance(backbone, Backbone)
    if image_size is not None and min(image_size) < backbone.min_size:
        raise ValueError(
            f"backbone {name!r}: got images of {image_size[0]} x {image_size[1]} pixels, "
            f"expected at least {backbone.min_size} x {backbone.min_size}; enlarge them or choose another backbone"
        )
    return backbone


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _entry(state: Mapping[str, Tensor], key: str, name: str) -> Tensor:
    if key not in state:
        raise ValueError(f"backbone {name!r}: got saved weights without {key!r}, expected it; the file is damaged")
    return state[key]


def _unknown(name: str) -> str:
    close = get_close_matches(name.lower().replace("_", "-"), BACKBONES, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    prefixes = ", ".join(f"{prefix}:..." for prefix in PREFIXES)
    return (
        f"backbone: got {name!r}; {hint}Expected one of {', '.join(BACKBONES)}, {prefixes}, or package.module:factory"
    )
