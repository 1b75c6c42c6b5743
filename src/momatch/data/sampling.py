"""Sampling: permutations, subsets and the batches of a run, each determined by the seed.

**Draws are the same on every machine and with every version of torch and numpy.** ``torch.randperm`` and
``numpy.random.Generator.permutation`` may change between releases, and the choice of 40 labelled images can change a result by
several points. So only the raw 64-bit output of PCG64 is used, which numpy guarantees not to change (NEP 19); a permutation is
the stable argsort of one word per item. Each purpose has its own bit stream, so drawing for one does not affect another, and no
global generator is read or advanced.

**Batches** (`EpochSampler`) depend on (seed, step). The samples form one endless sequence of permutations, so that after every
epoch each sample has been seen equally often, even if a batch is larger than the set. Batch s is entries ``s * batch_size`` to
``(s + 1) * batch_size`` of that sequence, split into equal consecutive parts for the processes.
"""

import copy
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.dataset import UNLABELED

#: Epochs are drawn in blocks of about this many entries; otherwise a set of 40 samples would cost a draw and a transfer in
#: every step. Blocks key the bit streams, so recorded results depend on this number: never change it.
BLOCK_ENTRIES = 2**16


class Purpose(IntEnum):
    """Purpose of a bit stream. Recorded results depend on the values: never renumber them."""

    SPLIT = 0
    LABELED_BATCHES = 1
    UNLABELED_BATCHES = 2
    CONTAMINATION = 3
    HELD_OUT = 4
    CALIBRATION = 5
    SUBSET = 6


def check_seed(seed: int) -> int:
    """Return `seed`, or raise `ValueError` if it is not a non-negative integer (of any size)."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed: got {seed!r}, expected a non-negative integer")
    return int(seed)


def bit_stream(seed: int, purpose: Purpose, *key: int) -> np.random.PCG64:
    """Generator of raw bits for (seed, purpose, key)."""
    return np.random.PCG64(np.random.SeedSequence(check_seed(seed), spawn_key=(int(purpose), *key)))


def permutations(bits: np.random.PCG64, count: int, size: int) -> Int64[np.ndarray, "{count} {size}"]:
    """`count` independent permutations of ``range(size)``, one per row; consumes ``count * size`` words of `bits`."""
    words = bits.random_raw(count * size).reshape(count, size)
    # Stable, so that even equal words (probability about size^2 / 2^65) give the same order everywhere.
    return np.argsort(words, axis=1, kind="stable").astype(np.int64, copy=False)


def draw_subset(labels: Int64[Tensor, " N"], count: int, *, seed: int) -> Int64[Tensor, " n"]:
    """Positions of `count` samples, ascending; all positions if there are no more.

    Labelled samples are kept first; unlabelled ones are drawn to fill up the rest. If there are more labelled samples than
    `count`, classes keep their proportions.

    Args:
        labels: (N,) labels, `UNLABELED` if not known.
        count: at least 1.
        seed: a non-negative integer.
    """
    bits = bit_stream(seed, Purpose.SUBSET)
    (order,) = permutations(bits, 1, len(labels))
    shuffled = labels[torch.from_numpy(order)]
    # Relative rank of a sample within its class, 0 to 1: taking the first `count` by it keeps the proportions.
    place = torch.zeros(len(labels), dtype=torch.float64)
    for label in shuffled.unique().tolist():
        (members,) = torch.nonzero(shuffled == label, as_tuple=True)
        place[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    place[shuffled == UNLABELED] += 1
    chosen = place.argsort(stable=True)[:count]
    return torch.from_numpy(order)[chosen].sort().values


class EpochSampler:
    """Positions of the samples of each step.

    Args:
        size: number of samples to draw from.
        batch_size: size of the global batch.
        seed: a non-negative integer.
        purpose: selects the bit stream, so that labelled and unlabelled orders are independent.
        rank: rank of this process.
        world_size: number of processes.
        device: device of the positions. Whole blocks are transferred, not single steps.

    Raises:
        ValueError: if there is nothing to draw from, or the batch does not divide evenly among the processes.
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
                f"such as {-(-batch_size // world_size) * world_size}: uneven parts would weight samples unequally"
            )
        self.size, self.batch_size, self.device = size, batch_size, device
        self._seed, self._purpose = check_seed(seed), purpose
        self._part = slice(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
        self._cache: tuple[int, Tensor] | None = None
        self._chosen: Tensor | None = None

    def among(self, chosen: Int64[Tensor, " k"]) -> "EpochSampler":
        """The same sampler over some of its positions.

        Raises:
            ValueError: if there are none.
        """
        if len(chosen) == 0:
            raise ValueError("chosen: got no positions, expected at least one to draw from")
        fresh = copy.copy(self)
        fresh.size, fresh._chosen, fresh._cache = len(chosen), chosen.to(self.device), None
        return fresh

    def positions(self, step: int) -> Int64[Tensor, " n"]:
        """This process's part of the batch of `step`: positions in ``range(size)``, or of those chosen, as a new tensor."""
        start, stop = step * self.batch_size + self._part.start, step * self.batch_size + self._part.stop
        if start == stop:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        length = self._epochs * self.size
        drawn = torch.cat(
            [
                self._block(number)[max(0, start - number * length) : stop - number * length]
                for number in range(start // length, (stop - 1) // length + 1)
            ]
        )
        return drawn if self._chosen is None else self._chosen[drawn]

    @property
    def _epochs(self) -> int:
        """Epochs of a block."""
        return max(1, BLOCK_ENTRIES // max(1, self.size))

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
