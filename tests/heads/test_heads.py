"""Heads against torch.distributions, in their invariants, at their extremes, and as the drop-in that they promise to be."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from momatch import AAGMM, KMeans, Linear, log_density, log_posterior
from momatch.heads.gaussian import DIRECT_CELLS

GAUSSIAN = [AAGMM, KMeans]
ALL = [*GAUSSIAN, Linear]


def components(head):
    """The head's clusters as torch.distributions has them, in float64."""
    return Independent(Normal(head.centers.double(), head.variances.double().sqrt()), 1)


def naive_log_joint(head, z):
    return components(head).log_prob(z.double().unsqueeze(-2)) + head.log_prior.double()


@pytest.mark.parametrize("head_type", GAUSSIAN)
@pytest.mark.parametrize("learn_prior", [False, True])
@pytest.mark.parametrize(("D", "K"), [(1, 1), (1, 3), (5, 1), (5, 3), (8, 10), (64, 100)])
def test_log_joint_equals_torch_distributions(head_type, learn_prior, D, K):
    head = head_type(D, K, learn_prior=learn_prior, dtype=torch.float64)
    if learn_prior:
        nn.init.normal_(head.prior_logits)
    z = 3 * torch.randn(20, D, dtype=torch.float64)
    torch.testing.assert_close(head(z), naive_log_joint(head, z), rtol=1e-10, atol=1e-10)
    mixture = MixtureSameFamily(Categorical(logits=head.log_prior), components(head))
    torch.testing.assert_close(log_density(head(z)), mixture.log_prob(z), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(log_posterior(head(z)).exp().sum(-1), torch.ones(20, dtype=torch.float64))


@pytest.mark.parametrize("head_type", GAUSSIAN)
@pytest.mark.parametrize(("D", "K"), [(1, 1), (5, 3), (5, 40), (64, 100)])
def test_gradients_equal_the_naive_version(head_type, D, K):
    head = head_type(D, K, learn_prior=True, dtype=torch.float64)
    z = torch.randn(7, D, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(7, K, dtype=torch.float64)
    leaves = [z, *head.parameters()]
    got = torch.autograd.grad(head(z), leaves, cotangent)
    expected = torch.autograd.grad(naive_log_joint(head, z), leaves, cotangent)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("head_type", GAUSSIAN)
def test_first_and_second_derivatives_by_finite_differences(head_type):
    head = head_type(3, 2, dtype=torch.float64)
    names, values = zip(*head.named_parameters(), strict=True)
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def of_everything(z, *parameters):
        return torch.func.functional_call(head, dict(zip(names, parameters, strict=True)), (z,))

    assert torch.autograd.gradcheck(of_everything, (z, *values))
    assert torch.autograd.gradgradcheck(of_everything, (z, *values))


def test_only_the_gradients_asked_for_are_computed():
    head = AAGMM(3, 2)
    head.log_variances.requires_grad_(False)
    head(torch.randn(4, 3)).sum().backward()
    assert head.centers.grad is not None
    assert head.log_variances.grad is None


def test_equal_variance_posterior_is_a_softmax_of_a_linear_map():
    z = torch.randn(50, 6, dtype=torch.float64)
    for head in (KMeans(6, 4, dtype=torch.float64), AAGMM(6, 4, dtype=torch.float64)):
        shared = head.variances[0].detach()
        if isinstance(head, AAGMM):
            with torch.no_grad():
                head.log_variances.copy_(shared.log().expand(4, 6))
        weight = head.centers / shared
        linear = F.linear(z, weight, -0.5 * (head.centers * weight).sum(-1))
        torch.testing.assert_close(log_posterior(head(z)), torch.log_softmax(linear, -1), rtol=1e-10, atol=1e-10)


def test_density_integrates_to_one():
    head = AAGMM(1, 3, dtype=torch.float64)
    x = torch.linspace(-30, 30, 60001, dtype=torch.float64).unsqueeze(1)
    assert math.isclose(torch.trapezoid(log_density(head(x)).exp(), x[:, 0]).item(), 1.0, rel_tol=1e-9)


@pytest.mark.parametrize("head_type", GAUSSIAN)
@pytest.mark.parametrize("distance", [5.0, 50.0, 1000.0])
def test_far_points_keep_finite_values_and_nonzero_gradients(head_type, distance):
    head = head_type(16, 10)
    direction = F.normalize(torch.randn(8, 16), dim=-1)
    z = (head.centers[0].detach() + distance * math.sqrt(16) * direction).requires_grad_()
    log_joint = head(z)
    loss = F.cross_entropy(log_joint, torch.arange(8) % 10, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum() - log_density(log_joint).sum(), z, retain_graph=True)
    assert log_joint.isfinite().all()
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    assert (gradient.abs().amax(-1) > 0).all()
    for parameter_gradient in torch.autograd.grad(loss.sum(), list(head.parameters())):
        assert parameter_gradient.isfinite().all()
        assert parameter_gradient.abs().max() > 0


def test_the_most_wrong_samples_pull_hardest():
    head = KMeans(2, 2)
    with torch.no_grad():
        head.centers.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    z = torch.tensor([[10.0, 0.0], [50.0, 0.0]], requires_grad=True)  # ever farther on the wrong side
    F.cross_entropy(head(z), torch.tensor([0, 0]), reduction="sum").backward()
    torch.testing.assert_close(z.grad.norm(dim=-1), torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize("offset", [0.0, 100.0, 10000.0])
def test_float32_stays_within_1e5_of_float64_also_far_from_the_origin(offset):
    head = AAGMM(128, 100)
    with torch.no_grad():
        head.centers.add_(torch.randn_like(head.centers) + offset)
    z = head.centers[torch.randint(0, 100, (960,))].detach() + torch.randn(960, 128)
    exact = naive_log_joint(head, z)
    assert ((head(z) - exact).abs() / exact.abs()).max() < 1e-5


@pytest.mark.parametrize("head_type", GAUSSIAN)
@pytest.mark.parametrize(("D", "K"), [(1, 1), (3, 4), (128, 10), (128, 100)])
def test_mahalanobis_equals_its_definition(head_type, D, K):
    head = head_type(D, K)
    with torch.no_grad():
        head.centers.mul_(5).add_(10)
    z = head.centers[torch.randint(0, K, (30,))].detach() + torch.randn(30, D)
    difference = z.double().unsqueeze(1) - head.centers.double()
    expected = (difference.square() / head.variances.double()).sum(-1).sqrt()
    torch.testing.assert_close(head.mahalanobis(z).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("D", "K"), [(3, 2), (128, DIRECT_CELLS // 128 + 1)])
def test_mahalanobis_has_a_finite_gradient_at_a_center(D, K):
    head = AAGMM(D, K)
    z = head.centers.detach().clone().requires_grad_()
    head.mahalanobis(z).sum().backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("head_type", ALL)
@settings(max_examples=30, deadline=None)
@given(batch=st.lists(st.integers(0, 4), max_size=3), D=st.integers(1, 6), K=st.integers(1, 5))
def test_leading_dimensions_are_those_of_nn_linear(head_type, batch, D, K):
    head = head_type(D, K)
    z = torch.randn(*batch, D)
    log_joint = head(z)
    assert log_joint.shape == nn.Linear(D, K)(z).shape
    torch.testing.assert_close(log_joint.reshape(-1, K), head(z.reshape(-1, D)))
    assert log_density(log_joint).shape == z.shape[:-1]
    if isinstance(head, AAGMM | KMeans):
        assert head.mahalanobis(z).shape == log_joint.shape


@pytest.mark.parametrize("head_type", ALL)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_computes_in_float32_under_autocast_and_after_half(head_type, low):
    head = head_type(128, 10)
    z = (50 * torch.randn(4, 128)).to(low)  # squared distances beyond the largest float16
    expected = head(z.float())
    with torch.autocast("cpu", dtype=low):
        got = head(z)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected)
    halved = head.to(low)(z)
    assert halved.dtype == torch.float32
    assert halved.isfinite().all()


@pytest.mark.parametrize("head_type", ALL)
def test_drop_in_for_the_last_layer(head_type):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
    model.fc = head_type(8, 3)
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[range(60), y] += 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = F.cross_entropy(model(x), y)
    for _ in range(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss < 0.2 * first


@pytest.mark.parametrize("head_type", ALL)
def test_initial_loss_is_near_that_of_an_uninformed_guess(head_type):
    for D in (8, 128, 512):
        loss = F.cross_entropy(head_type(D, 10)(torch.randn(500, D)), torch.randint(0, 10, (500,)))
        assert loss < 2 * math.log(10)


@pytest.mark.parametrize("head_type", ALL)
def test_copies_state_dict_and_pickle_keep_the_function(head_type):
    head, z = head_type(4, 3), torch.randn(5, 4)
    other = head_type(4, 3)
    other.load_state_dict(head.state_dict())
    buffer = io.BytesIO()
    torch.save(head.state_dict(), buffer)
    buffer.seek(0)
    loaded = head_type(4, 3)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    for twin in (other, loaded, copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(twin(z), head(z))
    assert head.double()(z.double()).dtype == torch.float64


@pytest.mark.parametrize("head_type", ALL)
def test_runs_on_meta_and_can_be_materialised(head_type):
    head = head_type(4, 3, device="meta")
    assert head(torch.empty(5, 4, device="meta")).shape == (5, 3)
    head = head.to_empty(device="cpu")
    head.reset_parameters()
    assert head(torch.randn(5, 4)).isfinite().all()


@pytest.mark.parametrize("head_type", ALL)
def test_vmap_over_inputs_and_over_an_ensemble(head_type):
    head, z = head_type(4, 3), torch.randn(6, 5, 4)
    torch.testing.assert_close(torch.func.vmap(head)(z), head(z))
    heads = [head_type(4, 3) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(heads)

    def call(parameters, buffers, z):
        return torch.func.functional_call(heads[0], (parameters, buffers), (z,))

    together = torch.func.vmap(call, in_dims=(0, 0, None))(parameters, buffers, z[0])
    torch.testing.assert_close(together, torch.stack([one(z[0]) for one in heads]))


def test_per_sample_gradients_by_func():
    head, z, y = AAGMM(4, 3), torch.randn(5, 4), torch.arange(5) % 3
    parameters = {name: value.detach() for name, value in head.named_parameters()}

    def loss(parameters, z, y):
        return F.cross_entropy(torch.func.functional_call(head, parameters, (z,)), y)

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, z, y)
    F.cross_entropy(head(z), y).backward()
    torch.testing.assert_close(per_sample["centers"].mean(0), head.centers.grad)
    torch.testing.assert_close(per_sample["log_variances"].mean(0), head.log_variances.grad)


def test_sample_has_the_mixture_s_moments():
    head = AAGMM(2, 2, learn_prior=True)
    with torch.no_grad():
        head.centers.copy_(torch.tensor([[-20.0, 0.0], [20.0, 5.0]]))
        head.log_variances.copy_(torch.tensor([[1.0, 4.0], [9.0, 0.25]]).log())
        head.prior_logits.copy_(torch.tensor([0.2, 0.8]).log())
    z = head.sample(200_000, generator=torch.Generator().manual_seed(1))
    left = z[z[:, 0] < 0]
    assert abs(len(left) / len(z) - 0.2) < 0.005
    torch.testing.assert_close(left.mean(0), head.centers[0].detach(), atol=0.05, rtol=0)
    torch.testing.assert_close(left.var(0), head.variances[0].detach(), rtol=0.05, atol=0)
    again = head.sample(200_000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(z, again)


def test_refit_is_the_closed_form():
    head = AAGMM(3, 4)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    z, labels = 5 + 3 * torch.randn(200, 3), torch.randint(0, 2, (200,))
    z, labels = torch.cat([z, torch.randn(1, 3)]), torch.cat([labels, torch.tensor([2])])
    head.refit(z, labels)
    for k in (0, 1):
        torch.testing.assert_close(head.centers[k].detach(), z[labels == k].mean(0))
        torch.testing.assert_close(head.variances[k].detach(), z[labels == k].var(0, unbiased=False))
    torch.testing.assert_close(head.centers[2].detach(), z[-1])
    pooled = sum(z[labels == k].sub(z[labels == k].mean(0)).square().sum(0) for k in (0, 1)) / len(z)
    torch.testing.assert_close(head.variances[2].detach(), pooled)  # one sample has no variance of its own
    assert torch.equal(head.centers[3], before["centers"][3])  # no sample: as it was
    assert torch.equal(head.log_variances[3], before["log_variances"][3])


def test_refit_inverts_sample():
    truth = AAGMM(4, 3)
    with torch.no_grad():
        truth.centers.mul_(30)
    z = truth.sample(50_000)
    head = AAGMM(4, 3)
    head.refit(z, truth(z).argmax(-1))
    torch.testing.assert_close(head.centers, truth.centers, atol=0.05, rtol=0)
    torch.testing.assert_close(head.variances, truth.variances, rtol=0.05, atol=0)


def test_refit_of_kmeans_moves_centers_only_and_a_learned_prior_follows_the_counts():
    head = KMeans(2, 2, learn_prior=True)
    head.refit(torch.tensor([[0.0, 0], [2, 0], [4, 0], [9, 9]]), torch.tensor([0, 0, 0, 1]))
    torch.testing.assert_close(head.centers.detach(), torch.tensor([[2.0, 0.0], [9.0, 9.0]]))
    assert torch.equal(head.variances, torch.ones(2, 2))
    torch.testing.assert_close(head.log_prior.exp().detach(), torch.tensor([4 / 6, 2 / 6]))


def test_refit_keeps_variances_positive_when_nothing_varies():
    head = AAGMM(2, 2)
    head.refit(torch.ones(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert head(torch.ones(1, 2)).isfinite().all()
    assert (head.variances > 0).all()


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "8"])
@pytest.mark.usefixtures("unchecked")
def test_bad_sizes_are_refused(bad):
    for head_type in ALL:
        with pytest.raises(ValueError, match="embedding_dim: got"):
            head_type(bad, 3)
        with pytest.raises(ValueError, match="num_classes: got"):
            head_type(3, bad)


@pytest.mark.parametrize("head_type", ALL)
@pytest.mark.usefixtures("unchecked")
def test_bad_inputs_name_got_and_expected(head_type):
    head = head_type(4, 3)
    with pytest.raises(ValueError, match=r"z: got shape \(2, 5\), expected \(\.\.\., 4\)"):
        head(torch.randn(2, 5))
    with pytest.raises(ValueError, match=r"z: got dtype torch.int64"):
        head(torch.ones(2, 4, dtype=torch.int64))


@pytest.mark.parametrize("head_type", GAUSSIAN)
@pytest.mark.usefixtures("unchecked")
def test_bad_refits_and_samples_are_refused(head_type):
    head = head_type(4, 3)
    with pytest.raises(ValueError, match="empty batch"):
        head.refit(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"labels: got class numbers from -1 to 0, expected 0 to 2"):
        head.refit(torch.randn(2, 4), torch.tensor([-1, 0]))
    with pytest.raises(ValueError, match="labels: got shape"):
        head.refit(torch.randn(2, 4), torch.tensor([1]))
    with pytest.raises(ValueError, match="z: got non-finite"):
        head.refit(torch.full((2, 4), torch.nan), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="n: got 0"):
        head.sample(0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_checkpoint_that_is_not_finite_is_refused(bad):
    model = nn.Sequential(nn.Linear(2, 4), AAGMM(4, 3))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["1.log_variances"][0, 0] = bad
    with pytest.raises(ValueError, match=r"1\.log_variances: got 1 of 12 values in the checkpoint that are not finite"):
        model.load_state_dict(state)


@pytest.mark.parametrize("head_type", GAUSSIAN)
@pytest.mark.parametrize("separation", [10.0, 100.0])
def test_small_heads_are_exact_for_clusters_far_from_each_other(head_type, separation):
    head = head_type(8, 10)
    with torch.no_grad():
        head.centers.normal_(std=separation)
        z = head.sample(500)
        exact = log_density(naive_log_joint(head, z))
        assert (log_density(head(z)) - exact).abs().max() < 1e-4


@pytest.mark.usefixtures("unchecked")
def test_numpy_integers_are_sizes():
    head = AAGMM(np.int64(6), np.int64(4))
    assert head(torch.randn(2, 6)).shape == (2, 4)


@pytest.mark.parametrize("head_type", ALL)
def test_state_can_be_assigned_to_a_head_without_storage(head_type):
    state = head_type(6, 4).state_dict()
    head = head_type(6, 4, device="meta")
    head.load_state_dict(state, assign=True)
    assert head(torch.randn(2, 6)).isfinite().all()
    if isinstance(head, AAGMM | KMeans):
        assert head.mahalanobis(torch.randn(2, 6)).isfinite().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own: its forward mode still uses torch.jit
@pytest.mark.parametrize("head_type", ALL)
@pytest.mark.parametrize("K", [4, 40])
def test_forward_mode_differentiation(head_type, K):
    head, z, direction = head_type(6, K, dtype=torch.float64), torch.randn(3, 6).double(), torch.randn(3, 6).double()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(z, direction)
        got = torch.autograd.forward_ad.unpack_dual(head(dual)).tangent
    step = 1e-6
    torch.testing.assert_close(
        got, (head(z + step * direction) - head(z - step * direction)) / (2 * step), rtol=1e-6, atol=1e-6
    )


def test_a_checkpoint_whose_variances_are_no_numbers_is_refused():
    state = AAGMM(4, 3).state_dict()
    state["log_variances"][0, 0] = -2000.0
    with pytest.raises(ValueError, match="log_variances: got 1 of 12"):
        AAGMM(4, 3).load_state_dict(state)
