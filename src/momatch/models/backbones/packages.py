"""Pretrained models of other packages, by name: timm, torchvision and transformers (docs/backbones.md).

Each is imported only when it is named. All give a network that maps normalised RGB images to features (n, F), and what the
model declares about its input.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from momatch.models.backbones.base import Declared
from momatch.models.backbones.weights import NoWeightsError, read_weights

#: Buffer of a transformers model that holds its description.
DESCRIPTION = "description"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_SIZE = 224


class Package(NamedTuple):
    """How to get models of a package.

    Attributes:
        declared: name -> what the model declares about its input.
        network: (name, pretrained) -> the network up to its features.
    """

    declared: Callable[[str], Declared]
    network: Callable[[str, bool], nn.Module]


def _package(prefix: str, name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{prefix}: needs {package}, which cannot be imported ({error}); pip install {package}"
        ) from error


def _unknown(prefix: str, name: str, known: list[str]) -> ValueError:
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(f'{prefix}:{other}' for other in close)}?" if close else ""
    return ValueError(f"backbone: got '{prefix}:{name}', which {prefix} does not have{hint}")


@contextmanager
def _weights_at_hand(name: str) -> Iterator[None]:
    """Turn whatever a hub raises, offline or for a name that it does not have, into `NoWeightsError`."""
    try:
        yield
    except Exception as error:
        raise NoWeightsError(name, f"{type(error).__name__}: {error}") from error


# timm


def _timm_declared(name: str) -> Declared:
    found = _timm_config(name)
    return Declared(int(found.input_size[-1]), (tuple(map(float, found.mean)), tuple(map(float, found.std))))


def _timm_config(name: str) -> Any:
    timm = _package("timm", "timm")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    found = timm.get_pretrained_cfg(name)
    if found is None:
        raise _unknown("timm", name, timm.list_pretrained(f"{name.partition('.')[0]}*"))
    return found


def _timm_network(name: str, pretrained: bool) -> nn.Module:
    timm = _package("timm", "timm")
    found = _timm_config(name)
    if pretrained and not found.has_weights:
        raise NoWeightsError(f"timm:{name}", "timm has none for it")
    if not pretrained:
        untrained: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
        return untrained
    with _weights_at_hand(f"timm:{name}"):
        network: nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
        return network


# torchvision


def _torchvision_weights(name: str) -> Any:
    """The best weights of a model, with the preprocessing that they declare; None if there are none."""
    models = _package("torchvision", "torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise _unknown("torchvision", name, known)
    return getattr(models.get_model_weights(name), "DEFAULT", None)


def _torchvision_declared(name: str) -> Declared:
    weights = _torchvision_weights(name)
    if weights is None:
        return Declared(_SIZE, _IMAGENET)
    given = weights.transforms()
    return Declared(int(given.crop_size[0]), (tuple(map(float, given.mean)), tuple(map(float, given.std))))


def _torchvision_network(name: str, pretrained: bool) -> nn.Module:
    models = _package("torchvision", "torchvision.models")
    weights = _torchvision_weights(name)
    if pretrained and weights is None:
        raise NoWeightsError(f"torchvision:{name}", "torchvision has none for it")
    if pretrained:
        with _weights_at_hand(f"torchvision:{name}"):
            network: nn.Module = models.get_model(name, weights=weights)
    else:
        # Some models warn about how they initialise weights, which training or a file replaces.
        options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
        network = models.get_model(name, weights=None, **options)
    return _without_classifier(network)


def _without_classifier(network: nn.Module) -> nn.Module:
    """The network with its last linear layer (or, in SqueezeNet, convolution) left out: what it reads are the features."""
    name = [key for key, part in network.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)][-1]
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, nn.Identity())
    return network


# transformers


class TransformersNetwork(nn.Module):
    """A vision model of transformers up to its features: what it pools, or its first token.

    Its configuration is kept in a buffer, so that the weights alone are enough to build it again without the hub.

    Args:
        network: the model.
        declared: what its image processor declares.
        pooled: its pooling layer was trained; a checkpoint of a classifier may lack it.
    """

    description: UInt8[Tensor, " bytes"]

    def __init__(self, network: Any, declared: Declared, *, pooled: bool = True) -> None:
        super().__init__()
        self.network = network
        self.pooled = pooled
        text = json.dumps(
            {
                "config": network.config.to_dict(),
                "size": declared.size,
                "normalization": declared.normalization,
                "pooled": pooled,
            }
        )
        self.register_buffer(DESCRIPTION, torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))

    def forward(self, x: Float[Tensor, "n 3 H W"]) -> Float[Tensor, "n F"]:
        """Features of normalised RGB images."""
        returned = self.network(pixel_values=x)
        pooled: Tensor | None = getattr(returned, "pooler_output", None)
        if self.pooled and pooled is not None:
            return pooled.flatten(1)
        last: Tensor = returned.last_hidden_state
        return last[:, 0] if last.ndim == 3 else last.mean((2, 3))


def _hf_processor(name: str) -> dict[str, Any]:
    base = _package("hf", "transformers").image_processing_base.ImageProcessingMixin
    with _weights_at_hand(f"hf:{name}"):
        found, _ = base.get_image_processor_dict(name)
    return dict(found)


def _hf_declared(name: str) -> Declared:
    found = _hf_processor(name)
    size = found.get("crop_size") if found.get("do_center_crop") else None
    size = size or found.get("size") or _SIZE
    side = size if isinstance(size, int) else next(int(size[key]) for key in ("height", "shortest_edge") if key in size)
    if not found.get("do_normalize", True):
        return Declared(side, ((0.0,) * 3, (1.0,) * 3))
    mean, std = found.get("image_mean", _IMAGENET[0]), found.get("image_std", _IMAGENET[1])
    return Declared(side, (tuple(map(float, mean)), tuple(map(float, std))))


def _hf_network(name: str, pretrained: bool) -> nn.Module:
    transformers = _package("hf", "transformers")
    declared = _hf_declared(name)
    if not pretrained:
        with _weights_at_hand(f"hf:{name}"):
            config = transformers.AutoConfig.from_pretrained(name)
        return TransformersNetwork(_vision(transformers.AutoModel.from_config(config)), declared)
    with _weights_at_hand(f"hf:{name}"):
        model, loading = transformers.AutoModel.from_pretrained(name, output_loading_info=True)
    if missing := _missing(loading):
        raise NoWeightsError(f"hf:{name}", f"its checkpoint lacks {len(missing)} weights, such as {missing[0]}")
    return TransformersNetwork(_vision(model).float(), declared, pooled=not loading["missing_keys"])


def _missing(loading: Mapping[str, Any]) -> list[str]:
    """Weights that a checkpoint lacks. A pooling layer is not among them: that of a classifier may have none."""
    return sorted(key for key in loading["missing_keys"] if "pooler" not in key)


def transformers_with_weights(name: str, path: str) -> TransformersNetwork:
    """A transformers model with the configuration of a repository or folder, and weights from another file.

    Raises:
        ImportError: if transformers is not installed.
        ValueError: if there is no configuration, or the file cannot be read, lacks weights, or has them in other shapes.
    """
    transformers = _package("hf", "transformers")
    declared = _hf_declared(name)
    with _weights_at_hand(f"hf:{name}"):
        config = transformers.AutoConfig.from_pretrained(name)
        kind = transformers.MODEL_MAPPING[type(config)]
    found = read_weights(path)
    try:
        # It knows what other classes of the model put before the names of the weights.
        model, loading = kind.from_pretrained(None, config=config, state_dict=found, output_loading_info=True)
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())[:300]
        raise ValueError(f"{path}: got weights that do not fit the configuration of 'hf:{name}' ({text})") from error
    if missing := _missing(loading):
        raise ValueError(
            f"{path}: got {len(found)} tensors ({', '.join(list(found)[:3])}, ...) without {len(missing)} that backbone "
            f"'hf:{name}' has, expected all: {', '.join(missing[:3])}, ..."
        )
    return TransformersNetwork(_vision(model).float(), declared, pooled=not loading["missing_keys"])


def _vision(model: Any) -> Any:
    """The part of a model that sees images: CLIP and its like have one for text, too."""
    return getattr(model, "vision_model", model)


def transformers_from_state(state: Mapping[str, Tensor]) -> tuple[TransformersNetwork, Declared]:
    """A transformers model, untrained, from the description among its saved weights; nothing is downloaded.

    Raises:
        ImportError: if transformers is not installed.
        ValueError: if there is no description.
    """
    transformers = _package("hf", "transformers")
    try:
        content = json.loads(bytes(state[DESCRIPTION].numpy().tobytes()))
        mean, std = content["normalization"]
        config = dict(content["config"])
        kind = config.pop("model_type")
        declared = Declared(int(content["size"]), (tuple(map(float, mean)), tuple(map(float, std))))
        settings = transformers.CONFIG_MAPPING[kind].from_dict(config)
        model = _vision(transformers.MODEL_MAPPING[type(settings)](settings))
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"weights: the description of a transformers model cannot be read ({error})") from error
    return TransformersNetwork(model, declared, pooled=bool(content["pooled"])), declared


#: Prefix -> package.
PACKAGES: dict[str, Package] = {
    "timm": Package(_timm_declared, _timm_network),
    "torchvision": Package(_torchvision_declared, _torchvision_network),
    "hf": Package(_hf_declared, _hf_network),
}
