"""Random numbers for the views, as a pure function of (seed, step, view, position, draw).

A counter-based generator: the host mixes seed, step and view into one 64-bit key, and each number is the SplitMix64 finaliser
of key + counter * golden ratio, with counter = position * num_draws + draw. This is all wrapping 64-bit integer arithmetic, so
the numbers are the same on every device and in every process, without state, copies from the host or read-back. A
`torch.Generator` differs between CPU and CUDA and depends on everything drawn before.
"""

import functools
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_WORD = (1 << 64) - 1

#: One 64-bit word, or an array of uint64.
Word = TypeVar("Word", int, np.ndarray)


def draw(
    num_samples: int,
    num_draws: int,
    *,
    seed: int,
    step: int,
    view: int = 0,
    offset: int = 0,
    stride: int = 1,
    device: torch.device | str = "cpu",
) -> Int64[Tensor, "n draws"]:
    """Uniform integers in [0, 2^32), one row per sample.

    Args:
        num_samples: number of rows, n.
        num_draws: numbers per sample.
        seed: the run's seed, any integer.
        step: the training step.
        view: which of the step's views; the views of a step are independent.
        offset: position of the first row in the global batch.
        stride: distance between rows in the global batch: row i is for position ``offset + i * stride``.
        device: where to make the numbers.

    Returns:
        int64, (n, num_draws).
    """
    positions = torch.arange(num_samples, device=device) * stride + offset  # (n,)
    return draw_at(positions, num_draws, seed=seed, step=step, view=view)


def draw_at(
    positions: Int64[Tensor, " n"], num_draws: int, *, seed: int, step: int, view: int = 0
) -> Int64[Tensor, "n draws"]:
    """As `draw`, for samples at any positions: any integers, such as the digests of images."""
    key = mix_key(seed, step, view)
    counters = positions[:, None] * num_draws + torch.arange(num_draws, device=positions.device)
    words = _mix(counters * _signed(_GOLDEN) + _signed(key))
    return _shift_right(words, 32)


def mix_key(*parts: Word) -> Word:
    """Mix integers into one 64-bit key; or arrays of uint64, element by element."""
    key: Any = 0
    for part in parts:
        key = _mix_word(((key ^ (part & _WORD)) + _GOLDEN) & _WORD)
    mixed: Word = key
    return mixed


def below(draws: Int64[Tensor, "*shape"], count: int | Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Turn draws in [0, 2^32) into integers in [0, count), count up to 2^31."""
    return (draws * count) >> 32


@functools.cache
def constant(values: tuple[int, ...] | tuple[tuple[int, ...], ...], device: torch.device) -> Int64[Tensor, "..."]:
    """A small table of integers on `device`, cached: copying it in every step would stall an accelerator."""
    return torch.tensor(values, device=device)


def _mix_word(word: Word) -> Word:
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    mixed: Word = word ^ (word >> _SHIFTS[-1])
    return mixed


def _mix(words: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        words = (words ^ _shift_right(words, shift)) * _signed(factor)
    return words ^ _shift_right(words, _SHIFTS[-1])


def _shift_right(words: Int64[Tensor, "*shape"], bits: int) -> Int64[Tensor, "*shape"]:
    """Logical right shift. torch shifts int64 arithmetically, so the copies of the sign bit are masked off."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
