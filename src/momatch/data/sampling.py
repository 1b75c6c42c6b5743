"""Which samples are in the batch of a step: a function of (seed, step), without state.

The samples form one endless sequence: a permutation of all of them, then another, and so on, so that after every epoch
each sample has been seen equally often, also where a batch is larger than the whole set. Batch s is the part from
``s * batch_size`` to ``(s + 1) * batch_size`` of that sequence, cut into equal consecutive parts for the processes.
"""

import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.permutations import Purpose, bit_stream, check_seed, permutations

#: Whole epochs are drawn together until a block has about this many entries: a set of 40 samples would otherwise cost a
#: draw and a transfer in every step. Part of every recorded result, as the blocks key the bit streams: never change it.
BLOCK_ENTRIES = 2**16


class EpochSampler:
    """Positions of the samples of each step.

    Args:
        size: number of samples to draw from.
        batch_size: of the global batch.
        seed: a non-negative integer.
        purpose: names the bit stream, so that labelled and unlabelled orders are independent.
        rank: which part of the global batch is wanted,
        world_size: of how many.
        device: where the positions are wanted. A block goes there once, not one transfer a step.

    Raises:
        ValueError: if there is nothing to draw from, or the batch does not divide among the processes.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        seed: int,
        purpose: Purpose,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device,
    ) -> None:
        if size < 1 and batch_size > 0:
            raise ValueError(f"size: got {size} samples, expected at least one to fill batches of {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: got {rank} of world_size {world_size}, expected 0 to world_size - 1")
        if batch_size % world_size:
            raise ValueError(
                f"batch_size: got {batch_size} for {world_size} processes, expected a multiple of {world_size}, "
                f"such as {-(-batch_size // world_size) * world_size}: unequal parts would weigh samples unequally"
            )
        self.size, self.batch_size, self.device = size, batch_size, device
        self._seed, self._purpose = check_seed(seed), purpose
        self._part = slice(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
        self._epochs = max(1, BLOCK_ENTRIES // max(1, size))
        self._cache: tuple[int, Tensor] | None = None

    def positions(self, step: int) -> Int64[Tensor, " n"]:
        """This process's part of the batch of `step`: positions in ``range(size)``, a tensor of its own."""
        start, stop = step * self.batch_size + self._part.start, step * self.batch_size + self._part.stop
        if start == stop:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        length = self._epochs * self.size
        return torch.cat(
            [
                self._block(number)[max(0, start - number * length) : stop - number * length]
                for number in range(start // length, (stop - 1) // length + 1)
            ]
        )

    def _block(self, number: int) -> Int64[Tensor, " entries"]:
        """Entries ``number * length`` to ``(number + 1) * length`` of the endless sequence."""
        cached = self._cache
        if cached is None or cached[0] != number:
            bits = bit_stream(self._seed, self._purpose, number)
            block = torch.from_numpy(permutations(bits, self._epochs, self.size).reshape(-1))
            if self.device.type == "cuda":  # A copy from pageable memory would make the host wait.
                block = block.pin_memory().to(self.device, non_blocking=True)
            cached = self._cache = number, block.to(self.device)
        return cached[1]
