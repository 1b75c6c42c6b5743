"""The endless order of samples, against a naive version of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momatch.data import sampling
from momatch.data.sampling import EpochSampler, Purpose

CPU = torch.device("cpu")


def sampler(size, batch_size, **kwargs):
    arguments = {"seed": 0, "purpose": Purpose.UNLABELED_BATCHES, "device": CPU, **kwargs}
    return EpochSampler(size, batch_size, **arguments)


def sequence(epoch_sampler, steps):
    return torch.cat([epoch_sampler.positions(step) for step in range(steps)])


@pytest.mark.parametrize(("size", "batch_size"), [(40, 64), (7, 7), (10, 3), (3, 1000), (1, 5)])
def test_every_epoch_is_a_permutation(size, batch_size):
    steps = -(-5 * size // batch_size)
    drawn = sequence(sampler(size, batch_size), steps)
    epochs = drawn[: len(drawn) // size * size].view(-1, size)
    assert len(epochs) >= 5
    assert (epochs.sort(1).values == torch.arange(size)).all()
    if size > 5:
        assert len({tuple(epoch.tolist()) for epoch in epochs}) == len(epochs)


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32))
def test_batches_are_cuts_of_one_sequence(size, batch_size, block_entries, seed):
    """The batch size moves the cuts, never the order; blocks leave no seam."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "BLOCK_ENTRIES", block_entries)
        one_by_one = sequence(sampler(size, 1, seed=seed), 3 * batch_size)
        assert torch.equal(sequence(sampler(size, batch_size, seed=seed), 3), one_by_one)


def test_values_are_frozen():
    """Recorded results depend on these."""
    assert sampler(40, 8).positions(5).tolist() == [14, 29, 12, 3, 26, 30, 9, 15]
    assert sampler(50_000, 4).positions(2**20).tolist() == [44331, 45558, 26115, 7693]
    labeled = sampler(40, 8, purpose=Purpose.LABELED_BATCHES, seed=3474173998)
    assert labeled.positions(9000).tolist() == [18, 16, 33, 36, 7, 11, 27, 37]


@given(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 2000))
def test_ranks_hold_the_batch_in_order(world_size, step):
    whole = sampler(17, 12).positions(step)
    parts = [sampler(17, 12, rank=rank, world_size=world_size).positions(step) for rank in range(world_size)]
    assert {len(part) for part in parts} == {12 // world_size}
    assert torch.equal(torch.cat(parts), whole)


def test_steps_in_any_order():
    steps = [0, 9000, 3, 8999, 3]
    one = sampler(40, 64)
    assert all(torch.equal(one.positions(step), sampler(40, 64).positions(step)) for step in steps)


def test_a_caller_may_change_what_it_got():
    one = sampler(10, 4)
    one.positions(0).fill_(-1)
    assert one.positions(0).min() >= 0


def test_empty_batches_need_no_samples():
    assert len(sampler(0, 0).positions(3)) == 0
    with pytest.raises(ValueError, match="size: got 0 samples, expected at least one to fill batches of 4"):
        sampler(0, 4)


def test_of_some_positions_each_is_drawn_once_an_epoch():
    chosen, whole = torch.tensor([3, 4, 8, 20, 21, 39]), sampler(40, 8)
    some = whole.among(chosen)
    epochs = sequence(some, 6).view(-1, len(chosen))
    assert (epochs.sort(1).values == chosen).all()
    # In the order of a set of that size; and the sampler itself goes on as before.
    assert torch.equal(sequence(some, 6), chosen[sequence(sampler(6, 8), 6)])
    assert torch.equal(sequence(whole, 6), sequence(sampler(40, 8), 6))
    parts = [sampler(40, 8, rank=rank, world_size=2).among(chosen).positions(5) for rank in range(2)]
    assert torch.equal(torch.cat(parts), some.positions(5))
    with pytest.raises(ValueError, match="chosen: got no positions, expected at least one"):
        whole.among(chosen[:0])


def test_bad_shards_are_refused():
    with pytest.raises(ValueError, match="batch_size: got 64 for 3 processes, expected a multiple of 3, such as 66"):
        sampler(10, 64, world_size=3)
    with pytest.raises(ValueError, match="rank: got 2 of world_size 2"):
        sampler(10, 64, rank=2, world_size=2)
    with pytest.raises(ValueError, match="rank: got 0 of world_size 0"):
        sampler(10, 64, world_size=0)
