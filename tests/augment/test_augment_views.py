"""The views: reproducible, shardable, free of global state and read-backs, equal on both ways of computing."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from momatch.augment import OPERATIONS, StrongAugment, WeakAugment
from momatch.augment.draws import below, draw
from momatch.augment.operations import RANGES, _apply_grouped, _apply_masked, draw_magnitude

VIEWS = [WeakAugment(), StrongAugment(), WeakAugment(flip=False), StrongAugment(flip=False)]


def random_images(n, channels=3, height=32, width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, height, width), generator=generator, dtype=torch.uint8)


@settings(max_examples=30)
@given(
    n=st.integers(1, 40),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 20), st.integers(1, 20)),
    k=st.integers(0, 4),
    seed=st.integers(0, 2**32),
)
def test_grouped_and_masked_are_equal(n, shape, k, seed):
    names = [name for name in OPERATIONS if shape[0] == 3 or name != "color"]
    images = random_images(n, *shape, seed)
    draws = draw(n, 2 * k, seed=seed, step=0)
    operation = below(draws[:, :k], len(names))
    magnitude = draw_magnitude(operation, draws[:, k:], names)
    grouped = _apply_grouped(images, operation, magnitude, names)
    assert torch.equal(grouped, _apply_masked(images, operation, magnitude, names))


@pytest.mark.parametrize("augment", VIEWS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_never_reads_back(augment, channels, dtype):
    """On ``meta`` a read-back, a stray CPU tensor or a shape that depends on values raises."""
    images = torch.empty(7, channels, 24, 40, dtype=dtype, device="meta")
    view = augment(images, seed=0, step=0)
    assert (view.shape, view.dtype, view.device) == (images.shape, images.dtype, images.device)


@pytest.mark.parametrize("augment", VIEWS)
def test_a_function_of_its_arguments(augment):
    images = random_images(16)
    before, state = images.clone(), torch.get_rng_state()
    view = augment(images, seed=1, step=2)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(augment(images, seed=1, step=2), view)
    for other in ({"seed": 2, "step": 2}, {"seed": 1, "step": 3}, {"seed": 1, "step": 2, "view": 7}):
        assert not torch.equal(augment(images, **other), view)


@pytest.mark.parametrize("augment", VIEWS)
def test_shards_get_the_views_of_the_whole_batch(augment):
    images = random_images(12)
    whole = augment(images, seed=1, step=2, view=3)
    blocks = [augment(images[4 * r : 4 * r + 4], seed=1, step=2, view=3, offset=4 * r) for r in range(3)]
    turns = [augment(images[r::3], seed=1, step=2, view=3, offset=r, stride=3) for r in range(3)]
    assert torch.equal(torch.cat(blocks), whole)
    assert torch.equal(torch.stack(turns, dim=1).flatten(0, 1), whole)


def test_a_view_does_not_depend_on_the_rest_of_the_batch():
    images, augment = random_images(20), StrongAugment()
    changed = images.clone()
    changed[1:] = 255 - changed[1:]
    assert torch.equal(augment(images, seed=0, step=0)[0], augment(changed, seed=0, step=0)[0])


@pytest.mark.parametrize("layout", ["channels_last", "strided", "expanded"])
def test_memory_layout_does_not_matter(layout):
    images = random_images(14)
    other = {
        "channels_last": images.to(memory_format=torch.channels_last),
        "strided": random_images(14, 3, 64, 64)[:, :, ::2, ::2],
        "expanded": images[:1].expand(14, 3, 32, 32),
    }[layout]
    for augment in VIEWS:
        assert torch.equal(augment(other, seed=0, step=0), augment(other.contiguous(), seed=0, step=0))


@pytest.mark.parametrize("augment", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_images_are_augmented_as_bytes(augment, dtype):
    images = random_images(16)
    view = augment((images.float() / 255).to(dtype), seed=4, step=5)
    assert view.dtype == dtype
    if dtype != torch.bfloat16:  # 8 bits of precision do not hold 256 levels apart
        expected = augment(images, seed=4, step=5)
        assert torch.equal((view.float() * 255).round().to(torch.uint8), expected)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 3), (8, 8), (40, 24), (96, 96)])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size(size, channels):
    images = random_images(9, channels, *size)
    for augment in VIEWS:
        assert augment(images, seed=0, step=0).shape == images.shape
        assert augment(images[:0], seed=0, step=0).shape == (0, channels, *size)


def test_ranges_flips_and_operations_are_drawn_evenly():
    draws = draw(28_000, 2, seed=0, step=0)
    operation = below(draws[:, :1], len(OPERATIONS))
    assert (operation.flatten().bincount() - 2000).abs().max() < 220  # five standard errors
    magnitude = draw_magnitude(operation, draws[:, 1:], OPERATIONS).double() / 2**16
    for i, name in enumerate(OPERATIONS):
        low, high = RANGES[name]
        values = magnitude[operation == i]
        assert values.min() >= low - 1e-5
        assert values.max() <= high + 1e-5
        assert abs(values.mean() - (low + high) / 2) <= 0.04 * (high - low)
        assert abs(values.std() - (high - low) / 12**0.5) <= 0.03 * (high - low)
    ramp = torch.arange(32, dtype=torch.uint8).expand(2000, 1, 32, 32)
    weak = WeakAugment()(ramp, seed=0, step=0)
    flipped = (weak[:, 0, 0, 10] > weak[:, 0, 0, 20]).sum()
    assert abs(flipped - 1000) < 120
    kept = WeakAugment(flip=False)(ramp, seed=0, step=0)
    assert (kept[:, 0, 0, 10] < kept[:, 0, 0, 20]).all()


def test_a_view_can_be_trained_on():
    """The CPU path works in inference mode inside; what it returns must be an ordinary tensor."""
    view = StrongAugment(cutout=0.0)(random_images(8), seed=0, step=0)
    assert not view.is_inference()
    weight = torch.ones(3, requires_grad=True)
    (view.float() * weight[:, None, None]).sum().backward()
    assert weight.grad is not None


def test_options_choose_what_is_done():
    images = random_images(64)
    weak = WeakAugment()(images, seed=0, step=0)
    plain = StrongAugment(num_operations=0, cutout=0.0, padding=0.0, flip=False)
    assert torch.equal(plain(images, seed=0, step=0), images)
    assert not torch.equal(weak, images)
    only = StrongAugment(operations=["posterize"], cutout=0.0, padding=0.0, flip=False)
    assert set((only(images, seed=0, step=0) & 1).unique().tolist()) == {0}
    painted = StrongAugment(operations=["identity"], padding=0.0, flip=False, fill=(1, 2, 3))(images, seed=0, step=0)
    squares = (painted != images).any(1)
    assert (painted.permute(0, 2, 3, 1)[squares] == torch.tensor([1, 2, 3], dtype=torch.uint8)).all()
    assert 0.03 < squares.float().mean() < 0.1  # E[side^2] = (0.5^2) / 3 of the image, less what is cut


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 32, 32, dtype=torch.uint8), r"images: got shape \(3, 32, 32\), expected \(n, C, H, W\)"),
        (torch.zeros(2, 4, 8, 8, dtype=torch.uint8), r"images: got shape \(2, 4, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), r"images: got dtype torch.int64, expected uint8"),
        (torch.full((2, 3, 8, 8), 2.0), r"images: got values from 2.0 to 2.0, expected floating images in \[0, 1\]"),
        (torch.full((2, 3, 8, 8), torch.nan), r"images: got values from nan to nan"),
        (torch.empty(1, 1, 1, 20_000, dtype=torch.uint8), r"sizes up to 16384"),
    ],
)
def test_wrong_images_are_refused(images, message):
    for augment in VIEWS:
        with pytest.raises(ValueError, match=message):
            augment(images, seed=0, step=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": ["blur"]}, r"operations: got \['blur'\], expected"),
        ({"operations": ["color"]}, r"operations: got \['color'\], expected at least one besides color"),
        ({"num_operations": -1}, "num_operations: got -1, expected 0 or more"),
        ({"cutout": 1.5}, "cutout: got 1.5, expected a number from 0 to 1"),
        ({"padding": 1.0}, "padding: got 1.0, expected a fraction"),
        ({"fill": (1, 2, 300)}, "fill: got"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        StrongAugment(**options)


def test_a_fill_for_other_channels_is_refused():
    with pytest.raises(ValueError, match=r"fill: got 1 levels \(9,\), expected 3, one per channel"):
        StrongAugment(fill=(9,))(random_images(2), seed=0, step=0)


@pytest.mark.slow
def test_compiles_into_one_graph():
    """In a process of its own, because the shape checks of the tests are no part of what is compiled."""
    program = (
        "import torch\n"
        "from momatch.augment import StrongAugment\n"
        "from momatch.augment.draws import draw\n"
        "augment = StrongAugment(num_operations=1)\n"
        "images = torch.randint(0, 256, (64, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))\n"
        "compiled = torch.compile(augment.apply, fullgraph=True, backend='aot_eager')\n"
        "for step in range(3):\n"
        "    draws = draw(64, augment.num_draws, seed=0, step=step)\n"
        "    assert torch.equal(compiled(images, draws), augment(images, seed=0, step=step, view=0))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_weak_and_strong_views_of_a_step_do_not_share_their_numbers():
    images = random_images(64)
    only_weak = StrongAugment(num_operations=0, cutout=0.0)
    assert not torch.equal(only_weak(images, seed=0, step=0), WeakAugment()(images, seed=0, step=0))
    assert torch.equal(only_weak(images, seed=0, step=0, view=3), only_weak(images, seed=0, step=0, view=3))
