"""Batch streams: what a batch holds, resuming, sharding, and that placement changes nothing."""

import dataclasses
import json
import threading

import numpy as np
import pytest
import torch

from momatch.augment import StrongAugment
from momatch.data.batches import Batch, BatchStream
from momatch.data.rows import PixelRows

LABELED, POOL = 40, 300


def random_images(n, seed):
    return torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


LABELED_IMAGES, POOL_IMAGES = random_images(LABELED, 0), random_images(POOL, 1)
LABELS = torch.arange(LABELED) % 10


def make_stream(*, labeled=None, pool=None, labels=LABELS, **kwargs):
    arguments = {"labeled_batch_size": 64, "unlabeled_batch_size": 112, "seed": 3474173998, **kwargs}
    labeled = PixelRows([LABELED_IMAGES]) if labeled is None else labeled
    pool = PixelRows([POOL_IMAGES]) if pool is None else pool
    return BatchStream(labeled, labels, pool, **arguments)


class WatchedRows(PixelRows):
    """Rows that note which thread gathered them."""

    def __init__(self, images):
        super().__init__([images])
        self.threads = []
        self.gathered_ahead = threading.Event()

    def gather(self, positions, *, out=None):
        self.threads.append(threading.get_ident())
        if len(self.threads) == 2:
            self.gathered_ahead.set()
        return super().gather(positions, out=out)

    @property
    def streamed(self):
        return threading.get_ident() not in self.threads


def tensors(batch):
    values = [getattr(batch, field.name) for field in dataclasses.fields(Batch)]
    return [value for value in values if isinstance(value, torch.Tensor)]


def assert_same(one, other):
    assert one.step == other.step
    for a, b in zip(tensors(one), tensors(other), strict=True):
        assert torch.equal(a, b)


def take(stream, count):
    return [next(stream) for _ in range(count)]


def test_a_batch_holds_what_its_indices_say():
    for step, batch in zip(range(20), make_stream(), strict=False):
        assert batch.step == step
        assert batch.labeled.dtype == batch.unlabeled.dtype == torch.uint8
        assert torch.equal(batch.labeled, LABELED_IMAGES[batch.labeled_indices])
        assert torch.equal(batch.labels, LABELS[batch.labeled_indices])
        assert torch.equal(batch.unlabeled, POOL_IMAGES[batch.unlabeled_indices])
        assert batch.labeled.shape == (64, 3, 4, 4)
        assert batch.unlabeled.shape == (112, 3, 4, 4)


def test_each_sample_is_seen_equally_often():
    batches = take(make_stream(), 75)
    labeled = torch.bincount(torch.cat([batch.labeled_indices for batch in batches]), minlength=LABELED)
    unlabeled = torch.bincount(torch.cat([batch.unlabeled_indices for batch in batches]), minlength=POOL)
    assert labeled.tolist() == [75 * 64 // LABELED] * LABELED
    assert unlabeled.tolist() == [75 * 112 // POOL] * POOL


def test_labelled_and_unlabelled_orders_are_independent():
    batch = next(make_stream(pool=PixelRows([LABELED_IMAGES]), labeled_batch_size=40, unlabeled_batch_size=40))
    assert not torch.equal(batch.labeled_indices, batch.unlabeled_indices)


def test_the_seed_decides():
    one, same, other = make_stream(), make_stream(), make_stream(seed=1)
    torch.manual_seed(4)
    assert_same(next(one), next(same))
    assert not torch.equal(next(one).unlabeled_indices, next(other).unlabeled_indices)


@pytest.mark.parametrize("stop", [0, 1, 7, 30])
@pytest.mark.parametrize("budget", [None, 0])
def test_resuming_goes_on_exactly(stop, budget):
    uninterrupted = take(make_stream(), stop + 10)
    first = make_stream(device_budget=budget)
    take(first, stop)
    state = json.loads(json.dumps(first.state_dict()))
    second = make_stream(device_budget=budget)
    take(second, 3)
    second.load_state_dict(state)
    for expected, got in zip(uninterrupted[stop:], second, strict=False):
        assert_same(expected, got)


def test_a_state_of_another_stream_is_refused():
    state = make_stream().state_dict()
    for other in (
        make_stream(seed=1),
        make_stream(labeled_batch_size=32),
        make_stream(unlabeled_batch_size=8),
        make_stream(pool=PixelRows([POOL_IMAGES[:-1]])),
        make_stream(pool=PixelRows([POOL_IMAGES], torch.arange(POOL).flip(0))),
        make_stream(labels=LABELS.flip(0)),
    ):
        with pytest.raises(
            ValueError, match=r"state: got \w+ = \d+, expected \d+; the state belongs to another stream"
        ):
            other.load_state_dict(state)
        assert other.step == 0
    with pytest.raises(ValueError, match=r"state: got the keys \['step'\], expected"):
        make_stream().load_state_dict({"step": 3})
    with pytest.raises(ValueError, match="state: got step = -1, expected at least 0"):
        make_stream().load_state_dict({**state, "step": -1})


@pytest.mark.parametrize("budget", [None, 0])
def test_batches_from_a_part_of_the_pool(budget):
    """Also where the next batch has been loaded already."""
    stream, whole = make_stream(device_budget=budget), make_stream()
    take(stream, 3), take(whole, 3)
    some = torch.arange(5, POOL, 3)
    stream.draw_among(some)
    for of_some, of_all in zip(take(stream, 4), take(whole, 4), strict=True):
        assert torch.isin(of_some.unlabeled_indices, some).all()
        assert torch.equal(of_some.unlabeled, POOL_IMAGES[of_some.unlabeled_indices])
        assert torch.equal(of_some.labeled, of_all.labeled)
    # What is drawn depends on the step and the part alone, not on when it was chosen.
    other = make_stream(device_budget=budget)
    other.load_state_dict(stream.state_dict())
    other.draw_among(some)
    assert_same(next(other), next(stream))
    stream.draw_among(torch.arange(POOL))
    next(whole)
    assert_same(next(stream), next(whole))


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_ranks_hold_the_single_process_batch_in_order(world_size):
    ranks = [make_stream(rank=rank, world_size=world_size) for rank in range(world_size)]
    single = make_stream()
    for _ in range(10):
        parts = [tensors(next(rank)) for rank in ranks]
        for whole, *pieces in zip(tensors(next(single)), *parts, strict=True):
            assert torch.equal(torch.cat(pieces), whole)


def test_a_state_moves_between_numbers_of_processes():
    pair = make_stream(rank=1, world_size=2)
    take(pair, 5)
    single = make_stream()
    single.load_state_dict(pair.state_dict())
    assert torch.equal(next(single).unlabeled_indices[56:], next(pair).unlabeled_indices)


@pytest.mark.parametrize("budget", [0, LABELED_IMAGES.nbytes, LABELED_IMAGES.nbytes + POOL_IMAGES.nbytes])
def test_placement_changes_nothing(budget):
    direct, other = make_stream(), make_stream(device_budget=budget)
    for step in (0, 1, 2, 7, 8, 3):
        assert_same(direct.batch(step), other.batch(step))


@pytest.mark.parametrize(
    ("budget", "streamed"),
    [
        (0, (True, True)),
        (LABELED_IMAGES.nbytes, (False, True)),
        (POOL_IMAGES.nbytes, (False, True)),  # Each fits, both do not: the labelled set comes first.
        (LABELED_IMAGES.nbytes + POOL_IMAGES.nbytes, (False, False)),
        (None, (False, False)),
    ],
)
def test_the_budget_holds_the_labelled_set_then_the_pool(budget, streamed):
    labeled, pool = WatchedRows(LABELED_IMAGES), WatchedRows(POOL_IMAGES)
    next(make_stream(labeled=labeled, pool=pool, device_budget=budget))
    assert (labeled.streamed, pool.streamed) == streamed


def test_streaming_is_one_batch_ahead():
    """The next batch is gathered without being asked for, and no further."""
    pool = WatchedRows(POOL_IMAGES)
    stream = make_stream(pool=pool, device_budget=0)
    next(stream)
    assert pool.gathered_ahead.wait(timeout=30)
    assert len(pool.threads) == 2
    next(stream)
    assert len(pool.threads) <= 3


def test_an_error_in_the_worker_reaches_the_caller():
    class BrokenRows(PixelRows):
        def gather(self, positions, *, out=None):
            raise OSError("the disk is gone")

    stream = make_stream(pool=BrokenRows([POOL_IMAGES]), device_budget=0)
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)


@pytest.mark.parametrize("budget", [None, 0])
def test_memory_mapped_images(tmp_path, budget):
    mapped = np.memmap(tmp_path / "images", dtype=np.uint8, mode="w+", shape=tuple(POOL_IMAGES.shape))
    mapped[:] = POOL_IMAGES.numpy()
    mapped.flush()
    images = torch.from_numpy(np.memmap(tmp_path / "images", dtype=np.uint8, mode="c", shape=mapped.shape))
    stream = make_stream(pool=PixelRows([images]), device_budget=budget)
    for expected, got in zip(take(make_stream(), 5), stream, strict=False):
        assert_same(expected, got)


@pytest.mark.parametrize("budget", [None, 0])
def test_meta_batches_have_shapes_and_no_values(budget):
    batch = next(make_stream(device="meta", device_budget=budget))
    assert all(tensor.is_meta for tensor in tensors(batch))
    assert [tuple(t.shape) for t in tensors(batch)] == [tuple(t.shape) for t in tensors(next(make_stream()))]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("budget", [None, 0])
def test_cuda_gives_the_same_batches_without_making_the_host_wait(budget):
    stream = make_stream(device="cuda", device_budget=budget)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = take(stream, 20)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for expected, got in zip(make_stream(), batches, strict=False):
        for a, b in zip(tensors(expected), tensors(got), strict=True):
            assert b.is_cuda
            assert torch.equal(a, b.cpu())


@pytest.mark.parametrize("budget", [None, 0])
def test_supervised_training_needs_no_pool(budget):
    for pool in (None, PixelRows([POOL_IMAGES[:0]])):
        batch = next(make_stream(pool=pool, unlabeled_batch_size=0, device_budget=budget))
        assert batch.unlabeled.shape == (0, 3, 4, 4)
        assert batch.unlabeled_indices.shape == (0,)
        assert len(batch.labels) == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labeled_batch_size": 0}, "labeled_batch_size: got 0"),
        ({"unlabeled_batch_size": -1}, "unlabeled_batch_size: got -1"),
        ({"world_size": 3}, "expected a multiple of 3"),
        ({"seed": -1}, "seed: got -1"),
        ({"device_budget": -1}, "device_budget: got -1, expected a number of bytes"),
        ({"labels": LABELS - 1}, "labels: got -1, expected class numbers; unlabelled samples belong in the pool"),
        ({"labels": LABELS[1:]}, r"labels: got shape \(39,\), expected \(40,\), one per labelled row"),
        ({"pool": PixelRows([POOL_IMAGES[:0]])}, "size: got 0 samples"),
        ({"pool": PixelRows([POOL_IMAGES[:, :1]])}, r"got images of shape \(1, 4, 4\), expected \(3, 4, 4\)"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_stream(**arguments)


def test_views_of_the_ranks_are_those_of_the_whole_batch():
    whole = next(make_stream())
    strong = StrongAugment()
    expected = strong(whole.unlabeled, seed=0, step=whole.step)
    parts = [next(make_stream(rank=rank, world_size=2)) for rank in range(2)]
    got = [strong(part.unlabeled, seed=0, step=part.step, offset=part.unlabeled_offset) for part in parts]
    assert torch.equal(torch.cat(got), expected)
    assert parts[1].labeled_offset == len(parts[0].labeled)


@pytest.mark.usefixtures("unchecked")
def test_plain_tensors_and_numpy_s_integers_will_do():
    stream = BatchStream(
        LABELED_IMAGES, LABELS, POOL_IMAGES, labeled_batch_size=4, unlabeled_batch_size=8, seed=np.int64(3)
    )
    assert len(next(stream).unlabeled) == 8
    assert json.loads(json.dumps(stream.state_dict())) == stream.state_dict()
