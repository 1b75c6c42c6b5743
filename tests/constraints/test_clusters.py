"""Samples laid out by cluster: the layouts say the same, and pairs taken in tiles sum to what they do at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from momatch.constraints import clusters
from momatch.constraints.clusters import Groups, group, pair_sum


def batch(n, K, D, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, D, generator=generator, dtype=torch.float64)
    centers = torch.randn(K, D, generator=generator, dtype=torch.float64)
    labels = torch.randint(K, (n,), generator=generator)
    variances = torch.rand(K, D, generator=generator, dtype=torch.float64) + 0.5
    weights = torch.rand(n, K, generator=generator, dtype=torch.float64)
    return z, centers, labels, variances, weights


def products(rows, columns):
    """A function of pairs that is neither linear nor bounded."""
    gram = rows @ columns.transpose(1, 2)
    return gram.square() + gram + 1


def naive_pair_sum(z, centers, assignment, variances):
    """sum_k n_k/n * the mean over the pairs of k, pair by pair."""
    n, total = len(z), z.new_zeros(())
    for k in range(len(centers)):
        w = assignment[:, k] if assignment.is_floating_point() else (assignment == k).to(z.dtype)
        u = z - centers[k]
        u = u if variances is None else u / variances[k].sqrt()
        if float(w.sum()) == 0:
            continue
        pairs = sum(
            w[i] * w[j] * products(u[None, i : i + 1], u[None, j : j + 1])[0, 0, 0] for i in range(n) for j in range(n)
        )
        total = total + w.sum() / n * pairs / w.sum() ** 2
    return total


def value_and_gradient(groups_of, z):
    leaf = z.clone().requires_grad_()
    value = pair_sum(groups_of(leaf), products)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


# --- Layouts ---


def test_flat_layout():
    z, centers, labels, variances, _ = batch(6, 3, 2)
    groups = group(z, centers, labels, variances)
    assert groups.residuals.shape == (1, 6, 2)
    assert groups.weights.shape == (1, 6, 3)
    for i in range(6):
        expected = (z[i] - centers[labels[i]]) / variances[labels[i]].sqrt()
        torch.testing.assert_close(groups.residuals[0, i], expected)
        assert groups.weights[0, i].tolist() == [float(k == labels[i]) for k in range(3)]
    assert groups.totals.tolist() == [[float((labels == k).sum()) for k in range(3)]]
    torch.testing.assert_close(groups.shares, groups.totals / 6)


def test_padded_layout_keeps_clusters_apart():
    z, centers, _, _, _ = batch(7, 4, 2)
    labels = torch.tensor([2, 0, 1, 0, 2, 0, 2])  # cluster 3 is empty
    groups = group(z, centers, labels, padded=True)
    assert groups.residuals.shape == (4, 3, 2)
    assert groups.totals.tolist() == [[3.0], [1.0], [3.0], [0.0]]
    for k in range(4):
        own = (z - centers[k])[labels == k]  # in the batch's order
        torch.testing.assert_close(groups.residuals[k, : len(own)], own)
        assert (groups.residuals[k, len(own) :] == 0).all()
        assert groups.weights[k, :, 0].tolist() == [1.0] * len(own) + [0.0] * (3 - len(own))


def test_padding_is_not_used_where_it_takes_more_pairs():
    z, centers, _, _, _ = batch(6, 4, 2)
    one_cluster = torch.zeros(6, dtype=torch.int64)
    assert group(z, centers, one_cluster, padded=True).residuals.shape == (1, 6, 2)


def test_soft_layout():
    z, centers, _, variances, weights = batch(5, 3, 2)
    groups = group(z, centers, weights, variances)
    assert groups.residuals.shape == (3, 5, 2)
    for k in range(3):
        torch.testing.assert_close(groups.residuals[k], (z - centers[k]) / variances[k].sqrt())
        torch.testing.assert_close(groups.weights[k, :, 0], weights[:, k])
    torch.testing.assert_close(groups.totals, weights.sum(0).unsqueeze(-1))


@pytest.mark.parametrize("padded", [False, True])
def test_means_of_each_cluster(padded):
    z, centers, _, _, _ = batch(9, 4, 2)
    labels = torch.tensor([0, 0, 1, 1, 1, 3, 3, 0, 1])
    groups = group(z, centers, labels, padded=padded)
    means = groups.mean(groups.residuals).reshape(4, 2)
    for k in (0, 1, 3):
        torch.testing.assert_close(means[k], (z - centers[k])[labels == k].mean(0))
    assert means[2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.usefixtures("unchecked")
def test_labels_of_every_integer_dtype(dtype, padded):
    z, centers, labels, _, _ = batch(20, 4, 2)
    expected = group(z, centers, labels, padded=padded)
    groups = group(z, centers, labels.to(dtype), padded=padded)
    assert torch.equal(groups.residuals, expected.residuals)
    assert torch.equal(groups.weights, expected.weights)


# --- Pair sums ---


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 8),
    K=st.integers(1, 5),
    form=st.sampled_from(["flat", "padded", "soft"]),
    whiten=st.booleans(),
)
def test_pair_sum_equals_the_loop(seed, n, K, form, whiten):
    z, centers, labels, variances, weights = batch(n, K, 3, seed)
    assignment = weights if form == "soft" else labels
    scale = variances if whiten else None
    got = pair_sum(group(z, centers, assignment, scale, padded=form == "padded"), products)
    torch.testing.assert_close(got, naive_pair_sum(z, centers, assignment, scale), rtol=1e-10, atol=1e-12)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), K=st.integers(1, 7))
def test_padded_layout_equals_the_flat_one(seed, n, K):
    z, centers, labels, variances, _ = batch(n, K, 3, seed)
    flat, flat_gradient = value_and_gradient(lambda leaf: group(leaf, centers, labels, variances), z)
    padded, padded_gradient = value_and_gradient(lambda leaf: group(leaf, centers, labels, variances, padded=True), z)
    torch.testing.assert_close(padded, flat, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(padded_gradient, flat_gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", ["flat", "padded", "soft"])
@pytest.mark.parametrize("at_once", [1, 6, 50, 300, 2000])
def test_tiles_equal_all_pairs_at_once(form, at_once, monkeypatch):
    z, centers, labels, _, weights = batch(13, 5, 3)
    assignment = weights if form == "soft" else labels

    def groups_of(leaf):
        return group(leaf, centers, assignment, padded=form == "padded")

    seen = []
    monkeypatch.setattr(clusters, "PAIRS_AT_ONCE", 10**9)
    whole, whole_gradient = value_and_gradient(groups_of, z)
    monkeypatch.setattr(clusters, "PAIRS_AT_ONCE", at_once)
    tiled, tiled_gradient = value_and_gradient(groups_of, z)
    torch.testing.assert_close(tiled, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(tiled_gradient, whole_gradient, rtol=1e-10, atol=1e-12)

    def recorded(rows, columns):
        seen.append(rows.shape[0] * rows.shape[1] * columns.shape[1])
        return products(rows, columns)

    with torch.no_grad():
        pair_sum(groups_of(z), recorded)
    assert max(seen) <= at_once


def test_tiles_pass_gradients_to_the_weights(monkeypatch):
    z, centers, _, _, weights = batch(9, 3, 2)
    monkeypatch.setattr(clusters, "PAIRS_AT_ONCE", 20)
    leaf = weights.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: pair_sum(group(z, centers, w), products), (leaf,))


def test_pair_factors_weigh_each_pair_by_its_cluster():
    z, centers, _, _, weights = batch(6, 3, 2)
    groups = group(z, centers, weights)
    factors = groups.pair_factors()
    for k in range(3):
        expected = torch.outer(weights[:, k], weights[:, k]) / weights[:, k].sum() / 6
        torch.testing.assert_close(factors[k] @ factors[k].t(), expected)


def test_groups_cannot_be_changed():
    z, centers, labels, _, _ = batch(4, 2, 2)
    groups = group(z, centers, labels)
    assert isinstance(groups, Groups)
    with pytest.raises(AttributeError):
        groups.n = 5


def test_off_the_cpu_a_label_out_of_range_belongs_to_no_cluster(monkeypatch):
    monkeypatch.setattr(clusters, "is_readable", lambda tensor: False)
    z, centers, labels, _, _ = batch(6, 3, 2)
    stray = torch.cat([labels, torch.tensor([-1, 3])])
    groups = group(torch.cat([z, z[:2]]), centers, stray, padded=True)
    assert (groups.weights[0, 6:] == 0).all()
    torch.testing.assert_close(groups.totals.sum(), torch.tensor(6.0).double())
