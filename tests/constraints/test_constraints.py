"""MMD and KL constraints against loops, numerical integrals and torch.distributions, and in their limits."""

import copy
import math
import pickle

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, kl_divergence

from momatch import KLConstraint, MMDConstraint
from momatch.constraints import clusters
from momatch.constraints.mmd import BANDWIDTHS

CONSTRAINTS = [MMDConstraint, KLConstraint]
each_constraint = pytest.mark.parametrize("constraint_type", CONSTRAINTS)


def batch(n=12, K=3, D=4, dtype=torch.float64):
    """Embeddings, centers, hard labels that leave the last cluster empty and give the one before a single sample, variances."""
    labels = torch.randint(max(K - 2, 1), (n,))
    if K > 2:
        labels[0] = K - 2
    return (
        1.3 * torch.randn(n, D, dtype=dtype),
        torch.randn(K, D, dtype=dtype),
        labels,
        torch.rand(K, D, dtype=dtype) + 0.5,
    )


def soft(n, K, dtype=torch.float64):
    """Weights whose last cluster is empty."""
    weights = torch.softmax(2 * torch.randn(n, K, dtype=dtype), -1)
    weights[:, -1] = 0 if K > 1 else 1
    return weights


def members(z, centers, assignment, variances, k):
    """Residuals (n, D) and weights (n,) of one cluster."""
    weights = assignment[:, k] if assignment.is_floating_point() else (assignment == k).to(z.dtype)
    residuals = z - centers[k]
    return residuals if variances is None else residuals / variances[k].sqrt(), weights


# --- MMD, from its definition ---


def squared_widths(D, bandwidths=BANDWIDTHS):
    """Half the median squared distance of two standard normals (Wilson and Hilferty), times each factor."""
    return [factor * D * (1 - 2 / (9 * D)) ** 3 for factor in bandwidths]


def kernel(a, b, s2):
    return torch.exp(-(a - b).square().sum() / (2 * s2))


def naive_mmd(z, centers, assignment, variances=None, bandwidths=BANDWIDTHS):
    n, D = z.shape
    total = z.new_zeros(())
    for k in range(len(centers)):
        u, w = members(z, centers, assignment, variances, k)
        if float(w.detach().sum()) == 0:
            continue
        for s2 in squared_widths(D, bandwidths):
            pairs = sum(w[i] * w[j] * kernel(u[i], u[j], s2) for i in range(n) for j in range(n)) / w.sum() ** 2
            to_normal = (s2 / (s2 + 1)) ** (D / 2) * torch.exp(-u.square().sum(-1) / (2 * (s2 + 1)))
            among_normal = (s2 / (s2 + 2)) ** (D / 2)
            term = pairs - 2 * (w * to_normal).sum() / w.sum() + among_normal
            total = total + w.sum() / n * term / len(bandwidths)
    return total


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("form", ["hard", "soft"])
@pytest.mark.parametrize(("n", "K", "D"), [(10, 3, 4), (7, 1, 1), (1, 2, 3), (9, 5, 2)])
def test_mmd_equals_the_double_loop(whiten, form, n, K, D):
    z, centers, labels, variances = batch(n, K, D)
    assignment = labels if form == "hard" else soft(n, K).requires_grad_()
    leaves = [z.requires_grad_(), centers.requires_grad_(), *([assignment] if form == "soft" else [])]
    loss = MMDConstraint(whiten=whiten)(z, centers, assignment, variances)
    expected = naive_mmd(z, centers, assignment, variances if whiten else None)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    got, wanted = torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves)
    for one, other in zip(got[:2], wanted[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    if form == "soft":  # at an empty cluster the loss has a kink
        seen = assignment.detach().sum(0) > 0
        torch.testing.assert_close(got[2][:, seen], wanted[2][:, seen], rtol=1e-9, atol=1e-12)


def test_mmd_bandwidths_are_averaged():
    z, centers, labels, _ = batch()
    both = MMDConstraint(bandwidths=(0.3, 5.0))(z, centers, labels)
    each = [MMDConstraint(bandwidths=(factor,))(z, centers, labels) for factor in (0.3, 5.0)]
    torch.testing.assert_close(both, sum(each) / 2)
    torch.testing.assert_close(both, naive_mmd(z, centers, labels, bandwidths=(0.3, 5.0)))


def test_mmd_closed_form_equals_the_integral():
    """In one dimension both expectations are integrals that a fine grid gives to many digits."""
    u = torch.tensor([[-0.7], [0.2], [2.5]], dtype=torch.float64)
    grid = np.linspace(-10, 10, 801)
    density = scipy.stats.norm.pdf(grid) * (grid[1] - grid[0])
    expected = 0.0
    for s2 in squared_widths(1):
        gram = np.exp(-((u.numpy() - u.numpy().T) ** 2) / (2 * s2)).mean()
        to_normal = (np.exp(-((u.numpy() - grid) ** 2) / (2 * s2)) @ density).mean()
        among_normal = density @ np.exp(-((grid[:, None] - grid) ** 2) / (2 * s2)) @ density
        expected += (gram - 2 * to_normal + among_normal) / len(BANDWIDTHS)
    loss = MMDConstraint()(u, torch.zeros(1, 1, dtype=torch.float64), torch.zeros(3, dtype=torch.int64))
    assert float(loss) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("D", [2, 8])
def test_mmd_closed_form_equals_monte_carlo(D):
    u = 0.8 * torch.randn(5, D, dtype=torch.float64) + 0.4
    g, h = torch.randn(2, 100_000, D, dtype=torch.float64)
    expected = 0.0
    for s2 in squared_widths(D):
        among = torch.exp(-torch.cdist(u, u).square() / (2 * s2)).mean()
        to_normal = torch.exp(-torch.cdist(u, g).square() / (2 * s2)).mean()
        among_normal = torch.exp(-(g - h).square().sum(-1) / (2 * s2)).mean()
        expected += float(among - 2 * to_normal + among_normal) / len(BANDWIDTHS)
    loss = MMDConstraint()(u, torch.zeros(1, D, dtype=torch.float64), torch.zeros(5, dtype=torch.int64))
    assert float(loss) == pytest.approx(expected, abs=4e-3)


@pytest.mark.parametrize("D", [1, 2, 8, 128])
def test_mmd_width_is_the_median_heuristic(D):
    (width,) = MMDConstraint(bandwidths=(1.0,))._widths(D, torch.zeros(())).tolist()
    assert 2 * width == pytest.approx(2 * scipy.stats.chi2.median(D), rel=0.04)


def test_sampled_mmd_equals_the_loop_over_its_draws():
    z, centers, labels, _ = batch(8, 3, 2)
    loss = MMDConstraint(samples=6, generator=torch.Generator().manual_seed(5))(z, centers, labels)
    g = torch.randn(1, 6, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)[0]
    expected = 0.0
    for k in range(3):
        u = (z - centers[k])[labels == k]
        for s2 in squared_widths(2) if len(u) else ():
            gram = torch.exp(-torch.cdist(u, u).square() / (2 * s2)).mean()
            cross = torch.exp(-torch.cdist(u, g).square() / (2 * s2)).mean()
            target = torch.exp(-torch.cdist(g, g).square() / (2 * s2)).mean()
            expected += len(u) / 8 * (gram - 2 * cross + target) / len(BANDWIDTHS)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("form", ["hard", "soft"])
def test_sampled_mmd_converges_to_the_closed_form(form):
    z, centers, labels, _ = batch(20, 3, 2)
    assignment = labels if form == "hard" else soft(20, 3)
    exact = MMDConstraint()(z, centers, assignment)
    errors = []
    for samples in (20, 1000):
        constraint = MMDConstraint(samples=samples, generator=torch.Generator().manual_seed(0))
        draws = torch.stack([constraint(z, centers, assignment) for _ in range(4)])
        errors.append(float((draws - exact).square().mean().sqrt()))
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 2


def test_sampled_mmd_draws_anew_and_by_its_generator():
    z, centers, labels, _ = batch()
    constraint = MMDConstraint(samples=10, generator=torch.Generator().manual_seed(1))
    first, second = constraint(z, centers, labels), constraint(z, centers, labels)
    assert first != second
    assert MMDConstraint(samples=10, generator=torch.Generator().manual_seed(1))(z, centers, labels) == first


@settings(max_examples=60, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 40),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 64)),
    scale=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    samples=st.sampled_from([0, 7]),
)
def test_mmd_is_not_negative(seed, n, sizes, scale, samples):
    K, D = sizes
    generator = torch.Generator().manual_seed(seed)
    z, centers = scale * torch.randn(n, D, generator=generator), torch.randn(K, D, generator=generator)
    labels = torch.randint(K, (n,), generator=generator)
    loss = MMDConstraint(samples=samples, generator=generator)(z, centers, labels)
    assert -1e-6 <= float(loss) <= 2.0


# --- KL, from torch.distributions ---


def naive_kl(z, centers, assignment, variances=None, floor=1e-6):
    total = z.new_zeros(())
    for k in range(len(centers)):
        _, w = members(z, centers, assignment, None, k)
        if float(w.detach().sum()) == 0:
            continue
        mean = (w.unsqueeze(1) * z).sum(0) / w.sum()
        spread = (w.unsqueeze(1) * (z - mean).square()).sum(0) / w.sum()
        variance = torch.ones_like(mean) if variances is None else variances[k]
        fitted, believed = Normal(mean, spread.clamp_min(floor * variance).sqrt()), Normal(centers[k], variance.sqrt())
        total = total + w.sum() / len(z) * kl_divergence(Independent(fitted, 1), Independent(believed, 1))
    return total


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("form", ["hard", "soft"])
@pytest.mark.parametrize(("n", "K", "D"), [(30, 3, 4), (9, 1, 1), (9, 5, 2), (200, 3, 2)])
def test_kl_equals_torch_distributions(whiten, form, n, K, D):
    z, centers, labels, variances = batch(n, K, D)
    assignment = labels if form == "hard" else soft(n, K)
    leaves = [z.requires_grad_(), centers.requires_grad_()]
    loss = KLConstraint(whiten=whiten)(z, centers, assignment, variances)
    expected = naive_kl(z, centers, assignment, variances if whiten else None)
    # A single sample has no spread: the loss counts 0 for it and the reference its floor, 1e-6 a dimension.
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-6)
    for one, other in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_kl_of_a_single_sample_is_finite_and_pulls_it_home():
    z = torch.tensor([[3.0, -1.0]], requires_grad=True)
    loss = KLConstraint(floor=1e-4)(z, torch.zeros(1, 2), torch.tensor([0]))
    expected = 0.5 * (9 + 1 - 2 - 2 * math.log(1e-4))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    loss.backward()
    torch.testing.assert_close(z.grad, torch.tensor([[3.0, -1.0]]))


def test_kl_of_a_cluster_that_is_as_the_head_believes_is_zero():
    z = torch.tensor([[4.0, 1.0], [8.0, 1.0], [4.0, 3.0], [8.0, 3.0]])
    variances = torch.tensor([[4.0, 1.0]])
    loss = KLConstraint(whiten=True)(z, torch.tensor([[6.0, 2.0]]), torch.zeros(4, dtype=torch.int64), variances)
    assert float(loss) == pytest.approx(0.0, abs=1e-7)


# --- Both ---


@each_constraint
@pytest.mark.parametrize("whiten", [False, True])
def test_hard_labels_equal_one_hot_weights(constraint_type, whiten):
    z, centers, labels, variances = batch(25, 4, 3)
    z.requires_grad_()
    constraint = constraint_type(whiten=whiten)
    one_hot = torch.eye(4, dtype=torch.float64)[labels]
    hard, weighted = constraint(z, centers, labels, variances), constraint(z, centers, one_hot, variances)
    torch.testing.assert_close(hard, weighted, rtol=1e-12, atol=1e-14)
    (one,), (other,) = torch.autograd.grad(hard, z), torch.autograd.grad(weighted, z)
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


@each_constraint
def test_large_normal_sample_tends_to_zero_and_a_shifted_one_does_not(constraint_type):
    constraint = constraint_type()
    labels, centers = torch.randint(2, (3000,)), torch.tensor([[0.0, 5.0, 0.0], [-3.0, 0.0, 1.0]])
    z = centers[labels] + torch.randn(3000, 3)
    at_home = [float(constraint(z[:n], centers, labels[:n])) for n in (30, 3000)]
    assert at_home[1] < at_home[0] / 10
    assert at_home[1] < 0.01
    assert constraint(z + 0.5, centers, labels) > 5 * at_home[1]
    assert constraint(centers[labels] + 0.5 * (z - centers[labels]), centers, labels) > 5 * at_home[1]


@each_constraint
def test_whitening_makes_the_heads_gaussian_the_target(constraint_type):
    centers, variances = torch.randn(1, 3), torch.tensor([[9.0, 0.25, 2.0]])
    z = centers + variances.sqrt() * torch.randn(3000, 3)
    labels = torch.zeros(3000, dtype=torch.int64)
    assert constraint_type(whiten=True)(z, centers, labels, variances) < 0.01
    assert constraint_type()(z, centers, labels, variances) > 0.01
    unit = constraint_type()(z, centers, labels)
    assert constraint_type()(z, centers, labels, variances) == unit  # not asked to whiten: variances are not used


@each_constraint
def test_an_empty_cluster_contributes_nothing(constraint_type):
    z, centers, labels, _ = batch(10, 1, 3)
    constraint = constraint_type()
    alone = constraint(z, centers, labels)
    more = torch.cat([centers, torch.full((3, 3), 100.0, dtype=torch.float64)]).requires_grad_()
    beside_empty = constraint(z, more, labels)
    torch.testing.assert_close(beside_empty, alone)
    (gradient,) = torch.autograd.grad(beside_empty, more)
    assert (gradient[1:] == 0).all()


@each_constraint
def test_order_of_the_samples_does_not_matter(constraint_type):
    z, centers, labels, _ = batch(40, 4, 3)
    shuffled = torch.randperm(40)
    constraint = constraint_type()
    torch.testing.assert_close(constraint(z, centers, labels), constraint(z[shuffled], centers, labels[shuffled]))


@each_constraint
@pytest.mark.parametrize("whiten", [False, True])
def test_gradients_by_finite_differences(constraint_type, whiten):
    z, centers, labels, variances = (x.requires_grad_() if x.is_floating_point() else x for x in batch(7, 2, 3))
    weights = torch.softmax(torch.randn(7, 2, dtype=torch.float64), -1).requires_grad_()
    constraint = constraint_type(whiten=whiten)
    assert torch.autograd.gradcheck(lambda *x: constraint(x[0], x[1], labels, x[2]), (z, centers, variances))
    assert torch.autograd.gradcheck(constraint, (z, centers, weights, variances))


@each_constraint
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
def test_gradients_are_finite_in_float32(constraint_type, scale):
    """Coinciding samples, tiny clusters and far ones."""
    z = (scale * torch.randn(12, 3)).requires_grad_()
    loss = constraint_type()(z, torch.zeros(3, 3), torch.tensor([0] * 8 + [1] + [2] * 3))
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


@each_constraint
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_costs_no_precision(constraint_type, dtype, monkeypatch):
    monkeypatch.setattr(clusters, "PAIRS_AT_ONCE", 64)  # the tiles are computed again in the backward pass
    z, centers, labels, variances = batch(30, 4, 3, torch.float32)
    constraint = constraint_type(whiten=True)
    results = []
    for enabled in (False, True):
        leaf = z.clone().requires_grad_()
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            loss = constraint(leaf, centers, labels, variances)
        loss.backward()
        assert loss.dtype == torch.float32
        results.append((loss.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@each_constraint
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_result_is_float32_or_better(constraint_type, dtype):
    z, centers, labels, _ = batch(dtype=dtype)
    loss = constraint_type()(z, centers, labels)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    expected = constraint_type()(z.double(), centers.double(), labels)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "constraint", [MMDConstraint(), MMDConstraint(samples=5), KLConstraint()], ids=["closed form", "sampled", "kl"]
)
@pytest.mark.parametrize("form", ["hard", "soft"])
def test_no_value_is_read_back(constraint, form):
    """On the meta device a read-back raises."""
    z = torch.empty(12, 3, device="meta", requires_grad=True)
    assignment = torch.empty(12, dtype=torch.int64, device="meta")
    assignment = assignment if form == "hard" else torch.empty(12, 4, device="meta")
    constraint(z, torch.empty(4, 3, device="meta"), assignment).backward()
    assert z.grad.is_meta


@pytest.mark.parametrize(
    "constraint",
    [MMDConstraint(bandwidths=(1.0, 2.0)), MMDConstraint(samples=9), KLConstraint()],
    ids=["closed form", "sampled", "kl"],
)
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies(constraint, duplicate):
    z, centers, labels, _ = batch()
    losses = []
    for module in (constraint, duplicate(constraint)):
        torch.manual_seed(3)
        losses.append(module(z, centers, labels))
    assert losses[0] == losses[1]
    assert not constraint.state_dict()


# --- Bad input ---

Z, CENTERS, LABELS = torch.randn(5, 3), torch.randn(2, 3), torch.tensor([0, 1, 0, 1, 1])
BAD_CALLS = {
    "z of another size": ((torch.randn(5, 4), CENTERS, LABELS), r"z: got shape \(5, 4\), expected \(n, 3\)"),
    "z empty": ((torch.randn(0, 3), CENTERS, LABELS[:0]), r"z: got an empty batch \(0, 3\), expected at least one"),
    "z integer": ((torch.ones(5, 3).long(), CENTERS, LABELS), r"z: got dtype torch.int64, expected floating point"),
    "z 1-D": ((torch.randn(3), CENTERS, LABELS), r"z: got shape \(3,\), expected \(n, 3\)"),
    "centers 1-D": ((Z, torch.randn(3), LABELS), r"centers: got shape \(3,\), expected \(K, D\)"),
    "no centers": ((Z, torch.randn(0, 3), LABELS), r"centers: got shape \(0, 3\), expected \(K, D\)"),
    "labels short": ((Z, CENTERS, LABELS[:4]), r"assignment: got shape \(4,\) .*expected \(5,\)"),
    "labels too high": ((Z, CENTERS, LABELS + 1), r"assignment: got class numbers from 1 to 2, expected 0 to 1"),
    "labels missing": ((Z, CENTERS, LABELS - 1), r"assignment: got class numbers from -1 to 0, expected 0 to 1"),
    "labels bool": ((Z, CENTERS, LABELS.bool()), r"assignment: got .*torch.bool, expected .*integer"),
    "weights of another size": ((Z, CENTERS, torch.rand(5, 3)), r"assignment: got shape \(5, 3\), expected .*\(5, 2\)"),
    "weights negative": (
        (Z, CENTERS, -torch.rand(5, 2)),
        r"assignment: got weights that are negative or NaN, expected",
    ),
    "weights nan": ((Z, CENTERS, torch.full((5, 2), torch.nan)), r"assignment: got weights that are negative or NaN"),
    "variances of another size": (
        (Z, CENTERS, LABELS, torch.rand(3, 2)),
        r"variances: got shape \(3, 2\), expected \(2, 3\)",
    ),
    "variances nan": (
        (Z, CENTERS, LABELS, torch.full((2, 3), torch.nan)),
        r"variances: got values that are not positive \(or NaN\), expected positive",
    ),
    "variances zero": ((Z, CENTERS, LABELS, torch.zeros(2, 3)), r"variances: got values that are not positive"),
    "variances missing": ((Z, CENTERS, LABELS), r"variances: got None, expected the head's variances \(K, D\)"),
}


@each_constraint
@pytest.mark.parametrize("case", BAD_CALLS)
@pytest.mark.usefixtures("unchecked")
def test_bad_arguments_are_named(constraint_type, case):
    arguments, message = BAD_CALLS[case]
    with pytest.raises(ValueError, match=message):
        constraint_type(whiten=case == "variances missing")(*arguments)


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: MMDConstraint(bandwidths=()), r"bandwidths: got \(\), expected one or more positive, finite numbers"),
        (lambda: MMDConstraint(bandwidths=(1.0, 0.0)), r"bandwidths: got \(1.0, 0.0\), expected one or more positive"),
        (lambda: MMDConstraint(bandwidths=(math.inf,)), r"bandwidths: got \(inf,\), expected one or more positive"),
        (lambda: MMDConstraint(bandwidths=(math.nan,)), r"bandwidths: got \(nan,\), expected one or more positive"),
        (lambda: MMDConstraint(samples=-1), r"samples: got -1, expected 0"),
        (lambda: KLConstraint(floor=0.0), r"floor: got 0.0, expected a positive number"),
        (lambda: KLConstraint(floor=math.nan), r"floor: got nan, expected a positive number"),
    ],
)
def test_bad_settings_are_named(construct, message):
    with pytest.raises(ValueError, match=message):
        construct()
