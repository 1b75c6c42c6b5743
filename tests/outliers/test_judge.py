"""The judge against a naive version, scikit-learn and torch.distributions, in its invariances and at its extremes."""

import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf
from torch import nn

from momatch.outliers.gaussians import ledoit_wolf_shrinkage
from momatch.outliers.judge import Judge


def samples(n=120, F=6, K=3, *, seed=0, condition=10.0):
    """Classes with a shared covariance of about this condition number; float64."""
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(F, F, dtype=torch.float64, generator=generator)).Q
    spread = rotation * torch.logspace(0, -0.5 * math.log10(condition), F, dtype=torch.float64)
    labels = torch.arange(n) % K
    centers = 3 * torch.randn(K, F, dtype=torch.float64, generator=generator)
    return torch.randn(n, F, dtype=torch.float64, generator=generator) @ spread.T + centers[labels], labels


def fitted(x, labels, *, dtype=torch.float64, batch=50):
    judge = Judge(x.shape[1], int(labels.max()) + 1).to(dtype)
    return judge.fit(list(zip(x.split(batch), labels.split(batch), strict=True)))


def naive_fit(x, labels):
    """Means, scikit-learn's covariance of the features themselves, and its shrinkage."""
    x, labels = x.numpy(), labels.numpy()
    means = np.stack([x[labels == k].mean(0) for k in range(labels.max() + 1)])
    deviation = x - means[labels]
    scale = np.sqrt((deviation**2).mean(0))
    estimate = LedoitWolf(assume_centered=True).fit(deviation / scale)
    return means, estimate.covariance_ * np.outer(scale, scale), estimate.shrinkage_


def naive_distances(x, means, covariance):
    precision = np.linalg.inv(covariance)
    return np.array([[math.sqrt((row - mean) @ precision @ (row - mean)) for mean in means] for row in x.numpy()])


def covariance_of(judge):
    root = torch.linalg.inv(judge.whitening.double())
    return torch.outer(judge.scale, judge.scale).double() * (root.T @ root)


def relative(got, expected):
    return float(((got.double() - expected.double()).abs() / expected.double().abs()).max())


# --- Against other implementations ---


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize(("n", "F", "K"), [(120, 6, 3), (30, 40, 2), (200, 2, 1)])
def test_fit_and_distances_are_those_of_scikit_learn(dtype, tolerance, n, F, K):
    x, labels = samples(n, F, K)
    means, covariance, shrinkage = naive_fit(x, labels)
    judge = fitted(x, labels, dtype=dtype)
    assert int(judge.count) == n
    assert float(judge.shrinkage) == pytest.approx(shrinkage, rel=tolerance)
    assert np.abs(covariance_of(judge).numpy() - covariance).max() < tolerance * np.abs(covariance).max()
    new = x[:20] + 0.5
    np.testing.assert_allclose(
        judge.mahalanobis(new.to(dtype)).numpy(), naive_distances(new, means, covariance), rtol=tolerance
    )


@given(n=st.integers(2, 30), F=st.integers(2, 8), seed=st.integers(0, 999))
@settings(max_examples=30)
def test_shrinkage_is_that_of_scikit_learn(n, F, seed):
    x = torch.randn(n, F, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = LedoitWolf(assume_centered=True).fit(x.numpy()).shrinkage_
    shrinkage = ledoit_wolf_shrinkage(x.T @ x / n, float(x.square().sum(1).square().mean()), n)
    assert shrinkage == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert 0 < shrinkage <= 1


def test_log_joint_is_that_of_normal_distributions():
    x, labels = samples()
    means, covariance, _ = naive_fit(x, labels)
    judge = fitted(x, labels)
    normal = torch.distributions.MultivariateNormal(torch.from_numpy(means), torch.from_numpy(covariance))
    log_joint = normal.log_prob(x.unsqueeze(1)) + math.log(1 / 3)
    torch.testing.assert_close(judge(x), log_joint, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(judge.log_density(x), log_joint.logsumexp(1), rtol=1e-9, atol=1e-9)


def test_the_density_integrates_to_one():
    x = torch.cat([torch.randn(40), 5 + torch.randn(20)]).double().unsqueeze(1)
    judge = fitted(x, torch.tensor([0] * 40 + [1] * 20))
    grid = torch.linspace(-20, 25, 4001).double()
    assert float(torch.trapezoid(judge.log_density(grid.unsqueeze(1)).exp(), grid)) == pytest.approx(1.0, abs=1e-9)


# --- Invariances ---


@given(seed=st.integers(0, 999), batch=st.integers(1, 200))
@settings(max_examples=15)
def test_neither_order_nor_batches_matter(seed, batch):
    x, labels = samples()
    judge = fitted(x, labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    other = fitted(x[order], labels[order], batch=batch)
    for name, value in judge.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_units_of_the_features_do_not_matter(dtype, tolerance):
    x, labels = samples()
    factor, shift = torch.logspace(-6, 6, 6).double(), torch.randn(6).double()
    moved = (x + shift) * factor
    distance = fitted(x, labels, dtype=dtype).mahalanobis(x)
    assert relative(fitted(moved, labels, dtype=dtype).mahalanobis(moved), distance) < tolerance


def test_a_large_mean_costs_no_precision():
    x, labels = samples()
    judge, moved = fitted(x, labels), fitted(x + 1e6, labels)
    assert relative(moved.mahalanobis(x + 1e6), judge.mahalanobis(x)) < 1e-6
    assert relative(moved.typical_distance, judge.typical_distance) < 1e-6
    # The buffers' rounding moves samples and centers alike: float32 too is as good as the samples.
    rounded = (x + 1e4).float()
    expected = fitted(rounded.double(), labels).mahalanobis(rounded.double())
    assert relative(fitted(rounded, labels, dtype=torch.float32).mahalanobis(rounded), expected) < 1e-5


# --- Samples left out ---


def refitted_distance(x, labels, i, *, means=None):
    """Distance of a sample to its class, in a fit without it: an unshrunk covariance, around these means or new ones."""
    rest = torch.arange(len(x)) != i
    if means is None:
        means = torch.stack([x[rest & (labels == k)].mean(0) for k in range(int(labels.max()) + 1)])
    deviation = (x - means[labels])[rest]
    own = x[i] - means[labels[i]]
    return float((own @ torch.linalg.solve(deviation.T @ deviation / len(deviation), own)).sqrt())


def unshrunk_distances(x, labels):
    means = torch.stack([x[labels == k].mean(0) for k in range(int(labels.max()) + 1)])
    deviation = x - means[labels]
    precision = torch.linalg.inv(deviation.T @ deviation / len(x))
    return means, ((deviation @ precision) * deviation).sum(1).sqrt()


def test_leaving_out_is_a_fit_without_the_sample():
    x, labels = samples(60, 5, 3)
    means, distance = unshrunk_distances(x, labels)
    fixed = [refitted_distance(x, labels, i, means=means) for i in range(60)]
    torch.testing.assert_close(Judge.leave_one_out(distance, 60), torch.tensor(fixed).double(), rtol=1e-6, atol=0)
    count = torch.bincount(labels)[labels].double()
    anew = [refitted_distance(x, labels, i) for i in range(60)]
    torch.testing.assert_close(
        Judge.leave_one_out(distance, 60, class_count=count), torch.tensor(anew).double(), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize(("n", "F", "K", "tolerance"), [(120, 6, 3, 0.01), (40, 30, 2, 0.05), (20, 100, 4, 0.2)])
def test_leaving_out_of_a_shrunk_fit_is_close(n, F, K, tolerance):
    x, labels = samples(n, F, K)
    judge = fitted(x, labels)
    own = judge.mahalanobis(x).gather(1, labels[:, None])[:, 0]
    count = torch.bincount(labels)[labels].double()
    left_out = judge.leave_one_out(own, n, shrinkage=float(judge.shrinkage), class_count=count)
    rests = [torch.arange(n) != i for i in range(n)]
    refitted = torch.stack([fitted(x[r], labels[r]).mahalanobis(x[~r])[0, labels[~r][0]] for r in rests])
    assert relative(left_out.mean(), refitted.mean()) < tolerance
    assert float(judge.typical_distance) == pytest.approx(float(left_out.mean()), rel=1e-9)
    assert float(judge.distance_deviation) == pytest.approx(float(left_out.std(correction=0)), rel=1e-6)


@pytest.mark.parametrize(("n", "F", "K"), [(20, 400, 1), (20, 400, 4), (200, 400, 10), (2000, 50, 10)])
def test_new_inliers_are_as_far_as_is_typical(n, F, K):
    x, labels = samples(n + 500, F, K)
    judge = fitted(x[:n].float(), labels[:n], dtype=torch.float32)
    distance = judge.mahalanobis(x[n:].float()).gather(1, labels[n:, None])
    assert torch.linalg.eigvalsh(covariance_of(judge)).min() > 0
    assert distance.isfinite().all()
    assert float(distance.mean()) == pytest.approx(float(judge.typical_distance), rel=0.1)
    assert 0.5 < float(distance.std() / judge.distance_deviation) < 2


# --- Extremes ---


def is_sound(judge, x):
    assert judge.mahalanobis(x).isfinite().all()
    assert judge.log_density(x).isfinite().all()
    assert all(value.isfinite().all() for value in judge.state_dict().values())
    assert float(judge.distance_deviation) > 0
    return True


@pytest.mark.parametrize(("n", "F", "K"), [(9, 1, 1), (9, 1, 3), (1, 1, 1), (1, 5, 1), (2, 5, 2), (3, 5, 1)])
def test_few_samples_features_and_classes(n, F, K):
    x, labels = samples(n, F, K)
    assert is_sound(fitted(x.float(), labels, dtype=torch.float32), torch.randn(4, F))


def test_one_feature_is_a_z_score():
    x = torch.randn(50, 1).double()
    expected = (x - x.mean()).abs() / x.std(correction=0)
    torch.testing.assert_close(fitted(x, torch.zeros(50).long()).mahalanobis(x), expected)


def test_a_class_without_images():
    x, labels = samples()
    judge = Judge(6, 5).double().fit([(x, labels)])
    distance = judge.mahalanobis(x)
    torch.testing.assert_close(distance[:, :3], fitted(x, labels).mahalanobis(x))
    assert (distance[:, 3:] == torch.inf).all()
    assert (judge(x).softmax(1)[:, 3:] == 0).all()
    assert judge.log_density(x).isfinite().all()


def test_a_class_with_one_image_does_not_make_small_distances_typical():
    x, labels = samples()
    alone = Judge(6, 4).double().fit([(x, labels), (x[:1] + 30, torch.tensor([3]))])
    assert is_sound(alone, x)
    assert float(alone.typical_distance) == pytest.approx(float(fitted(x, labels).typical_distance), rel=0.02)


def test_the_same_sample_again_and_again():
    x = torch.randn(1, 5).expand(30, -1)
    judge = fitted(x, torch.zeros(30).long(), dtype=torch.float32)
    assert is_sound(judge, torch.randn(4, 5))
    assert (judge.mahalanobis(x) < 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_features(dtype):
    x, labels = samples()
    # Constant overall, within each class, and but for its rounding.
    constant = torch.stack([torch.full((120,), 0.1), 0.1 + labels, 7.3 + 1e-16 * torch.randn(120).double()], 1)
    judge = fitted(torch.cat([x, constant], 1).to(dtype), labels, dtype=dtype)
    assert (judge.scale[6:] == 1).all()
    assert is_sound(judge, torch.randn(4, 9, dtype=dtype))


def test_half_precision_samples():
    x, labels = samples()
    half = x.half()
    judge = fitted(half, labels, dtype=torch.float32)
    expected = fitted(half.double(), labels).mahalanobis(half.double())
    assert judge.mahalanobis(half).dtype == torch.float32
    assert relative(judge.mahalanobis(half), expected) < 1e-4
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(judge.mahalanobis(half), judge.mahalanobis(half.float()))


def test_doubles_may_be_passed_to_a_float32_judge():
    x, labels = samples()
    judge = fitted(x, labels, dtype=torch.float32)
    assert relative(judge.mahalanobis(x), fitted(x, labels).mahalanobis(x)) < 1e-5


def test_outliers_of_fifty_deviations():
    x, labels = samples(300, 20, 3)
    judge = fitted(x.float(), labels, dtype=torch.float32)
    far = (x[:5] + 50 * x.std(0)).float()
    posterior = torch.full((5, 3), 1 / 3)
    assert (judge.score(judge.mahalanobis(far).amin(1), posterior) > 20).all()
    assert judge.log_density(far).isfinite().all()
    # In the fit as well: they widen it, but it stays sound.
    assert is_sound(
        fitted(torch.cat([x.float(), far]), torch.cat([labels, labels[:5]]), dtype=torch.float32), x.float()
    )


@pytest.mark.parametrize(("condition", "tolerance"), [(1e2, 5e-6), (1e4, 2e-5), (1e8, 5e-5)])
def test_float32_distances_where_the_covariance_is_ill_conditioned(condition, tolerance):
    x, labels = samples(5000, 100, 5, condition=condition)
    x = x.float()
    judge, exact = fitted(x, labels, dtype=torch.float32), fitted(x.double(), labels)
    assert relative(judge.mahalanobis(x), exact.mahalanobis(x.double())) < tolerance


def test_a_far_larger_float32_mean_counts_as_constant_only_where_rounding_rules():
    x = torch.randn(100, 2).double()
    x[:, 1] *= 1e-9
    assert ((fitted(1 + x, torch.zeros(100).long(), dtype=torch.float32).scale == 1).tolist()) == [False, True]
    assert ((fitted(1 + x, torch.zeros(100).long()).scale == 1).tolist()) == [False, False]


# --- The score ---


def test_the_score_adds_deviations_and_entropy():
    x, labels = samples()
    judge = fitted(x, labels)
    distance, posterior = torch.tensor([1.0, 2.0]).double(), torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]]).double()
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    deviations = [(d - float(judge.typical_distance)) / float(judge.distance_deviation) for d in (1.0, 2.0)]
    assert judge.score(distance, posterior).tolist() == pytest.approx([deviations[0], deviations[1] + entropy])
    nothing = torch.tensor([math.nan, math.inf]).double()
    assert judge.score(nothing, posterior).tolist() == [math.inf] * 2
    assert judge.score(distance, posterior * math.nan).tolist() == [math.inf] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_verdict_is_score_distance_and_density(dtype):
    x, labels = samples()
    # One class has no samples.
    judge = Judge(6, 4).to(dtype).fit([(x, labels)])
    new = 2.0 * x[:30].to(dtype)
    posterior = torch.rand(30, 4, dtype=dtype).softmax(1)
    verdict = judge.verdict(new, posterior)
    nearest = judge.mahalanobis(new).amin(1)
    assert torch.equal(verdict.distance, nearest)
    torch.testing.assert_close(verdict.score, judge.score(nearest, posterior), rtol=0, atol=0)
    torch.testing.assert_close(verdict.log_density, judge.log_density(new), rtol=0, atol=0)
    assert all(part.shape == (30,) and part.isfinite().all() for part in verdict)


def test_damaged_samples_have_the_highest_score():
    x, labels = samples()
    judge = fitted(x, labels)
    damaged = x[:3].clone()
    damaged[0, 0], damaged[1, 1], damaged[2, :] = math.nan, math.inf, -math.inf
    score = judge.score(judge.mahalanobis(damaged).amin(1), torch.full((3, 3), 1 / 3))
    assert score.tolist() == [math.inf] * 3


# --- Misuse ---


def test_what_is_no_sample(unchecked):
    x, labels = samples()
    damaged = x.clone()
    damaged[3, 1], damaged[7, 0] = math.nan, math.inf
    for batches, message in [
        ([], "got no samples"),
        ([(x[:0], labels[:0])], "got no samples"),
        ([(damaged, labels)], "got 2 of 120 samples with features that are not finite"),
        ([(1e200 * x, labels)], r"got features up to \d.*e\+200, expected at most 1e\+38"),
        ([(x[:, :4], labels)], r"got shape \(120, 4\), expected \(n, 6\)"),
        ([(x[0], labels)], r"got shape \(6,\), expected \(n, 6\)"),
        ([(x.long(), labels)], "expected floating point"),
        ([(x, labels[:5])], r"labels: got shape \(5,\)"),
        ([(x, labels.float())], "expected .* integer dtype"),
        ([(x, labels - 1)], "class numbers from -1 to 1"),
        ([(x, labels + 1)], "class numbers from 1 to 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            Judge(6, 3).fit(batches)
    with pytest.raises(ValueError, match="num_features: got 0"):
        Judge(0, 3)
    with pytest.raises(ValueError, match=r"num_classes: got 2\.5"):
        Judge(6, 2.5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_of_any_integer_type(dtype):
    x, labels = samples()
    assert torch.equal(Judge(6, 3).fit([(x, labels.to(dtype))]).centers, Judge(6, 3).fit([(x, labels)]).centers)


@pytest.mark.parametrize("passes", [1, 2])
def test_samples_that_can_be_read_only_once(passes):
    x, labels = samples()
    with pytest.raises(ValueError, match=r"got a generator, .* pass a list or a data loader"):
        Judge(6, 3).fit((x, labels) for _ in range(1))

    class Spent:
        started = 0

        def __iter__(self):
            self.started += 1
            yield x[:60], labels[:60]
            if self.started <= passes:
                yield x[60:], labels[60:]

    judge = Judge(6, 3)
    with pytest.raises(ValueError, match="got 120 samples in the first pass and 60 in a later one"):
        judge.fit(Spent())
    with pytest.raises(ValueError, match="fit"):  # not half fitted
        judge.mahalanobis(x)


def test_use_before_fit(unchecked):
    judge, x = Judge(6, 3), torch.randn(2, 6)
    uses = (
        judge,
        judge.mahalanobis,
        judge.log_density,
        lambda x: judge.score(x[:, 0], x),
        lambda x: judge.verdict(x, x),
    )
    for use in uses:
        with pytest.raises(ValueError, match=r"judge: got no fit, expected fit\(batches\)"):
            use(x)


def test_wrong_shapes(unchecked):
    x, labels = samples()
    judge = fitted(x, labels)
    for wrong, message in [(x[0], "got shape"), (x[:, :5], "got shape"), (x[:0], "empty batch"), (x.long(), "dtype")]:
        with pytest.raises(ValueError, match=message):
            judge.mahalanobis(wrong)
    distance = judge.mahalanobis(x)
    nearest = distance[:, 0]
    for pair in [(distance, distance), (nearest, distance[:5]), (nearest, nearest), (nearest, distance[:, :2])]:
        with pytest.raises(ValueError, match="distance, posterior: got shapes"):
            judge.score(*pair)
    with pytest.raises(ValueError, match="got shape"):
        judge.verdict(x[:, :5], distance)
    with pytest.raises(ValueError, match="distance, posterior: got shapes"):
        judge.verdict(x, distance[:5])


# --- As a module ---


def test_a_state_dict_carries_the_fit():
    x, labels = samples()
    judge = Judge(6, 4).fit([(x, labels)])
    copy = Judge(6, 4)
    copy.load_state_dict(judge.state_dict())
    assert torch.equal(copy.mahalanobis(x.float()), judge.mahalanobis(x.float()))
    double = copy.double()
    assert double.mahalanobis(x).dtype == torch.float64
    assert relative(double.mahalanobis(x)[:, :3], judge.mahalanobis(x.float())[:, :3]) < 1e-5
    assert int(double.count) == 120
    assert double.count.dtype == torch.int64


def test_a_second_fit_forgets_the_first():
    x, labels = samples()
    judge = fitted(x, labels)
    again = judge.fit([(3 - 2 * x, labels)])
    for name, value in fitted(3 - 2 * x, labels).state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-9, atol=1e-9)


def test_export(unchecked):
    class Score(nn.Module):
        def __init__(self, judge):
            super().__init__()
            self.judge = judge

        def forward(self, x):
            distance = self.judge.mahalanobis(x)
            return self.judge.score(distance.amin(1), (-distance).softmax(1))

    x, labels = samples()
    score = Score(Judge(6, 4).fit([(x, labels)]))
    batch = torch.export.Dim("n", min=1, max=1000)
    program = torch.export.export(score, (x[:4].float(),), dynamic_shapes=({0: batch},), strict=False)
    for n in (1, 3, 120):
        torch.testing.assert_close(program.module()(x[:n].float()), score(x[:n].float()))


def test_the_fit_holds_no_more_than_two_batches():
    alive = weakref.WeakSet()
    most = []

    class Fresh:
        def __iter__(self):
            generator = torch.Generator().manual_seed(0)
            for _ in range(20):
                x = torch.randn(100, 50, generator=generator)
                alive.add(x)
                most.append(len(alive))
                yield x, torch.arange(100) % 4
                del x

    judge = Judge(50, 4).fit(Fresh())
    assert int(judge.count) == 2000
    assert len(most) == 60
    assert max(most) <= 2
    assert not alive
