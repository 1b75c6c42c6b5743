"""Pseudo-label policies against plain loops in float64, and what must hold whatever the posterior is."""

import copy
import io
import math
import pickle
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from momatch import FixMatchPolicy, FlexMatchPolicy, FreeMatchPolicy, SoftMatchPolicy

POOL = 30
CUTOFF = 0.95
MOMENTUM = 0.999

# --- The rules of the method, as loops over Python floats. `rows` are posteriors, `kept` tells which samples take part. ---


def argmax(row):
    return max(range(len(row)), key=lambda c: row[c])


def mean(values):
    return sum(values) / len(values)


def column_means(rows):
    return [mean(column) for column in zip(*rows, strict=True)]


def moved(old, new, momentum):
    return momentum * old + (1 - momentum) * new


class NaiveFixMatch:
    def __init__(self, cutoff=CUTOFF):
        self.cutoff = cutoff

    def step(self, rows, indices, kept):
        return [float(keep and max(row) >= self.cutoff) for row, keep in zip(rows, kept, strict=True)]

    def state(self):
        return {}


class NaiveFlexMatch:
    def __init__(self, K, pool, cutoff=CUTOFF, warmup=True):
        self.K, self.pool, self.cutoff, self.warmup = K, pool, cutoff, warmup
        self.memory = {}  # sample -> class; a sample that is missing is -1

    def counts(self):
        found = Counter(self.memory.values())
        return [found[c] for c in range(self.K)] + [self.pool - len(self.memory)]

    def beta(self):
        if not self.memory:
            return [0.0] * self.K
        counts = self.counts()
        largest = max(counts if self.warmup else counts[:-1])
        return [count / largest for count in counts[:-1]]

    def step(self, rows, indices, kept):
        beta, weights = self.beta(), []
        for row, keep in zip(rows, kept, strict=True):
            b = beta[argmax(row)] if keep else 0.0
            weights.append(float(keep and max(row) >= self.cutoff * b / (2 - b)))
        for row, index, keep in zip(rows, indices, kept, strict=True):
            if keep and max(row) >= self.cutoff:
                self.memory[index] = argmax(row)
        return weights

    def state(self):
        selected = [self.memory.get(index, -1) for index in range(self.pool)]
        return {"selected": selected, "counts": self.counts(), "beta": self.beta()}


class NaiveFreeMatch:
    def __init__(self, K, momentum=MOMENTUM):
        self.K, self.momentum = K, momentum
        self.tau, self.p, self.h = 1 / K, [1 / K] * K, [1 / K] * K

    def step(self, rows, indices, kept):
        some = [row for row, keep in zip(rows, kept, strict=True) if keep]
        if some:
            histogram = [mean([float(argmax(row) == c) for row in some]) for c in range(self.K)]
            self.tau = moved(self.tau, mean([max(row) for row in some]), self.momentum)
            self.p = [moved(old, new, self.momentum) for old, new in zip(self.p, column_means(some), strict=True)]
            self.h = [moved(old, new, self.momentum) for old, new in zip(self.h, histogram, strict=True)]
        return [
            float(keep and max(row) >= self.tau * self.p[argmax(row)] / max(self.p))
            for row, keep in zip(rows, kept, strict=True)
        ]

    def fairness_loss(self, rows, weights):
        some = [row for row, weight in zip(rows, weights, strict=True) if weight > 0]
        if not some:
            return 0.0
        pbar = column_means(some)
        h = [mean([float(argmax(row) == c) for row in some]) for c in range(self.K)]
        strong = [p / q if q > 0 else 0.0 for p, q in zip(pbar, h, strict=True)]
        target = [p / q for p, q in zip(self.p, self.h, strict=True)]
        return sum(t / sum(target) * math.log(s / sum(strong)) for t, s in zip(target, strong, strict=True) if s > 0)

    def state(self):
        return {"tau": self.tau, "mean_posterior": self.p, "mean_histogram": self.h}


class NaiveSoftMatch:
    def __init__(self, K, momentum=MOMENTUM):
        self.K, self.momentum = K, momentum
        self.mean, self.variance, self.p = 1 / K, 1.0, [1 / K] * K

    def step(self, rows, indices, kept):
        some = [row for row, keep in zip(rows, kept, strict=True) if keep]
        if some:
            self.p = [moved(old, new, self.momentum) for old, new in zip(self.p, column_means(some), strict=True)]
            confidences = [self.aligned(row) for row in some]
            batch_mean = mean(confidences)
            squares = sum((confidence - batch_mean) ** 2 for confidence in confidences)
            self.mean = moved(self.mean, batch_mean, self.momentum)
            self.variance = moved(self.variance, squares / max(len(some) - 1, 1), self.momentum)
        return [self.weight(row) if keep else 0.0 for row, keep in zip(rows, kept, strict=True)]

    def aligned(self, row):
        ratios = [p / q for p, q in zip(row, self.p, strict=True)]
        return max(ratios) / sum(ratios)

    def weight(self, row):
        return math.exp(-(min(self.aligned(row) - self.mean, 0.0) ** 2) / (2 * self.variance / 4))

    def state(self):
        return {"mean": self.mean, "variance": self.variance, "mean_posterior": self.p}


PAIRS = {
    "fixmatch": lambda K: (FixMatchPolicy(), NaiveFixMatch()),
    "fixmatch at 0.6": lambda K: (FixMatchPolicy(cutoff=0.6), NaiveFixMatch(0.6)),
    "flexmatch": lambda K: (FlexMatchPolicy(K, POOL), NaiveFlexMatch(K, POOL)),
    "flexmatch cold": lambda K: (FlexMatchPolicy(K, POOL, warmup=False), NaiveFlexMatch(K, POOL, warmup=False)),
    "flexmatch at 0.6": lambda K: (FlexMatchPolicy(K, POOL, cutoff=0.6), NaiveFlexMatch(K, POOL, 0.6)),
    "freematch": lambda K: (FreeMatchPolicy(K), NaiveFreeMatch(K)),
    "freematch at 0.7": lambda K: (FreeMatchPolicy(K, momentum=0.7), NaiveFreeMatch(K, 0.7)),
    "softmatch": lambda K: (SoftMatchPolicy(K), NaiveSoftMatch(K)),
    "softmatch at 0.7": lambda K: (SoftMatchPolicy(K, momentum=0.7), NaiveSoftMatch(K, 0.7)),
}


def make(name, K=4):
    return PAIRS[name](K)[0]


each_policy = pytest.mark.parametrize("name", ["fixmatch", "flexmatch", "flexmatch cold", "freematch", "softmatch"])
each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)


def posteriors(n, K, sharpness=6.0, dtype=torch.float32):
    """Posteriors from undecided to certain, with classes of different popularity."""
    popularity = torch.linspace(0.0, 1.0, K)
    return torch.softmax(sharpness * torch.rand(n, 1) * (torch.randn(n, K) + popularity), -1).to(dtype)


def assert_state(policy, naive):
    for name, value in naive.state().items():
        actual, expected = getattr(policy, name).double(), torch.tensor(value, dtype=torch.float64)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")


def assert_follows(policy, naive, batches):
    for posterior, indices, exclude in batches:
        kept = posterior.isfinite().all(-1)
        kept = kept if exclude is None else kept & ~exclude
        expected = naive.step(posterior.double().tolist(), indices.tolist(), kept.tolist())
        weight = policy(posterior, indices, exclude)
        torch.testing.assert_close(weight.double(), torch.tensor(expected).double(), rtol=1e-4, atol=1e-6)
        assert_state(policy, naive)


# --- Against the loops ---


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("K", [1, 2, 7])
def test_policy_follows_the_loops(name, K):
    policy, naive = PAIRS[name](K)
    batches = [(posteriors(12, K), torch.randint(POOL, (12,)), None) for _ in range(60)]
    assert_follows(policy, naive, batches)


@pytest.mark.parametrize("name", PAIRS)
def test_excluded_samples_and_bad_rows(name):
    policy, naive = PAIRS[name](4)

    def batch(n):
        posterior = posteriors(n, 4)
        posterior[torch.rand(n) < 0.1] = torch.nan
        posterior[torch.rand(n) < 0.05, 0] = torch.inf
        return posterior, torch.randint(POOL, (n,)), torch.rand(n) < 0.3

    assert_follows(policy, naive, [batch(n) for n in [16, 1, 5, 1, 32, 2] * 8])


@each_policy
@each_dtype
def test_every_floating_dtype(name, dtype):
    policy, naive = PAIRS[name](4)
    batches = [(posteriors(12, 4, dtype=dtype), torch.randint(POOL, (12,)), torch.rand(12) < 0.2) for _ in range(20)]
    assert_follows(policy, naive, batches)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert policy(posteriors(3, 4, dtype=dtype), torch.arange(3)).dtype == expected


@each_policy
def test_single_sample_batches(name):
    policy, naive = PAIRS[name](3)
    assert_follows(policy, naive, [(posteriors(1, 3), torch.randint(POOL, (1,)), None) for _ in range(40)])


@pytest.mark.parametrize("name", ["flexmatch", "flexmatch cold"])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64], ids=str)
def test_flexmatch_with_an_index_many_times_in_a_batch(name, dtype):
    policy, naive = PAIRS[name](4)
    batches = [
        (posteriors(20, 4, sharpness=12.0), torch.randint(4, (20,)).to(dtype), torch.rand(20) < 0.3) for _ in range(30)
    ]
    assert_follows(policy, naive, batches)


def test_flexmatch_takes_the_last_confident_label_of_an_index():
    policy = FlexMatchPolicy(3, 5)
    posterior = torch.eye(3)[[0, 1, 2, 1]]
    posterior[3] = 1 / 3  # not confident: it writes nothing
    policy(posterior, torch.tensor([2, 2, 2, 2]), torch.tensor([False, False, True, False]))
    assert policy.selected.tolist() == [-1, -1, 1, -1, -1]
    assert policy.counts.tolist() == [0, 1, 0, 4]


# --- FlexMatch ---


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), K=st.integers(1, 5), pool=st.integers(1, 12), warmup=st.booleans())
def test_flexmatch_counts_are_those_of_the_memory(data, K, pool, warmup):
    policy = FlexMatchPolicy(K, pool, warmup=warmup)
    for _ in range(data.draw(st.integers(1, 6))):
        n = data.draw(st.integers(1, 10))
        labels = torch.tensor(data.draw(st.lists(st.integers(0, K - 1), min_size=n, max_size=n)))
        indices = torch.tensor(data.draw(st.lists(st.integers(0, pool - 1), min_size=n, max_size=n)))
        confident = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        exclude = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        posterior = torch.where(confident.unsqueeze(1), torch.eye(K)[labels], 0.9 * torch.eye(K)[labels])
        policy(posterior, indices, exclude)

        recount = [int((policy.selected == c).sum()) for c in [*range(K), -1]]
        assert policy.counts.tolist() == recount
        assert sum(recount) == pool
        largest = max([1, *(recount if warmup else recount[:-1])])
        torch.testing.assert_close(policy.beta, torch.tensor(recount[:-1]) / largest)


def test_flexmatch_forgets_what_is_not_drawn():
    """As a pool of the others alone, which have not been seen yet where they were left out before."""
    generator, pool = torch.Generator().manual_seed(0), 12
    policy, naive = FlexMatchPolicy(3, pool), NaiveFlexMatch(3, pool)
    for drawn in (range(pool), range(2, 9), range(5, pool)):
        policy.forget_undrawn(torch.tensor([index in drawn for index in range(pool)]))
        naive.memory = {index: c for index, c in naive.memory.items() if index in drawn}
        naive.pool = len(drawn)
        for _ in range(3):
            indices = torch.randint(drawn.start, drawn.stop, (4,), generator=generator)
            posterior = (4.0 * torch.randn(4, 3, generator=generator)).softmax(1)
            posterior[0] = torch.tensor([0.98, 0.01, 0.01])
            # Of the step before, as the policy has it; a change of the pool tells from the next step on.
            policy(posterior, indices)
            naive.step(posterior.tolist(), indices.tolist(), [True] * 4)
            assert policy.counts.tolist() == naive.counts()
            torch.testing.assert_close(policy.beta, torch.tensor(naive.beta()))
    with pytest.raises(ValueError, match=r"is_drawn: got shape \(3,\), expected \(12,\)"):
        policy.forget_undrawn(torch.ones(3, dtype=torch.bool))


def test_flexmatch_masks_with_the_beta_of_the_steps_before():
    policy = FlexMatchPolicy(2, 4)
    sure, unsure = [0.99, 0.01], [0.55, 0.45]
    # Nothing is known: every cutoff is 0, also in the step that fills the memory.
    assert policy(torch.tensor([sure, sure, sure, unsure]), torch.arange(4)).tolist() == [1, 1, 1, 1]
    torch.testing.assert_close(policy.beta, torch.tensor([1.0, 0.0]))
    # Now class 0 stands at the full cutoff, class 1 at none.
    assert policy(torch.tensor([unsure, [0.45, 0.55]]), torch.arange(2)).tolist() == [0, 1]


def test_flexmatch_warmup_counts_the_samples_never_selected():
    posterior, indices = torch.tensor([[0.99, 0.01]]), torch.tensor([0])
    warm, cold = FlexMatchPolicy(2, 10), FlexMatchPolicy(2, 10, warmup=False)
    warm(posterior, indices)
    cold(posterior, indices)
    torch.testing.assert_close(warm.beta, torch.tensor([1 / 9, 0.0]))
    torch.testing.assert_close(cold.beta, torch.tensor([1.0, 0.0]))


def test_flexmatch_forgets_nothing_when_a_sample_turns_unsure():
    policy = FlexMatchPolicy(2, 3)
    policy(torch.tensor([[0.99, 0.01]]), torch.tensor([1]))
    policy(torch.tensor([[0.2, 0.8]]), torch.tensor([1]))
    assert policy.selected.tolist() == [-1, 0, -1]
    policy(torch.tensor([[0.01, 0.99]]), torch.tensor([1]))
    assert policy.selected.tolist() == [-1, 1, -1]
    assert policy.counts.tolist() == [0, 1, 2]


@each_dtype
def test_a_confidence_at_the_cutoff_counts(dtype):
    posterior = torch.tensor([[0.75, 0.25]], dtype=dtype)
    assert FixMatchPolicy(cutoff=0.75)(posterior, torch.arange(1)).tolist() == [1.0]
    flexmatch = FlexMatchPolicy(2, 1, cutoff=0.75)
    flexmatch(posterior, torch.arange(1))
    assert flexmatch.selected.tolist() == [0]
    assert flexmatch(posterior, torch.arange(1)).tolist() == [1.0]  # at beta = 1


# --- FreeMatch ---


def test_freematch_updates_before_it_masks():
    policy = FreeMatchPolicy(2, momentum=0.0)
    # By the state of before, tau = 0.5, both would count; by this batch's own, class 0 stands at 0.775.
    assert policy(torch.tensor([[0.6, 0.4], [0.95, 0.05]]), torch.arange(2)).tolist() == [0, 1]
    torch.testing.assert_close(policy.tau, torch.tensor(0.775))
    torch.testing.assert_close(policy.mean_histogram, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("name", ["fixmatch", "flexmatch", "freematch"])
def test_thresholds_are_those_that_the_next_batch_is_judged_by(name):
    policy = make(name, 3)
    # A pool in which the classes are learned unequally, and a model that is mostly sure.
    sure = torch.eye(3)[torch.tensor([0] * 20 + [1] * 8 + [2] * 2)]
    for _ in range(1000):
        policy(sure, torch.arange(POOL))
    thresholds = policy.thresholds(3)
    assert thresholds.shape == (3,)
    assert len(set(thresholds.tolist())) == (1 if name == "fixmatch" else 3)
    posterior = torch.softmax(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), 1)
    if name == "freematch":
        policy.momentum = 1.0  # its averages move before it judges
    confidence, labels = posterior.max(1)
    expected = (confidence >= thresholds[labels]).float()
    torch.testing.assert_close(policy(posterior, torch.arange(20)), expected)
    assert expected.sum() < 20


def test_softmatch_has_one_threshold_its_mean():
    policy = SoftMatchPolicy(3)
    assert policy.thresholds(3).tolist() == pytest.approx([1 / 3] * 3)


def test_freematch_lowers_the_threshold_of_a_class_seen_less():
    policy = FreeMatchPolicy(2, momentum=0.0)
    posterior = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.7, 0.3], [0.4, 0.6]])  # tau = 0.775, p~ = (0.725, 0.275)
    assert policy(posterior, torch.arange(4)).tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("K", [1, 2, 5])
def test_fairness_loss_follows_the_loops(K):
    policy, naive = PAIRS["freematch at 0.7"](K)
    for _ in range(20):
        weak, indices = posteriors(10, K), torch.arange(10)
        weight = policy(weak, indices, torch.rand(10) < 0.3)
        naive.step(weak.double().tolist(), indices.tolist(), [True] * 10)
        naive.tau, naive.p, naive.h = float(policy.tau), policy.mean_posterior.tolist(), policy.mean_histogram.tolist()
        strong = posteriors(10, K, sharpness=12.0)
        expected = naive.fairness_loss(strong.double().tolist(), weight.tolist())
        torch.testing.assert_close(policy.fairness_loss(strong, weight), torch.tensor(expected), rtol=1e-5, atol=1e-6)
        assert expected <= 1e-6


def test_fairness_loss_gradient():
    policy = FreeMatchPolicy(4, momentum=0.5)
    policy(posteriors(16, 4), torch.arange(16))
    weight = (torch.rand(9) < 0.6).double()
    logits = (3 * torch.randn(9, 4, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: policy.fairness_loss(x.softmax(-1), weight), (logits,))
    (gradient,) = torch.autograd.grad(policy.fairness_loss(logits.softmax(-1), weight), logits)
    assert gradient[weight > 0].abs().sum() > 0
    assert (gradient[weight == 0] == 0).all()


@pytest.mark.parametrize("logit", [0.0, 30.0, 200.0])
def test_fairness_loss_stays_finite_at_certainty(logit):
    policy = FreeMatchPolicy(3)
    logits = (logit * torch.eye(3)[[0, 0, 2]]).requires_grad_()
    loss = policy.fairness_loss(logits.softmax(-1), torch.ones(3))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_fairness_loss_with_nothing_counted_is_zero():
    policy = FreeMatchPolicy(3)
    logits = torch.randn(5, 3, requires_grad=True)
    loss = policy.fairness_loss(logits.softmax(-1), torch.zeros(5))
    loss.backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()


def test_fairness_loss_ignores_rows_that_are_not_numbers():
    policy = FreeMatchPolicy(3)
    strong = posteriors(6, 3)
    spoilt = torch.cat([strong, torch.full((2, 3), torch.nan)]).requires_grad_()
    loss = policy.fairness_loss(spoilt, torch.ones(8))
    loss.backward()
    torch.testing.assert_close(loss, policy.fairness_loss(strong, torch.ones(6)))
    assert spoilt.grad.isfinite().all()


def test_fairness_loss_survives_a_class_that_is_never_predicted():
    """Its average shrinks by 0.999 a step and stops among the smallest numbers that float32 has, not at 0."""
    policy = FreeMatchPolicy(3)
    never = torch.tensor([0.0, 1.0, 0.0])
    for _ in range(110_000):
        policy.mean_histogram.lerp_(never, 1 - MOMENTUM)
    strong = posteriors(8, 3).requires_grad_()
    loss = policy.fairness_loss(strong, torch.ones(8))
    loss.backward()
    assert loss.isfinite()
    assert strong.grad.isfinite().all()


def test_fairness_loss_can_go_backward_after_the_next_step():
    policy = FreeMatchPolicy(3)
    strong = posteriors(8, 3).requires_grad_()
    loss = policy.fairness_loss(strong, torch.ones(8))
    policy(posteriors(8, 3), torch.arange(8))
    loss.backward()
    assert strong.grad.isfinite().all()


# --- SoftMatch ---


def test_softmatch_weight_is_one_above_the_mean_and_falls_below():
    policy = SoftMatchPolicy(2, momentum=1.0)  # the state stays at mean 1/2, variance 1
    policy.mean.fill_(0.8)
    weight = policy(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.45, 0.55]]), torch.arange(4))
    expected = [1.0, 1.0, math.exp(-2 * 0.2**2), math.exp(-2 * 0.25**2)]
    torch.testing.assert_close(weight, torch.tensor(expected))


def test_softmatch_aligns_towards_the_classes_seen_less():
    policy = SoftMatchPolicy(2, momentum=1.0)
    policy.mean_posterior.copy_(torch.tensor([0.8, 0.2]))
    policy.mean.fill_(0.9)
    # Aligned, the first falls back to 0.5 and the second rises to 0.94.
    often, seldom = policy(torch.tensor([[0.8, 0.2], [0.2, 0.8]]), torch.arange(2))
    assert often < 1
    assert seldom == 1


@pytest.mark.parametrize("momentum", [0.0, 0.3])
def test_softmatch_without_spread_or_with_a_class_never_seen(momentum):
    """Variance and mean posterior may both reach exactly 0."""
    policy = SoftMatchPolicy(3, momentum=momentum)
    posterior = torch.tensor([[0.0, 0.6, 0.4], [0.0, 0.6, 0.4]])
    for _ in range(200):
        weight = policy(posterior, torch.arange(2))
    assert weight.isfinite().all()
    assert all(value.isfinite().all() for value in policy.state_dict().values())
    assert policy(posterior[:1], torch.arange(1)).isfinite().all()


# --- Every policy ---


@each_policy
def test_exclusion_is_the_same_as_absence(name):
    one, other = make(name), make(name)
    for _ in range(15):
        posterior, indices, exclude = posteriors(14, 4), torch.randint(POOL, (14,)), torch.rand(14) < 0.5
        exclude[0] = False
        weight = one(posterior, indices, exclude)
        torch.testing.assert_close(weight[~exclude], other(posterior[~exclude], indices[~exclude]))
        assert (weight[exclude] == 0).all()
    torch.testing.assert_close(one.state_dict(), other.state_dict())


@each_policy
@pytest.mark.parametrize("bad", ["excluded", "nan"])
def test_a_batch_with_no_sample_that_counts_leaves_no_trace(name, bad):
    policy = make(name)
    for _ in range(3):
        policy(posteriors(8, 4), torch.arange(8))
    before = copy.deepcopy(policy.state_dict())
    posterior = posteriors(8, 4) if bad == "excluded" else torch.full((8, 4), torch.nan)
    weight = policy(posterior, torch.arange(8), torch.full((8,), bad == "excluded"))
    assert weight.tolist() == [0.0] * 8
    for key, value in policy.state_dict().items():
        assert torch.equal(value, before[key]), key


@each_policy
def test_no_gradient_reaches_the_posterior(name):
    logits = torch.randn(6, 4, requires_grad=True)
    policy = make(name)
    weight = policy(logits.softmax(-1), torch.arange(6))
    assert not weight.requires_grad
    assert not any(value.requires_grad for value in policy.state_dict(keep_vars=True).values())
    assert not list(policy.parameters())


@each_policy
def test_weights_lie_within_zero_and_one(name):
    policy = make(name)
    for _ in range(20):
        weight = policy(posteriors(16, 4, sharpness=20.0), torch.randint(POOL, (16,)))
        assert ((weight >= 0) & (weight <= 1)).all()


@each_policy
def test_no_value_is_read_back(name):
    """On the meta device a read-back raises."""
    policy = make(name).to("meta")
    posterior = torch.empty(6, 4, device="meta")
    indices = torch.empty(6, dtype=torch.int64, device="meta")
    exclude = torch.empty(6, dtype=torch.bool, device="meta")
    for arguments in [(posterior, indices), (posterior, indices, exclude)]:
        weight = policy(*arguments)
        assert weight.shape == (6,)
        assert weight.is_meta
    if isinstance(policy, FreeMatchPolicy):
        strong = torch.empty(6, 4, device="meta", requires_grad=True)
        policy.fairness_loss(strong, weight).backward()
        assert strong.grad.is_meta


def reloaded(policy, name):
    file = io.BytesIO()
    torch.save(policy.state_dict(), file)
    file.seek(0)
    other = make(name)
    other.load_state_dict(torch.load(file))
    return other


@each_policy
@pytest.mark.parametrize(
    "duplicate",
    [lambda policy, _: copy.deepcopy(policy), lambda policy, _: pickle.loads(pickle.dumps(policy)), reloaded],
    ids=["deepcopy", "pickle", "state_dict"],
)
def test_a_copy_goes_on_as_the_original_does(name, duplicate):
    policy = make(name)
    for _ in range(5):
        policy(posteriors(12, 4), torch.randint(POOL, (12,)))
    other = duplicate(policy, name)
    untouched = duplicate(policy, name).state_dict()
    for _ in range(5):
        posterior, indices, exclude = posteriors(12, 4), torch.randint(POOL, (12,)), torch.rand(12) < 0.2
        assert torch.equal(policy(posterior, indices, exclude), other(posterior, indices, exclude))
    torch.testing.assert_close(policy.state_dict(), other.state_dict(), rtol=0, atol=0)
    if untouched:
        assert any(not torch.equal(value, untouched[key]) for key, value in policy.state_dict().items())


@each_policy
def test_autocast_costs_no_precision(name):
    one, other = make(name), make(name)
    for _ in range(5):
        posterior, indices = posteriors(300, 4), torch.randint(POOL, (300,))
        expected = one(posterior, indices)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            weight = other(posterior, indices)
        assert torch.equal(weight, expected)
        assert weight.dtype == torch.float32
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
    if isinstance(one, FreeMatchPolicy):
        strong = posteriors(300, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = other.fairness_loss(strong, weight)
        torch.testing.assert_close(loss, one.fairness_loss(strong, weight), rtol=0, atol=0)


# --- Bad input ---

BAD_CALLS = {
    "three dimensions": ((torch.rand(2, 3, 4), torch.arange(2)), r"posterior: got shape \(2, 3, 4\), expected \(n, "),
    "one dimension": ((torch.rand(4), torch.arange(4)), r"posterior: got shape \(4,\), expected \(n, "),
    "no samples": ((torch.rand(0, 4), torch.arange(0)), r"posterior: got an empty batch \(0, 4\), expected at least"),
    "integers": ((torch.ones(2, 4).long(), torch.arange(2)), r"posterior: got dtype torch.int64, expected"),
    "indices short": ((torch.rand(3, 4), torch.arange(2)), r"indices: got shape \(2,\).*expected \(3,\)"),
    "indices 2-D": ((torch.rand(3, 4), torch.zeros(3, 1).long()), r"indices: got shape \(3, 1\).*expected \(3,\)"),
    "exclude short": (
        (torch.rand(3, 4), torch.arange(3), torch.ones(2).bool()),
        r"exclude: got shape \(2,\) and dtype torch.bool, expected \(3,\) bool",
    ),
    "exclude weights": (
        (torch.rand(3, 4), torch.arange(3), torch.ones(3)),
        r"exclude: got shape \(3,\) and dtype torch.float32, expected \(3,\) bool",
    ),
}  # fmt: skip


@each_policy
@pytest.mark.parametrize("case", BAD_CALLS)
@pytest.mark.usefixtures("unchecked")
def test_bad_arguments_are_named(name, case):
    arguments, message = BAD_CALLS[case]
    with pytest.raises(ValueError, match=message):
        make(name)(*arguments)


@pytest.mark.parametrize("name", ["flexmatch", "freematch", "softmatch"])
@pytest.mark.usefixtures("unchecked")
def test_another_number_of_classes_is_named(name):
    with pytest.raises(ValueError, match=r"posterior: got shape \(2, 5\), expected \(n, 4\)"):
        make(name)(torch.rand(2, 5), torch.arange(2))


@pytest.mark.parametrize("indices", [[-1, 3], [0, POOL]])
def test_flexmatch_refuses_indices_outside_the_pool(indices):
    policy = make("flexmatch")
    with pytest.raises(ValueError, match=rf"indices: got {indices[0]} to {indices[1]}, expected 0 to {POOL - 1}"):
        policy(torch.rand(2, 4), torch.tensor(indices))
    assert (policy.selected == -1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_flexmatch_refuses_indices_that_are_no_integers(dtype):
    with pytest.raises(ValueError, match=rf"indices: got .*dtype {dtype}, expected .*integer"):
        make("flexmatch")(torch.rand(2, 4), torch.tensor([0, 1]).to(dtype))


@pytest.mark.usefixtures("unchecked")
def test_fairness_loss_names_a_bad_weight(unchecked):
    with pytest.raises(ValueError, match=r"weight: got shape \(2,\).*expected \(3,\)"):
        make("freematch").fairness_loss(torch.rand(3, 4), torch.ones(2))


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: FixMatchPolicy(cutoff=1.5), r"cutoff: got 1.5, expected a number from 0 to 1"),
        (lambda: FlexMatchPolicy(3, 5, cutoff=-0.1), r"cutoff: got -0.1, expected a number from 0 to 1"),
        (lambda: FlexMatchPolicy(0, 5), r"num_classes: got 0, expected an integer of at least 1"),
        (lambda: FlexMatchPolicy(3, 0), r"num_samples: got 0, expected an integer of at least 1"),
        (lambda: FreeMatchPolicy(-1), r"num_classes: got -1, expected an integer of at least 1"),
        (lambda: FreeMatchPolicy(3, momentum=1.1), r"momentum: got 1.1, expected a number from 0 to 1"),
        (lambda: SoftMatchPolicy(0), r"num_classes: got 0, expected an integer of at least 1"),
        (lambda: SoftMatchPolicy(3, momentum=math.nan), r"momentum: got nan, expected a number from 0 to 1"),
    ],
)
def test_bad_settings_are_named(construct, message):
    with pytest.raises(ValueError, match=message):
        construct()


@pytest.mark.parametrize("posterior", [torch.randn(4, 3) * 5, torch.log_softmax(torch.randn(4, 3), -1)])
def test_logits_and_logarithms_are_not_taken_for_probabilities(posterior):
    with pytest.raises(ValueError, match=r"posterior: got values from .*expected probabilities"):
        SoftMatchPolicy(3)(posterior, torch.arange(4))
