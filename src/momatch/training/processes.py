"""Distributed training: what is gathered and averaged so that several processes take the same step as one.

Each process holds an equal part of the batch. Losses that are means over samples are averaged through their gradients;
whatever mixes samples (moments, class counts, thresholds) is computed by every process on the gathered batch.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """This process among the others.

    Attributes:
        rank: number of this process.
        world_size: number of processes.
        local_rank: number of this process on its machine, and of its GPU.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """True in the process that writes files and prints."""
        return self.rank == 0

    def gather(self, part: Shaped[Tensor, "n *rest"]) -> Shaped[Tensor, "N *rest"]:
        """The parts of all processes, concatenated by rank; without gradient."""
        if self.world_size == 1:
            return part.detach()
        part = part.detach().contiguous()
        # gloo does not support bool.
        wire = part.to(torch.uint8) if part.dtype == torch.bool else part
        parts = [torch.empty_like(wire) for _ in range(self.world_size)]
        dist.all_gather(parts, wire)
        return torch.cat(parts).to(part.dtype)

    def gather_with_gradient(self, part: Shaped[Tensor, "n *rest"]) -> Shaped[Tensor, "N *rest"]:
        """`gather` with gradient, for losses that every process computes on the global batch."""
        if self.world_size == 1:
            return part
        gathered = self.gather(part)
        begin = self.rank * len(part)
        # Only this process has a gradient for its part; averaging over the processes divides it by their number.
        own = _scale_gradient(part, float(self.world_size))
        return torch.cat([gathered[:begin], own, gathered[begin + len(part) :]])

    def own_part(self, whole: Shaped[Tensor, "N *rest"]) -> Shaped[Tensor, "n *rest"]:
        """This process's part of a gathered tensor."""
        return whole if self.world_size == 1 else whole.chunk(self.world_size)[self.rank]

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors of one dtype over the processes in place, with one all-reduce."""
        if self.world_size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.world_size
        for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view(tensor.shape))

    def any(self, flag: bool, device: torch.device) -> bool:
        """True if `flag` is set in any process; synchronises them."""
        if self.world_size == 1:
            return flag
        raised = torch.tensor(float(flag), device=device)
        dist.all_reduce(raised)
        return bool(raised > 0)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """Join the processes started by torchrun into a group; a single process needs none.

    Args:
        device: "cuda" uses nccl, anything else gloo.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Processes()
        return
    already = dist.is_initialized()
    if not already:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), world_size, int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        if not already:
            dist.destroy_process_group()


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None  # type: ignore[attr-defined]


def _scale_gradient(x: Tensor, factor: float) -> Tensor:
    scaled: Tensor = _ScaleGradient.apply(x, factor)  # type: ignore[no-untyped-call]
    return scaled
