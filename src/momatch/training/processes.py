"""Several processes that act as one: what is gathered and averaged so that a step is that of the global batch.

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
        rank: its number.
        world_size: how many there are.
        local_rank: its number on this machine, which is that of its GPU.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """True in the one process that writes and speaks."""
        return self.rank == 0

    def gather(self, part: Shaped[Tensor, "n *rest"]) -> Shaped[Tensor, "N *rest"]:
        """The parts of all processes, concatenated by rank; without gradient."""
        if self.world_size == 1:
            return part.detach()
        part = part.detach().contiguous()
        # gloo knows no bool.
        wire = part.to(torch.uint8) if part.dtype == torch.bool else part
        parts = [torch.empty_like(wire) for _ in range(self.world_size)]
        dist.all_gather(parts, wire)
        return torch.cat(parts).to(part.dtype)

    def gather_with_gradient(self, part: Shaped[Tensor, "n *rest"]) -> Shaped[Tensor, "N *rest"]:
        """The same with gradient, for a loss that every process computes on the whole and whose gradients are then averaged."""
        if self.world_size == 1:
            return part
        gathered = self.gather(part)
        begin = self.rank * len(part)
        # All processes see the same loss of the gathered batch; averaging divides each part's only gradient by their number.
        own = _scale_gradient(part, float(self.world_size))
        return torch.cat([gathered[:begin], own, gathered[begin + len(part) :]])

    def own_part(self, whole: Shaped[Tensor, "N *rest"]) -> Shaped[Tensor, "n *rest"]:
        """This process's part of a gathered tensor."""
        return whole if self.world_size == 1 else whole.chunk(self.world_size)[self.rank]

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one dtype by their means over the processes, in one message."""
        if self.world_size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.world_size
        for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view(tensor.shape))

    def any(self, flag: bool, device: torch.device) -> bool:
        """True if the flag is raised in any process; waits for all of them."""
        if self.world_size == 1:
            return flag
        raised = torch.tensor(float(flag), device=device)
        dist.all_reduce(raised)
        return bool(raised > 0)

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """The processes that torchrun started, joined into a group; or this one alone.

    Args:
        device: "cuda" talks through nccl, anything else through gloo.
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
