"""Weights from a file, for machines without a hub: safetensors, or a state dict that is read without running code."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

#: Entries of training checkpoints that hold the state dict.
_NESTED = ("state_dict", "model_state_dict", "model")
#: What libraries put before the names of a network's tensors.
_PREFIXES = ("", "module.", "model.", "network.", "backbone.")


class NoWeightsError(ValueError):
    """A model has no pretrained weights at hand.

    Args:
        name: of the backbone.
        reason: why there are none.
    """

    def __init__(self, name: str, reason: object) -> None:
        text = " ".join(str(reason).split())
        super().__init__(
            f"backbone {name!r}: got no pretrained weights ({text[:300]}), expected some: pass a file (--weights FILE), or "
            "use random ones (--untrained)"
        )


def load_weights(name: str, network: nn.Module, path: str | Path) -> None:
    """Load the weights in a file into a network; what the file has beyond them, such as a classifier, is left out.

    Args:
        name: of the backbone, for messages.
        network: to fill.
        path: a .safetensors file, or a state dict saved by torch.

    Raises:
        ValueError: if the file cannot be read, lacks weights, or has them in other shapes.
    """
    found = read_weights(path)
    own = network.state_dict()
    prefix = max(_PREFIXES, key=lambda before: sum(before + key in found for key in own))
    fitting = {key: found[prefix + key] for key in own if prefix + key in found}
    # Counts of batches change nothing; files of old releases lack them.
    missing = [key for key in own if key not in fitting and not key.endswith("num_batches_tracked")]
    if missing:
        raise ValueError(
            f"{path}: got {len(found)} tensors ({', '.join(list(found)[:3])}, ...) without {len(missing)} of the "
            f"{len(own)} that backbone {name!r} has, expected all: {', '.join(missing[:3])}, ..."
        )
    for key, value in fitting.items():
        if value.shape != own[key].shape:
            raise ValueError(
                f"{path}: {prefix + key}: got shape {tuple(value.shape)}, expected {tuple(own[key].shape)} for {name!r}"
            )
    network.load_state_dict(fitting, strict=False)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a file by name; nothing in it is run.

    Raises:
        ValueError: if it cannot be read.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(
            f"weights: got {path}, which is no file, expected a .safetensors file or a state dict of torch"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        # What torch says of a pickle is advice to load it unsafely.
        said = f" ({' '.join(str(error).split())[:200]})" if isinstance(error, SafetensorError) else ""
        raise ValueError(
            f"{path}: cannot be read as weights{said}, expected safetensors or a state dict of torch; a file that holds whole "
            "Python objects is not loaded, because it could run any code: save its state_dict()"
        ) from error
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _NESTED if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: got a {type(content).__name__}, expected a state dict: names and tensors")
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
