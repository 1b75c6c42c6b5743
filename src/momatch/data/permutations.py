"""Seeded permutations that are the same on every machine and with every version of torch and numpy.

``torch.randperm`` and ``numpy.random.Generator.permutation`` may change their algorithm between releases, and the choice
of 40 labelled images decides a result by several points. So only the raw 64-bit output of PCG64 is used, which numpy
promises to keep (NEP 19), and the permutation is the stable argsort of one such word for each item. Each purpose has a
bit stream of its own: drawing for one never moves another, and no global generator is read or advanced.
"""

from enum import IntEnum

import numpy as np
from jaxtyping import Int64


class Purpose(IntEnum):
    """What a bit stream is for. The values are part of every recorded result: never renumber them."""

    SPLIT = 0
    LABELED_BATCHES = 1
    UNLABELED_BATCHES = 2
    CONTAMINATION = 3
    HELD_OUT = 4
    CALIBRATION = 5
    SUBSET = 6


def check_seed(seed: int) -> int:
    """Return `seed` if it is a non-negative integer (of any size).

    Raises:
        ValueError: if it is not.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed: got {seed!r}, expected a non-negative integer")
    return int(seed)


def bit_stream(seed: int, purpose: Purpose, *key: int) -> np.random.PCG64:
    """The generator of raw bits for (seed, purpose, key)."""
    return np.random.PCG64(np.random.SeedSequence(check_seed(seed), spawn_key=(int(purpose), *key)))


def permutations(bits: np.random.PCG64, count: int, size: int) -> Int64[np.ndarray, "{count} {size}"]:
    """`count` independent permutations of ``range(size)``, one a row; takes ``count * size`` words of `bits`."""
    words = bits.random_raw(count * size).reshape(count, size)
    # Stable, so that even equal words (about size^2 / 2^65 likely) give one order everywhere.
    return np.argsort(words, axis=1, kind="stable").astype(np.int64, copy=False)
