"""Tensors and their metadata on disk: NAME.safetensors, and NAME.json with the checksums of both. No pickle.

The JSON file is

    {"format": kind, "version": 1, ..., "tensors": {"size": bytes, "sha256": hex}, "sha256": hex}

where the last entry is the digest of all others, so that corruption of either file is detected.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momatch.storage.durable import json_bytes, parse_json, read_object

if TYPE_CHECKING:
    from torch import Tensor

#: Increase it when older code can no longer read the files.
VERSION = 1


def encode(kind: str, tensors: "Mapping[str, Tensor]", content: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The bytes of the .safetensors and of the .json file.

    Args:
        kind: format name in the JSON file.
        tensors: on any device, of any dtype that safetensors supports; values are preserved exactly, memory layout is not.
        content: other entries of the JSON file; strict JSON.

    Raises:
        ValueError: if `content` holds NaN or an infinity, or a tensor is sparse or a meta tensor.
    """
    # Imported here, so that listing runs and reading their settings does not load torch.
    from safetensors.torch import save

    data = save(_dense(tensors))
    facts = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    # The digest is computed from what will be read: JSON turns tuples into lists and keys into strings.
    written = parse_json(json_bytes({"format": kind, "version": VERSION, **content, "tensors": facts}))
    return data, json_bytes(written | {"sha256": _digest(written)})


def read_verified(kind: str, json_path: Path, tensor_path: Path) -> tuple[dict[str, Any], bytes]:
    """Read files made by `encode` and verify their checksums.

    Returns:
        The content of the JSON file, and the bytes of the tensor file for `decode`.

    Raises:
        ValueError: if a file is missing, damaged, or of another kind or version.
        OSError: if a file cannot be read.
    """
    content = _read_facts(kind, json_path)
    data = _read(tensor_path)
    recorded = content["tensors"]
    if len(data) != recorded["size"]:
        raise ValueError(f"{tensor_path}: got {len(data)} bytes, expected {recorded['size']}; the file is damaged")
    if hashlib.sha256(data).hexdigest() != recorded["sha256"]:
        raise ValueError(f"{tensor_path}: the checksum does not match; the file is damaged")
    return content, data


def decode(data: bytes) -> "dict[str, Tensor]":
    """The tensors in verified bytes, on the CPU and contiguous.

    Raises:
        ValueError: if the bytes are not a .safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise ValueError(f"got {len(data)} bytes that are not a safetensors file: {error}") from error


def _read_facts(kind: str, path: Path) -> dict[str, Any]:
    content = read_object(path)
    if content is None:
        raise ValueError(f"{path}: there is no such file")
    if content.get("format") != kind:
        raise ValueError(f"{path}: got a file of another kind, expected a {kind}")
    if content.get("version") != VERSION:
        raise ValueError(
            f"{path}: got format version {content.get('version')!r}, expected {VERSION}; "
            "it was written by another release of momatch: use that one"
        )
    recorded = content.pop("sha256", None)
    if recorded != _digest(content):
        raise ValueError(f"{path}: the checksum does not match; the file is damaged or was edited")
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
    """Contiguous tensors on the CPU that share no memory, copied only if necessary."""
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
