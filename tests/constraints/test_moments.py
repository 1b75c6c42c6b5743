"""The moment constraint against its definition, value and gradient, in its invariants and at its edges."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from momatch import AAGMM, MomentConstraint
from momatch.constraints import clusters as clusters_module
from momatch.constraints import explicit as explicit_module
from momatch.constraints.cells import ARRANGEMENTS, NORMAL_MOMENTS, cell_counts
from tests.constraints.naive_moments import naive_moment_loss, naive_published_loss

METHODS = ["gram", "explicit"]
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def batch(n, D, K, *, soft=False, seed=0):
    """Embeddings, centers, an assignment and variances in float64, with an empty and a singleton cluster if K allows."""
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    z = torch.randn(n, D, **draw).requires_grad_()
    centers = torch.randn(K, D, **draw).requires_grad_()
    variances = (0.5 + torch.rand(K, D, **draw)).requires_grad_()
    if soft:
        assignment = torch.softmax(torch.randn(n, K, **draw), -1).requires_grad_()
    else:
        filled = max(1, K - 2)
        assignment = torch.randint(0, filled, (n,), generator=generator)
        assignment[0] = min(filled, K - 1)  # a cluster of one; the last is empty
    return z, centers, assignment, variances


def value_and_gradients(loss, leaves):
    return [loss, *torch.autograd.grad(loss, leaves, allow_unused=True)]


def assert_all_close(got, expected, **tolerance):
    for one, other in zip(got, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("D", [1, 2, 4])
def test_equals_the_sum_over_all_cells(D, order, soft, whiten, method):
    z, centers, assignment, variances = batch(9, D, 4, soft=soft)
    leaves = [z, centers] + [variances] * whiten + [assignment] * soft
    loss = MomentConstraint(order, whiten=whiten, method=method)(z, centers, assignment, variances)
    naive = naive_moment_loss(z, centers, assignment, order, variances=variances if whiten else None)
    assert_all_close(value_and_gradients(loss, leaves), value_and_gradients(naive, leaves), **TIGHT)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40), D=st.integers(1, 7), K=st.integers(1, 6), order=st.integers(1, 4),
    soft=st.booleans(), whiten=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_gram_and_explicit_agree_over_shapes(n, D, K, order, soft, whiten, seed):
    z, centers, assignment, variances = batch(n, D, K, soft=soft, seed=seed)
    leaves = [z, centers] + [variances] * whiten + [assignment] * soft
    both = [
        value_and_gradients(MomentConstraint(order, whiten=whiten, method=m)(z, centers, assignment, variances), leaves)
        for m in METHODS
    ]
    assert_all_close(*both, rtol=1e-9, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 8), D=st.integers(1, 4), K=st.integers(1, 3), order=st.integers(1, 4), seed=st.integers(0, 99))
def test_auto_equals_the_definition_over_shapes(n, D, K, order, seed):
    z, centers, assignment, _ = batch(n, D, K, seed=seed)
    loss = MomentConstraint(order)(z, centers, assignment)
    torch.testing.assert_close(loss, naive_moment_loss(z, centers, assignment, order), **TIGHT)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("order", [1, 4])
def test_order_weights_weigh_the_orders(order, method):
    z, centers, assignment, _ = batch(8, 3, 2)
    weights = (0.3, 2.0, 0.0, 5.0)
    loss = MomentConstraint(order, order_weights=weights, method=method)(z, centers, assignment)
    torch.testing.assert_close(loss, naive_moment_loss(z, centers, assignment, order, order_weights=weights), **TIGHT)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_tends_to_zero_on_a_normal_sample_and_not_on_another(order, method):
    generator = torch.Generator().manual_seed(1)
    centers, D = torch.tensor([[3.0, -1.0, 2.0, 0.5]]), 4

    def loss(n, scale=1.0):
        z = centers + scale * torch.randn(n, D, generator=generator)
        return MomentConstraint(order, method=method)(z, centers, torch.zeros(n, dtype=torch.int64)).item()

    # The loss of a normal sample of size n is a mean of squared sampling errors: it falls as 1/n.
    assert loss(6000) < 0.05
    assert loss(6000) < loss(60) / 10
    if order > 1:
        assert loss(6000, scale=2.0) > 1.0


@pytest.mark.parametrize("method", METHODS)
def test_whitening_makes_the_head_s_own_gaussian_the_target(method):
    head = AAGMM(4, 3)
    with torch.no_grad():
        head.centers.mul_(40)
        head.log_variances.uniform_(-3, 3)
        z = head.sample(6000)
    labels = head(z).argmax(-1)
    arguments = (z, head.centers, labels, head.variances)
    assert MomentConstraint(4, whiten=True, method=method)(*arguments) < 0.1
    assert MomentConstraint(4, whiten=False, method=method)(*arguments) > 1.0


@pytest.mark.parametrize("method", METHODS)
def test_invariances(method):
    z, centers, assignment, _ = batch(30, 4, 3)
    constraint = MomentConstraint(4, method=method)
    loss = constraint(z, centers, assignment)
    order = torch.randperm(30)
    dimensions, signs = torch.randperm(4), torch.tensor([1.0, -1, -1, 1], dtype=torch.float64)
    shift = torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(constraint(z[order], centers, assignment[order]), loss, **TIGHT)
    torch.testing.assert_close(constraint(z[:, dimensions], centers[:, dimensions], assignment), loss, **TIGHT)
    torch.testing.assert_close(constraint(z * signs, centers * signs, assignment), loss, **TIGHT)
    torch.testing.assert_close(constraint(z + shift, centers + shift, assignment), loss, **TIGHT)
    torch.testing.assert_close(constraint(z.repeat(2, 1), centers, assignment.repeat(2)), loss, **TIGHT)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_hard_labels_equal_one_hot_weights(method, dtype):
    z, centers, assignment, _ = batch(20, 3, 4)
    one_hot = torch.nn.functional.one_hot(assignment, 4).double()
    constraint = MomentConstraint(3, method=method)
    torch.testing.assert_close(constraint(z, centers, assignment.to(dtype)), constraint(z, centers, one_hot), **TIGHT)


@pytest.mark.parametrize("method", METHODS)
def test_unused_clusters_change_nothing(method):
    z, centers, assignment, _ = batch(12, 3, 3)
    constraint = MomentConstraint(4, method=method)
    more = torch.cat([centers, torch.full((2, 3), 1e6, dtype=torch.float64)])
    torch.testing.assert_close(constraint(z, more, assignment), constraint(z, centers, assignment), **TIGHT)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_working_in_blocks_changes_nothing(monkeypatch, method, soft):
    z, centers, assignment, variances = batch(50, 4, 3, soft=soft)
    constraint = MomentConstraint(4, whiten=True, method=method)
    leaves = [z, centers, variances] + [assignment] * soft
    whole = value_and_gradients(constraint(z, centers, assignment, variances), leaves)
    monkeypatch.setattr(clusters_module, "PAIRS_AT_ONCE", 49)
    monkeypatch.setattr(explicit_module, "MONOMIALS_AT_ONCE", 500)
    in_blocks = value_and_gradients(constraint(z, centers, assignment, variances), leaves)
    assert_all_close(in_blocks, whole, **TIGHT)


def test_float32_gradient_is_close_to_float64():
    z, centers, assignment, _ = batch(448, 64, 10)
    constraint = MomentConstraint(4)
    exact = torch.autograd.grad(constraint(z, centers, assignment), z)[0]
    single = z.detach().float().requires_grad_()
    got = torch.autograd.grad(constraint(single, centers.detach().float(), assignment), single)[0]
    assert (got - exact).norm() / exact.norm() < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_far_points_and_low_precision_stay_finite(method):
    # The loss is float32; a gradient that goes back to float16 embeddings must fit in float16, so those are not as far.
    for low, distance in ((torch.float16, 2), (torch.bfloat16, 50), (torch.float32, 50)):
        z = torch.randn(20, 4).mul(distance).to(low).requires_grad_()
        with torch.autocast("cpu", dtype=low, enabled=low != torch.float32):
            loss = MomentConstraint(4, method=method)(z, torch.zeros(2, 4, dtype=low), torch.arange(20) % 2)
        loss.backward()
        assert loss.dtype == torch.float32
        assert loss.isfinite()
        assert z.grad.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_transforms_and_devices_without_values(method):
    constraint = MomentConstraint(4, method=method)
    z, centers, assignment = torch.randn(3, 12, 4), torch.randn(2, 4), torch.arange(12) % 2
    mapped = torch.func.vmap(lambda one: constraint(one, centers, assignment))(z)
    torch.testing.assert_close(mapped, torch.stack([constraint(one, centers, assignment) for one in z]))
    assert constraint(z[0].to("meta"), centers.to("meta"), assignment.to("meta")).shape == ()


def test_second_derivative():
    z, centers, assignment, variances = batch(5, 2, 2)
    for method in METHODS:
        constraint = MomentConstraint(4, whiten=True, method=method)
        assert torch.autograd.gradgradcheck(lambda z, c, v: constraint(z, c, assignment, v), (z, centers, variances))  # noqa: B023


def test_order_zero_is_no_constraint():
    z, centers, assignment, _ = batch(5, 3, 2)
    assert MomentConstraint(0)(z, centers, assignment) == 0


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("n", "D", "K"), [(1, 2, 1), (12, 3, 4), (30, 8, 3)])
def test_published_variant_equals_a_transcription_of_its_formula(order, n, D, K):
    z, centers, assignment, _ = batch(n, D, K)
    loss = MomentConstraint(order, variant="published")(z, centers, assignment)
    naive = naive_published_loss(z, centers, assignment, order)
    assert_all_close(
        value_and_gradients(loss, [z, centers]), value_and_gradients(naive, [z, centers]), rtol=1e-9, atol=1e-9
    )


def test_published_variant_leaves_the_variances_free():
    z = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 5.0], [0.0, -5.0]])
    labels = torch.zeros(4, dtype=torch.int64)
    assert MomentConstraint(2, variant="published")(z, torch.zeros(1, 2), labels) == 0
    assert MomentConstraint(2)(z, torch.zeros(1, 2), labels) > 1


@pytest.mark.parametrize("D", range(1, 7))
def test_class_tables_count_the_cells(D):
    counted: dict[tuple[int, ...], int] = {}
    for p in range(1, 5):
        for cell in product(range(D), repeat=p):
            key = tuple(sorted((cell.count(d) for d in set(cell)), reverse=True))
            counted[key] = counted.get(key, 0) + 1
    assert {key: cells for key, cells in cell_counts(D).items() if cells} == counted
    assert set(cell_counts(D)) == set(ARRANGEMENTS)
    assert set(NORMAL_MOMENTS) <= set(ARRANGEMENTS)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("order", [5, -1, 2.5, True, "2"])
def test_unknown_order_is_refused(order):
    with pytest.raises(ValueError, match=r"order: got .*expected an integer from 0 to 4"):
        MomentConstraint(order)


@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="method: got 'fast', expected one of"):
        MomentConstraint(2, method="fast")
    with pytest.raises(ValueError, match="variant: got 'new', expected one of"):
        MomentConstraint(2, variant="new")
    with pytest.raises(ValueError, match=r"order_weights: got \(1.0,\), expected at least 2"):
        MomentConstraint(2, order_weights=(1.0,))
    for options in ({"order": 3}, {"order": 2, "whiten": True}, {"order": 2, "order_weights": (1.0, 1.0)}):
        with pytest.raises(ValueError, match="variant: got 'published'"):
            MomentConstraint(variant="published", **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"z": torch.randn(4, 2)}, r"z: got shape \(4, 2\), expected \(n, 3\)"),
        ({"z": torch.empty(0, 3)}, r"z: got an empty batch"),
        ({"z": torch.randn(3)}, r"z: got shape \(3,\)"),
        ({"centers": torch.randn(3)}, r"centers: got shape \(3,\)"),
        ({"centers": torch.empty(0, 3)}, r"centers: got shape \(0, 3\)"),
        ({"assignment": torch.tensor([0, 1, 0])}, r"assignment: got shape \(3,\).*expected \(4,\)"),
        ({"assignment": torch.tensor([0, 1, 0, 2])}, r"assignment: got class numbers from 0 to 2, expected 0 to 1"),
        ({"assignment": torch.tensor([0, 1, 0, -1])}, r"assignment: got class numbers from -1 to 1, expected 0 to 1"),
        ({"assignment": torch.rand(4, 3)}, r"assignment: got shape \(4, 3\), expected \(4,\) .* or \(4, 2\)"),
        ({"assignment": torch.zeros(4)}, r"assignment: .*class numbers are integers, got torch.float32"),
        ({"assignment": -torch.rand(4, 2)}, r"assignment: got weights that are negative or NaN"),
        ({"assignment": torch.full((4, 2), torch.nan)}, r"assignment: got weights that are negative or NaN"),
        ({"variances": torch.rand(2, 4)}, r"variances: got shape \(2, 4\), expected \(2, 3\)"),
        ({"variances": torch.full((2, 3), torch.nan)}, r"variances: got values that are not positive"),
        ({"variances": None}, r"variances: got None, expected the head's variances"),
    ],
)
def test_bad_input_names_argument_got_and_expected(replaced, message):
    arguments = {
        "z": torch.randn(4, 3), "centers": torch.randn(2, 3),
        "assignment": torch.tensor([0, 1, 0, 1]), "variances": torch.ones(2, 3),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        MomentConstraint(2, whiten=True)(**(arguments | replaced))


def test_a_call_in_inference_mode_leaves_training_as_it_was():
    constraint, labels = MomentConstraint(2, order_weights=(0.7, 0.3)), torch.arange(20) % 2
    with torch.inference_mode():
        constraint(torch.randn(20, 8), torch.zeros(2, 8), labels)
    z = torch.randn(20, 8, requires_grad=True)
    constraint(z, torch.zeros(2, 8), labels).backward()
    assert z.grad.isfinite().all()
