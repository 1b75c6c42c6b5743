"""Tensors and the facts about them on disk: NAME.safetensors, and NAME.json with the checksums of both.

No pickle is written or read. The JSON file is

    {"format": kind, "version": 1, ..., "tensors": {"size": bytes, "sha256": hex}, "sha256": hex}

where the last entry is the digest of all the others, so that a flipped bit is found in either file.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momatch.storage.durable import json_bytes, parse_json, read_object

if TYPE_CHECKING:
    from torch import Tensor

#: Raise it when what is written can no longer be read by older code.
VERSION = 1


def encode(kind: str, tensors: "Mapping[str, Tensor]", content: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The bytes of the .safetensors and of the .json file.

    Args:
        kind: what the files are, as the JSON file names it.
        tensors: of any device, layout and dtype that safetensors knows; values come back bit by bit, layout does not.
        content: what else stands in the JSON file, strict JSON.

    Raises:
        ValueError: if `content` holds NaN or an infinity, or a tensor is sparse or has no values.
    """
    # Not at the top: whoever lists runs and reads their settings must not wait for torch.
    from safetensors.torch import save

    data = save(_dense(tensors))
    facts = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    # The digest is that of what will be read: JSON turns tuples into lists and all keys into strings.
    written = parse_json(json_bytes({"format": kind, "version": VERSION, **content, "tensors": facts}))
    return data, json_bytes(written | {"sha256": _digest(written)})


def read_verified(kind: str, json_path: Path, tensor_path: Path) -> tuple[dict[str, Any], bytes]:
    """Read what `encode` made and compare checksums.

    Returns:
        The content of the JSON file, and the bytes of the other for `decode`.

    Raises:
        ValueError: if a file is missing, damaged, of another kind or of another version.
        OSError: if a file is there and cannot be read.
    """
    content = _read_facts(kind, json_path)
    data = _read(tensor_path)
    recorded = content["tensors"]
    if len(data) != recorded["size"]:
        raise ValueError(f"{tensor_path}: got {len(data)} bytes, expected {recorded['size']}; the file is damaged")
    if hashlib.sha256(data).hexdigest() != recorded["sha256"]:
        raise ValueError(f"{tensor_path}: its checksum is not the recorded one; the file is damaged")
    return content, data


def decode(data: bytes) -> "dict[str, Tensor]":
    """The tensors in verified bytes, on the CPU and contiguous.

    Raises:
        ValueError: if the bytes are not those of a .safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise ValueError(f"got {len(data)} bytes that are no safetensors file: {error}") from error


def _read_facts(kind: str, path: Path) -> dict[str, Any]:
    content = read_object(path)
    if content is None:
        raise ValueError(f"{path}: there is no such file")
    if content.get("format") != kind:
        raise ValueError(f"{path}: got a file of another kind, expected a {kind}")
    if content.get("version") != VERSION:
        raise ValueError(
            f"{path}: got version {content.get('version')!r} of the format, expected {VERSION}; "
            "it was written by another release of momatch: use that one"
        )
    recorded = content.pop("sha256", None)
    if recorded != _digest(content):
        raise ValueError(f"{path}: its checksum is not the recorded one; the file is damaged or was edited")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{path}: there is no such file") from error


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _dense(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Contiguous tensors on the CPU that share no memory, copied only where they must be."""
    import torch

    dense: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.is_meta or tensor.layout is not torch.strided:
            raise ValueError(f"{name}: got a tensor of layout {tensor.layout} on {tensor.device}, expected a dense one")
        value = tensor.detach().cpu().contiguous()
        if value.untyped_storage().data_ptr() in seen:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        dense[name] = value
    return dense
