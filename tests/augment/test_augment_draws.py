"""The random numbers: against a plain Python version, uniform, and a function of their position alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from momatch.augment.draws import below, draw

WORD = (1 << 64) - 1


def splitmix(word):
    """SplitMix64's finaliser on Python integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def naive(position, draw_index, *, num_draws, seed, step, view):
    key = 0
    for part in (seed, step, view):
        key = splitmix(((key ^ (part & WORD)) + 0x9E3779B97F4A7C15) & WORD)
    counter = position * num_draws + draw_index
    return splitmix((key + counter * 0x9E3779B97F4A7C15) & WORD) >> 32


@given(
    seed=st.integers(-(2**63), 2**64), step=st.integers(0, 2**40), view=st.integers(0, 9), offset=st.integers(0, 2**40)
)
def test_equals_plain_python(seed, step, view, offset):
    got = draw(3, 4, seed=seed, step=step, view=view, offset=offset, stride=2)
    expected = [
        [naive(offset + 2 * i, j, num_draws=4, seed=seed, step=step, view=view) for j in range(4)] for i in range(3)
    ]
    assert got.tolist() == expected


def test_known_values_stay():
    """A change here changes every user's views."""
    assert draw(2, 2, seed=3474173998, step=7, view=1).tolist() == [[3229979930, 660153522], [3198429740, 1795500390]]


def test_uniform_and_uncorrelated():
    u = draw(50_000, 4, seed=0, step=0).double() / 2**32
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.histc(u.flatten().float(), bins=100, min=0, max=1)
    chi_squared = ((counts - 2000) ** 2 / 2000).sum()
    assert 50 < chi_squared < 160  # 99 degrees of freedom: 99 ± 14
    streams = [u] + [
        draw(50_000, 4, **{"seed": 0, "step": 0, "view": 0, **changed}).double() / 2**32
        for changed in ({"seed": 1}, {"step": 1}, {"view": 1})
    ]
    correlation = torch.corrcoef(torch.cat(streams, dim=1).T) - torch.eye(16)
    assert correlation.abs().max() < 0.025  # 5.5 standard errors


def test_below_reaches_every_value_evenly():
    counts = below(draw(70_000, 1, seed=0, step=0), 14).flatten().bincount()
    assert len(counts) == 14
    assert (counts - 5000).abs().max() < 350  # five standard errors


def test_shards_hold_the_numbers_of_the_whole_batch():
    whole = draw(12, 5, seed=3, step=4)
    blocks = [draw(4, 5, seed=3, step=4, offset=4 * rank) for rank in range(3)]
    turns = [draw(4, 5, seed=3, step=4, offset=rank, stride=3) for rank in range(3)]
    assert torch.equal(torch.cat(blocks), whole)
    assert torch.equal(torch.stack(turns, dim=1).flatten(0, 1), whole)
