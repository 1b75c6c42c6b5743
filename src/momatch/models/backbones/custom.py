"""Your own backbones: imported as ``package.module:factory`` and checked before training. Algorithms use the same gate."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

#: Prefixes of models that other packages or files hold: their names import nothing of the user's.
PREFIXES = ("timm", "torchvision", "hf", "onnx")
#: Image side for the dry run if the size of the data is not known.
_DRY_RUN_SIZE = 32


class UntrustedCodeError(ValueError):
    """A file names code to run, and the user has not allowed it."""


def imports_code(backbone: str) -> bool:
    """Whether a backbone is, or contains, a user's own module: ``package.module:factory``."""
    return any(":" in part and part.partition(":")[0] not in PREFIXES for part in backbone.split(","))


def check_trusted(name: str, source: object, *, trust_code: bool | str, kind: str = "backbone") -> None:
    """Refuse to import what a file names, unless the user allows it.

    Args:
        name: a built-in name, ``package.module:factory``, or several with commas between them.
        source: the file, for the message.
        trust_code: True to allow any import; or what the user named, separated by commas.
        kind: what is imported, for the message.

    Raises:
        UntrustedCodeError: if it is not allowed.
    """
    named = trust_code.split(",") if isinstance(trust_code, str) else []
    own = [part for part in name.split(",") if imports_code(part)]
    if trust_code is not True and any(part not in named for part in own):
        module, _, factory = next(part for part in own if part not in named).partition(":")
        raise UntrustedCodeError(
            f"{source} names the {kind} {name!r}: loading it would import the module {module!r} and call {factory!r}, "
            "which can run any code; if you trust it, pass --trust-code (in Python: trust_code=True)"
        )


def import_factory(path: str, kind: str = "backbone") -> Callable[..., object]:
    """Import the callable that ``package.module:factory`` names.

    Args:
        path: its name.
        kind: what it is, for messages.

    Raises:
        ValueError: if there is no such module or attribute, or it is not callable. Errors raised by the module itself are
            not caught, to keep their traceback.
    """
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"{kind}: got {path!r}, expected package.module:factory")
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        # Only the named module or its parents; a missing import inside the module is another problem.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"{kind}: got {path!r}, but there is no module {error.name!r}; "
            "install the package or put its folder on PYTHONPATH (PYTHONPATH=. for the current directory)"
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ValueError(f"{kind}: got {path!r}, but {module_name!r} has no attribute {attribute!r}")
        found = getattr(found, name)
    if not callable(found):
        raise ValueError(
            f"{kind}: got {path!r}, which is a {type(found).__name__}, expected a callable that returns a module"
        )
    return found


def call_factory(name: str, factory: Callable[..., object], options: Mapping[str, object]) -> object:
    """Call `factory` with `options` after checking them against its signature.

    Raises:
        ValueError: if the factory does not accept these options.
    """
    try:
        _signature(factory).bind(**options)
    except TypeError as error:
        takes = ", ".join(parameters(factory)) or "none"
        raise ValueError(f"backbone {name!r}: got options {dict(options)}: {error}; it accepts: {takes}") from error
    return factory(**options)


def parameters(factory: Callable[..., object]) -> tuple[str, ...]:
    """Names of the keyword parameters of `factory`."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(key for key, value in _signature(factory).parameters.items() if value.kind in by_keyword)


def _signature(factory: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(factory)
    except ValueError:  # some callables written in C have no signature
        return inspect.signature(lambda **options: None)


def check_backbone(name: str, backbone: object, in_channels: int, image_size: tuple[int, int] | None) -> nn.Module:
    """Check a user's `backbone` and set its `num_features`.

    The number is read from its attribute `num_features` or `feature_dim`. If the image size is known or nothing is declared, a
    dry run determines or confirms it: in evaluation mode, without gradient, restoring modes afterwards. The dry run
    initialises lazy modules.

    Raises:
        ValueError: if it is not a module, it is lazy and the image size is unknown, the dry run fails or returns anything but
            (n, features), or the result differs from the declared number.
    """
    if not isinstance(backbone, nn.Module):
        raise ValueError(f"backbone {name!r}: got a {type(backbone).__name__}, expected a torch.nn.Module")
    declared: Any = getattr(backbone, "num_features", getattr(backbone, "feature_dim", None))
    if declared is not None and (isinstance(declared, bool) or not isinstance(declared, int) or declared < 1):
        raise ValueError(f"backbone {name!r}: declares {declared!r} features, expected an integer of at least 1")
    if image_size is not None or declared is None:
        if image_size is None and any(nn.parameter.is_lazy(parameter) for parameter in backbone.parameters()):
            raise ValueError(
                f"backbone {name!r}: has lazy layers, whose shape depends on the input; pass the image_size of the data"
            )
        size = image_size or (_DRY_RUN_SIZE, _DRY_RUN_SIZE)
        returned = dry_run(name, backbone, (2, in_channels, *size))
        if declared is not None and declared != returned:
            raise ValueError(
                f"backbone {name!r}: declares {declared} features but returns {returned}; "
                "return features, not classes (drop the last layer)"
            )
        declared = returned
    if not hasattr(backbone, "num_features"):
        backbone.num_features = declared
    return backbone


def dry_run(name: str, backbone: nn.Module, shape: tuple[int, int, int, int]) -> int:
    """The number of features that a network returns for black images, in evaluation mode and without gradient.

    Raises:
        ValueError: if it fails, or returns anything but (n, features).
    """
    modes = {module: module.training for module in backbone.modules()}
    parameter = next((value for value in backbone.parameters() if not nn.parameter.is_lazy(value)), torch.empty(0))
    images = torch.zeros(shape, device=parameter.device, dtype=parameter.dtype)
    backbone.eval()
    try:
        with torch.no_grad():
            features = backbone(images)
    except Exception as error:
        raise ValueError(
            f"backbone {name!r}: a dry run on images of shape {shape} failed with {type(error).__name__}: {error}; "
            "it must accept (n, C, H, W); pass the in_channels and image_size of the data"
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training
    if not isinstance(features, Tensor):
        raise ValueError(f"backbone {name!r}: returned a {type(features).__name__}, expected a tensor (n, features)")
    if features.ndim != 2 or features.shape[0] != shape[0] or features.shape[1] == 0:
        raise ValueError(
            f"backbone {name!r}: returned shape {tuple(features.shape)} for {shape[0]} images, "
            f"expected ({shape[0]}, features); pool over the pixels and flatten"
        )
    return features.shape[1]
