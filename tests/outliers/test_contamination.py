"""P(inlier) of a pool: against a naive EM, on known mixtures, and where there is little to go by."""

import math
import statistics

import pytest
import torch

from momatch.outliers.contamination import inlier_probability

SHARES = (0.0, 0.2, 0.4, 0.6)


def scores(n, share=0.0, *, apart=5.0, width=1.0, labeled=40, seed=0, center=2.0, deviation=0.3):
    """Scores of a pool, of which the last are outliers, and of labelled inliers, which are a little less spread."""
    generator = torch.Generator().manual_seed(seed)
    outliers = round(share * n)
    inliers = torch.randn(n - outliers, generator=generator, dtype=torch.float64)
    others = apart + width * torch.randn(outliers, generator=generator, dtype=torch.float64)
    known = torch.randn(labeled, generator=generator, dtype=torch.float64) / 1.1
    return center + deviation * torch.cat([inliers, others]), center + deviation * known


def normal(x, mean, width):
    return math.exp(-0.5 * ((x - mean) / width) ** 2) / (width * math.sqrt(2 * math.pi))


def quantile(values, level):
    ordered, rank = sorted(values), level * (len(values) - 1)
    low = ordered[math.floor(rank)]
    return low + (rank - math.floor(rank)) * (ordered[math.ceil(rank)] - low)


def naive(pool, labeled):
    """EM with one fixed component, in a plain loop; then each sample is as probable as the least of those below it."""
    center, unit = statistics.mean(labeled), statistics.stdev(labeled)
    if len(pool) >= 100:
        low, high = quantile(pool, 0.02), quantile(pool, 0.15)
        unit = min(max((high - low) / 1.15, 0.5 * unit), 2 * unit)
        center = max(center, high + 0.85 * unit)
    x = [(score - center) / unit for score in pool]
    mean = max(quantile(x, 0.9), 2.5)
    width = max(1.4826 * sorted(abs(value - mean) for value in x)[(len(x) - 1) // 2], 1.0)
    share = 0.2
    for _ in range(200):
        inlier = []
        for value in x:
            first, second = (1 - share) * normal(value, 0, 1), share * normal(value, mean, width)
            p = 1.0 if value <= 0 else first / (first + second)
            inlier.append(min(p, 0.5) if value >= mean else p)
        before = share
        mass = sum(1 - p for p in inlier)
        share = min(max(mass / len(x), 1e-6), 1 - 1e-6)
        mean = max(sum((1 - p) * value for p, value in zip(inlier, x, strict=True)) / (mass + 1e-6), 2.5)
        squares = sum((1 - p) * (value - mean) ** 2 for p, value in zip(inlier, x, strict=True))
        width = max(math.sqrt(squares / (mass + 1e-6)), 1.0)
        if abs(share - before) < 1e-6:
            break
    return [min(p for p, other in zip(inlier, x, strict=True) if other <= value) for value in x]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("n", "labeled"), [(5, 5), (50, 6), (201, 40)])
def test_it_is_that_of_a_plain_loop(n, labeled, share):
    pool, known = scores(n, share, labeled=labeled, seed=n)
    expected = torch.tensor(naive(pool.tolist(), known.tolist()), dtype=torch.float64)
    torch.testing.assert_close(inlier_probability(pool, known), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("apart", "width"), [(4.0, 1.0), (6.0, 2.0), (10.0, 1.0), (10.0, 3.0)])
def test_the_share_of_known_mixtures_is_found(share, apart, width):
    for seed in range(5):
        pool, known = scores(2000, share, apart=apart, width=width, labeled=400, seed=seed)
        probability = inlier_probability(pool, known)
        assert 1 - float(probability.mean()) == pytest.approx(share, abs=0.07)
        if share:
            outliers = round(share * len(pool))
            assert probability[:-outliers].mean() > 0.9
            assert probability[-outliers:].mean() < 0.25


def of_clean_pools(labeled):
    return [float(inlier_probability(*scores(1000, labeled=labeled, seed=seed)).mean()) for seed in range(20)]


@pytest.mark.parametrize("labeled", [40, 400])
def test_a_clean_pool_is_left_alone(labeled):
    assert min(of_clean_pools(labeled)) >= 0.8


@pytest.mark.parametrize("labeled", [5, 10, 20])
def test_with_few_labels_a_clean_pool_is_left_alone_on_average(labeled):
    # Few scores may happen to lie close together; then ordinary samples look far away.
    assert statistics.mean(of_clean_pools(labeled)) >= 0.9


@pytest.mark.parametrize("share", SHARES)
def test_it_falls_with_the_score(share):
    for seed in range(5):
        pool, known = scores(300, share, width=3.0, seed=seed)
        probability = inlier_probability(pool, known)
        assert (probability[pool.argsort()].diff() <= 0).all()
        assert (probability >= 0).all()
        assert (probability <= 1).all()
        # Nothing is more ordinary than an ordinary sample.
        assert (probability[pool <= known.mean()] == 1).all()


def test_it_knows_neither_order_nor_units():
    pool, known = scores(300, 0.3)
    probability = inlier_probability(pool, known)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(inlier_probability(pool[order], known.flip(0)), probability[order])
    torch.testing.assert_close(inlier_probability(7 * pool - 100, 7 * known - 100), probability)


def test_precision_and_gradient_of_the_scores_do_not_matter():
    pool, known = scores(300, 0.3)
    probability = inlier_probability(pool, known)
    single = inlier_probability(pool.float().requires_grad_(), known.float())
    assert single.dtype == torch.float64
    assert not single.requires_grad
    torch.testing.assert_close(single, probability, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("labeled", [0, 1, 4])
def test_too_few_labels_tell_nothing(labeled):
    pool, known = scores(100, 0.5)
    pool[3], pool[4], pool[5] = torch.nan, torch.inf, -torch.inf
    expected = torch.ones(100, dtype=torch.float64)
    expected[3:5] = 0.0
    assert torch.equal(inlier_probability(pool, known[:labeled]), expected)
    # Scores that are no numbers are no labels either.
    padded = torch.cat([known[:labeled], torch.tensor([torch.nan, torch.inf, -torch.inf] * 3, dtype=torch.float64)])
    assert torch.equal(inlier_probability(pool, padded), expected)


def test_equal_scores():
    pool, known = scores(100, 0.5)
    equal = torch.full((20,), 2.0, dtype=torch.float64)
    # Labelled samples that are all alike give no unit.
    assert (inlier_probability(pool, equal) == 1).all()
    at_center = inlier_probability(torch.full((50,), float(known.mean()), dtype=torch.float64), known)
    assert (at_center == 1).all()
    far = inlier_probability(torch.full((50,), 9.0, dtype=torch.float64), known)
    assert (far == far[0]).all()
    assert far[0] < 0.01


def test_what_is_no_number_is_an_outlier_and_changes_nothing_else():
    pool, known = scores(100, 0.3)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    probability = inlier_probability(torch.cat([odd, pool]), torch.cat([odd, known]))
    assert probability[:3].tolist() == [0.0, 0.0, 1.0]
    assert torch.equal(probability[3:], inlier_probability(pool, known))
    assert (inlier_probability(odd[:2], known) == 0).all()


@pytest.mark.parametrize("apart", [5.0, 8.0, 50.0, 1e6])
def test_all_of_a_small_pool_may_be_outliers(apart):
    # A larger one is taken to hold some inliers, whose scores are its lowest.
    pool, known = scores(90, 1.0, apart=apart)
    assert float(inlier_probability(pool, known).mean()) < 0.05


@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_tiny_pool_tells_nothing(size):
    pool, known = scores(100, 1.0)
    assert torch.equal(inlier_probability(pool[:size], known), torch.ones(size, dtype=torch.float64))


def test_one_outlier_among_many():
    pool, known = scores(500, 1 / 500, apart=12.0)
    probability = inlier_probability(pool, known)
    assert probability[-1] < 0.5
    assert probability[:-1].mean() > 0.99


def test_the_arguments_stay_as_they_are():
    pool, known = scores(100, 0.3)
    before = pool.clone(), known.clone()
    inlier_probability(pool, known)
    assert torch.equal(pool, before[0])
    assert torch.equal(known, before[1])
