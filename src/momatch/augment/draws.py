"""Random numbers for the views, as a pure function of (seed, step, view, position, draw).

A counter-based generator: the host mixes seed, step and view into one 64-bit key, and each number is the SplitMix64 finaliser
of key + counter * golden ratio, with counter = position * num_draws + draw. Everything is 64-bit integer arithmetic that wraps
around, so the numbers are the same on every device and in every process, need no state, no copy from the host and no read-back.
A `torch.Generator` gives none of that: its numbers differ between CPU and CUDA and depend on everything drawn before.
"""

import functools

import torch
from jaxtyping import Int64
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_WORD = (1 << 64) - 1


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
    """Uniform integers in [0, 2^32), one row a sample.

    Args:
        num_samples: rows to draw, n.
        num_draws: numbers a sample.
        seed: the run's seed, any integer.
        step: the training step.
        view: which of the step's views; two views of one step are independent.
        offset: position in the global batch of the first row.
        stride: distance in the global batch between rows; row i holds the numbers of position ``offset + i * stride``.
        device: where the numbers are made.

    Returns:
        int64, (n, num_draws).
    """
    key = mix_key(seed, step, view)
    positions = torch.arange(num_samples, device=device) * stride + offset  # (n,)
    counters = positions[:, None] * num_draws + torch.arange(num_draws, device=device)
    words = _mix(counters * _signed(_GOLDEN) + _signed(key))
    return _shift_right(words, 32)


def mix_key(*parts: int) -> int:
    """A 64-bit key that differs where any of the integers differs."""
    key = 0
    for part in parts:
        key = _mix_word(((key ^ (part & _WORD)) + _GOLDEN) & _WORD)
    return key


def below(draws: Int64[Tensor, "*shape"], count: int | Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Turn draws in [0, 2^32) into integers in [0, count), count up to 2^31."""
    return (draws * count) >> 32


@functools.cache
def constant(values: tuple[int, ...] | tuple[tuple[int, ...], ...], device: torch.device) -> Int64[Tensor, "..."]:
    """A small table of integers on `device`, copied there once: a copy in every step would make an accelerator wait."""
    return torch.tensor(values, device=device)


def _mix_word(word: int) -> int:
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> _SHIFTS[-1])


def _mix(words: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        words = (words ^ _shift_right(words, shift)) * _signed(factor)
    return words ^ _shift_right(words, _SHIFTS[-1])


def _shift_right(words: Int64[Tensor, "*shape"], bits: int) -> Int64[Tensor, "*shape"]:
    """Logical shift: torch shifts int64 arithmetically, so the copies of the sign bit are masked off."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
