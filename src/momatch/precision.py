"""Where the method must not follow autocast: log joints and moments are computed in float32 or better."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def full_precision(*tensors: Tensor | None) -> Iterator[torch.dtype]:
    """Switch autocast off and give the dtype to compute in: the widest of the tensors', and at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None and tensor.is_floating_point():
            dtype = torch.promote_types(dtype, tensor.dtype)
    device = next(tensor.device.type for tensor in tensors if tensor is not None)
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            yield dtype
    else:
        yield dtype
