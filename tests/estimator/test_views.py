"""Views of vectors, and weighted draws."""

import numpy as np
import pytest
import torch

from momatch.estimator.samples import WeightedDraws, weighted_batches, weighted_set
from momatch.estimator.views import Strength, Vectors, VectorView


def view_of(table, rows, strength, neighbors=None, reach=1.0, step=0, number=None):
    neighbors = torch.empty(len(table), 0, dtype=torch.int64) if neighbors is None else neighbors
    view = VectorView(Vectors(table, table.std(0), neighbors, reach), strength, default_view=0)
    return view(rows, seed=0, step=step, view=number)


@pytest.fixture
def table():
    table = torch.randn(50, 8) * torch.linspace(0.5, 2.0, 8)
    table[:, 3] = 0  # a constant feature
    return table


def test_no_view_is_the_sample(table):
    rows = torch.tensor([4, 4, 7])
    torch.testing.assert_close(view_of(table, rows, Strength()), table[rows], rtol=0, atol=0)


def test_noise_has_its_size_and_leaves_constant_features_alone(table):
    rows = torch.arange(50).repeat(200)
    change = view_of(table, rows, Strength(noise=0.6), reach=0.5) - table[rows]
    assert change[:, 3].abs().max() == 0
    varying = [0, 1, 2, 4, 5, 6, 7]
    spread = change[:, varying].std(0) / table.std(0)[varying]
    assert ((spread - 0.3).abs() < 0.01).all()


def test_masks_take_up_to_their_share():
    table = torch.ones(10, 1000)
    masked = 1 - view_of(table, torch.arange(10).repeat(100), Strength(mask=0.4)).mean(1)
    assert masked.max() < 0.46
    assert masked.min() < 0.02
    assert abs(float(masked.mean()) - 0.2) < 0.02
    masked = 1 - view_of(table, torch.arange(10).repeat(100), Strength(mask=0.4), reach=0.5).mean(1)
    assert abs(float(masked.mean()) - 0.125) < 0.02


def test_moves_lead_towards_a_neighbor(table):
    rows = torch.arange(50).repeat(100)
    neighbors = torch.cdist(table, table).fill_diagonal_(torch.inf).topk(3, largest=False).indices
    x = view_of(table, rows, Strength(move=0.5), neighbors)
    way = x - table[rows]
    to_neighbors = table[neighbors[rows]] - table[rows].unsqueeze(1)  # (n, 3, F)
    share = (way.unsqueeze(1) * to_neighbors).sum(-1) / to_neighbors.square().sum(-1)
    left = (way.unsqueeze(1) - share.unsqueeze(-1) * to_neighbors).norm(dim=-1)
    best = left.argmin(1)
    assert left.amin(1).max() < 1e-4
    assert best.bincount(minlength=3).min() > 0.25 * len(rows)
    chosen = share.gather(1, best.unsqueeze(1))
    assert chosen.min() >= 0
    assert 0.45 < chosen.max() <= 0.5


def test_numbers_depend_on_the_place_and_not_on_the_sample(table):
    rows, flipped = torch.arange(5), torch.arange(5).flip(0)
    a, b = (view_of(table, chosen, Strength(noise=1.0)) - table[chosen] for chosen in (rows, flipped))
    torch.testing.assert_close(a, b)


def test_views_repeat_by_seed_and_step_and_differ_between_steps_and_views(table):
    rows, strength = torch.arange(5), Strength(noise=1.0, mask=0.5)
    first = view_of(table, rows, strength)
    assert torch.equal(first, view_of(table, rows, strength))
    assert torch.equal(first, view_of(table, rows, strength, number=0))
    assert not torch.equal(first, view_of(table, rows, strength, step=1))
    assert not torch.equal(first, view_of(table, rows, strength, number=2))


def test_views_are_of_one_process(table):
    view = VectorView(
        Vectors(table, table.std(0), torch.empty(50, 0, dtype=torch.int64), 1.0), Strength(), default_view=1
    )
    with pytest.raises(ValueError, match="got 4 and 1, expected 0 and 1"):
        view(torch.arange(4), seed=0, step=0, offset=4)


def test_batches_hold_rows_with_their_labels():
    codes = np.array([-1, -1, 0, 1, -1, 1])
    samples = weighted_set(np.arange(12.0).reshape(6, 2), codes, np.ones(6))
    batches = weighted_batches(samples, labeled_batch_size=4, unlabeled_batch_size=6, seed=0)
    for step in range(3):
        batch = next(batches)
        assert batch.step == step
        assert batch.labels.tolist() == samples.codes[batch.labeled].tolist()
        assert batch.labels.min() >= 0
        assert batch.unlabeled.tolist() == [0, 1, 2, 3, 4, 5]
    supervised = next(weighted_batches(samples, labeled_batch_size=2, unlabeled_batch_size=0, seed=0))
    assert supervised.unlabeled.shape == (0,)


def test_draws_are_in_proportion_to_the_weights():
    weight = np.array([1.0, 0.5, 3.0, 0.25, 5.25])
    draws = WeightedDraws(weight, 8, np.random.default_rng(0))
    counts = torch.stack([draws().bincount(minlength=5) for _ in range(4000)]).sum(0).numpy()
    np.testing.assert_allclose(counts / counts.sum(), weight / weight.sum(), atol=0.005)


def test_each_share_of_the_weight_is_drawn_from_once():
    draws = WeightedDraws(np.ones(6), 6, np.random.default_rng(0))
    assert draws().tolist() == [0, 1, 2, 3, 4, 5]
