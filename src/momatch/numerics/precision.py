"""Opting out of autocast: log joints and moments are computed in float32 or better."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(*tensors: Tensor) -> tuple[torch.dtype, AbstractContextManager[object]]:
    """The dtype to compute in (the widest of the tensors', at least float32), and a context that disables autocast."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor.dtype != dtype and tensor.is_floating_point():
            dtype = torch.promote_types(dtype, tensor.dtype)
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return dtype, torch.autocast(device, enabled=False)
    return dtype, nullcontext()
