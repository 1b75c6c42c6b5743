"""Two Gaussians in a pool's scores: against a naive EM, on known mixtures, on clean pools, and with little to go by."""

import math
import statistics

import pytest
import torch

from momatch.outliers.contamination import TwoGaussians, inlier_component, two_gaussians

SHARES = (0.2, 0.4, 0.6)
#: Distances of the components in deviations, and widths of the upper one. All are far enough apart to be told apart.
MIXTURES = [(4.0, 1.0), (6.0, 1.0), (6.0, 2.0), (10.0, 1.0), (10.0, 2.0)]
#: Unless told otherwise, the outliers' mean is so many deviations above the inliers'.
APART = 5.0


def scores(n, share=0.0, *, apart=APART, width=1.0, labeled=40, seed=0, center=2.0, deviation=0.3):
    """Scores of a pool, of which the last are outliers, and of labelled inliers."""
    generator = torch.Generator().manual_seed(seed)
    outliers = round(share * n)
    inliers = torch.randn(n - outliers, generator=generator, dtype=torch.float64)
    others = apart + width * torch.randn(outliers, generator=generator, dtype=torch.float64)
    known = torch.randn(labeled, generator=generator, dtype=torch.float64)
    return center + deviation * torch.cat([inliers, others]), center + deviation * known


def found(*arguments, **options):
    """The fit to such scores, and the labelled ones."""
    pool, known = scores(*arguments, **options)
    fit = two_gaussians(pool, known)
    assert fit is not None
    return fit, known


def one_class(known):
    return torch.zeros(len(known), dtype=torch.int64)


def assert_same(one, two, tolerance):
    for name in ("means", "variances", "upper_share", "log_likelihood", "gain"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=tolerance, abs=tolerance), name


# --- Against a plain loop ---


def quantile(values, level):
    ordered, rank = sorted(values), level * (len(values) - 1)
    low = ordered[math.floor(rank)]
    return low + (rank - math.floor(rank)) * (ordered[math.ceil(rank)] - low)


def normal(x, mean, variance):
    return math.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)


def within(value, low, high):
    return min(max(value, low), high)


def mean_and_variance(values, weights):
    mass = sum(weights) + 1e-7
    mean = sum(w * x for w, x in zip(weights, values, strict=True)) / mass
    return mean, sum(w * (x - mean) ** 2 for w, x in zip(weights, values, strict=True)) / mass


def naive_em(pool, known, begin):
    """EM from the part of the pool below and above a quantile; labelled samples weigh a quarter as much as all of it."""
    n, variance = len(pool), statistics.variance(pool)
    each = 0.25 * n / max(len(known), 1)
    divide = quantile(pool, begin)
    upper = [float(x > divide) for x in pool]
    before = -math.inf
    for _ in range(300):
        low_mean, low_variance = mean_and_variance(pool + known, [1 - u for u in upper] + [each] * len(known))
        high_mean, high_variance = mean_and_variance(pool, upper)
        low_variance = max(low_variance, 0.01 * variance)
        high_variance = min(max(high_variance, 0.01 * variance), 1.25**2 * low_variance)
        low_share, high_share = ((part + 1e-7) / (n + 2e-7) for part in (n - sum(upper), sum(upper)))
        joint = [
            (low_share * normal(x, low_mean, low_variance), high_share * normal(x, high_mean, high_variance))
            for x in pool
        ]
        upper = [high / (low + high) for low, high in joint]
        likelihood = sum(math.log(low + high) for low, high in joint) / n
        of_known = each * sum(math.log(normal(x, low_mean, low_variance)) for x in known) / n
        if likelihood + of_known - before < 1e-7:
            break
        before = likelihood + of_known
    if low_mean >= high_mean:
        return None
    one = sum(math.log(normal(x, statistics.mean(pool), variance)) for x in pool) / n
    means, variances = (low_mean, high_mean), (low_variance, high_variance)
    return TwoGaussians(means, variances, high_share, likelihood + of_known, likelihood - one - 3 / n)


def naive(pool, known):
    """The best of three beginnings, after the tails are clipped."""
    low, high = quantile(pool, 0.02), quantile(pool, 0.15)
    width = (high - low) / 1.15
    mean = high + 0.85 * width
    pool = [within(x, mean - 3 * width, mean + 6 * width) for x in pool]
    known = [within(x, min(pool), max(pool)) for x in known]
    fits = [naive_em(pool, known, begin) for begin in (0.5, 0.7, 0.85)]
    return max((fit for fit in fits if fit is not None), key=lambda fit: fit.log_likelihood)


def naive_lower(fit, score):
    if score <= fit.means[0]:
        return 1.0
    if math.isnan(score) or score == math.inf:
        return 0.0
    # As at the upper mean, beyond it.
    score = min(score, fit.means[1])
    low, high = (normal(score, mean, variance) for mean, variance in zip(fit.means, fit.variances, strict=True))
    return (1 - fit.upper_share) * low / ((1 - fit.upper_share) * low + fit.upper_share * high)


@pytest.mark.parametrize("share", [0.0, *SHARES])
@pytest.mark.parametrize(("n", "labeled"), [(8, 5), (60, 0), (60, 6), (200, 40)])
def test_the_fit_is_that_of_a_plain_loop(n, labeled, share):
    # With this seed no score is at a quantile where EM begins, so it does not matter to which side it belongs.
    pool, known = scores(n, share, apart=3.0, labeled=labeled, seed=8)
    assert_same(two_gaussians(pool, known), naive(pool.tolist(), known.tolist()), 1e-9)


def test_long_tails_are_clipped_as_in_a_plain_loop():
    pool, known = scores(200, 0.1, apart=8.0, width=3.0)
    pool[:3], known[:2] = -40.0, torch.tensor([-40.0, 40.0])
    expected = naive(pool.tolist(), known.tolist())
    assert_same(two_gaussians(pool, known), expected, 1e-9)
    # Otherwise the tails would have made the components.
    assert expected.means == pytest.approx((2.0, 3.8), abs=0.5)


def test_the_upper_component_is_not_much_wider_than_the_lower_one():
    fit, _ = found(300, 0.4, apart=4.0, width=4.0)
    assert fit.variances[1] == pytest.approx(1.25**2 * fit.variances[0])


def test_no_component_is_a_point():
    pool = torch.cat([torch.full((100,), 1.0), torch.full((50,), 5.0)])
    fit = two_gaussians(pool)
    assert fit.means == pytest.approx((1.0, 5.0))
    assert fit.variances == pytest.approx((0.01 * float(pool.double().var()),) * 2)
    assert fit.upper_share == pytest.approx(1 / 3)


@pytest.mark.parametrize("share", SHARES)
def test_p_lower_is_the_posterior_of_the_lower_component(share):
    fit, _ = found(300, share, width=1.5)
    grid = torch.linspace(0.0, 6.0, 301, dtype=torch.float64)
    expected = torch.tensor([naive_lower(fit, score) for score in grid.tolist()], dtype=torch.float64)
    lower = fit.lower(grid)
    torch.testing.assert_close(lower, expected, rtol=1e-9, atol=1e-9)
    assert (lower.diff() <= 0).all()
    assert (lower[grid <= fit.means[0]] == 1).all()
    assert lower[-1] < 0.05
    # Nothing is gained by being more extreme than that.
    assert (lower[grid >= fit.means[1]] == lower[-1]).all()


def test_p_lower_of_what_is_no_number():
    fit, _ = found(300, 0.3)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e300, -1e300], dtype=torch.float64)
    lower = fit.lower(odd)
    assert lower[:3].tolist() == [0.0, 0.0, 1.0]
    assert lower[3] < 0.01
    assert lower[4] == 1
    assert fit.lower(odd[:0]).shape == (0,)


# --- Invariances ---


@pytest.mark.parametrize("share", SHARES)
def test_order_does_not_matter(share):
    pool, known = scores(300, share)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert_same(two_gaussians(pool[order], known.flip(0)), two_gaussians(pool, known), 1e-9)


@pytest.mark.parametrize(("factor", "shift"), [(7.0, -100.0), (1e-3, 1.0), (1e4, 0.0)])
def test_units_do_not_matter(factor, shift):
    pool, known = scores(300, 0.3)
    fit, moved = two_gaussians(pool, known), two_gaussians(factor * pool + shift, factor * known + shift)
    assert moved.means == pytest.approx([factor * mean + shift for mean in fit.means], rel=1e-5)
    assert moved.variances == pytest.approx([factor**2 * variance for variance in fit.variances], rel=1e-5)
    assert moved.upper_share == pytest.approx(fit.upper_share, rel=1e-5)
    assert moved.gain == pytest.approx(fit.gain, rel=1e-5)
    torch.testing.assert_close(moved.lower(factor * pool + shift), fit.lower(pool), rtol=1e-5, atol=1e-5)


def test_precision_and_gradient_of_the_scores_do_not_matter():
    pool, known = scores(300, 0.3)
    single = pool.float().requires_grad_(), known.float().requires_grad_()
    fit = two_gaussians(*single)
    assert_same(fit, two_gaussians(pool, known), 1e-4)
    lower = fit.lower(single[0])
    assert lower.dtype == torch.float64
    assert not lower.requires_grad
    assert fit.evidence(single[1]) == pytest.approx(fit.evidence(known), abs=1e-4)
    assert fit.outlier_share(single[1]) == pytest.approx(fit.outlier_share(known), abs=1e-4)


def test_the_arguments_stay_as_they_are():
    pool, known = scores(100, 0.3, width=8.0)
    pool[0], known[0] = torch.nan, 99.0
    before = pool.clone(), known.clone()
    fit = two_gaussians(pool, known)
    fit.lower(pool)
    fit.evidence(known)
    for value, old in zip((pool, known), before, strict=True):
        torch.testing.assert_close(value, old, rtol=0, atol=0, equal_nan=True)


def test_what_is_no_number_changes_nothing_else():
    pool, known = scores(100, 0.3)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    fit = two_gaussians(pool, known)
    with_odd = torch.cat([known, odd])
    assert two_gaussians(torch.cat([odd, pool]), with_odd) == fit
    assert fit.evidence(with_odd) == fit.evidence(known)


# --- Large pools ---


def test_of_a_large_pool_a_part_is_enough(monkeypatch):
    pool, known = scores(12_000, 0.3)
    fit = two_gaussians(pool, known)
    monkeypatch.setattr("momatch.outliers.contamination._MOST_SAMPLES", len(pool))
    whole = two_gaussians(pool, known)
    assert fit != whole
    assert_same(fit, whole, 0.02)
    assert fit.outlier_share(known) == pytest.approx(0.3, abs=0.02)
    assert fit.evidence(known) == 1


def test_the_part_of_a_large_pool_does_not_hang_on_its_order():
    pool, known = scores(6000, 0.5)
    alternating = pool.view(2, -1).T.flatten()  # every other one is an outlier
    fit = two_gaussians(alternating, known)
    assert fit is not None
    assert fit.outlier_share(known) == pytest.approx(0.5, abs=0.03)


# --- Known mixtures ---


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("apart", "width"), MIXTURES)
def test_the_share_of_known_mixtures_is_found(share, apart, width):
    fits = [found(1000, share, apart=apart, width=width, seed=seed) for seed in range(5)]
    assert statistics.mean(fit.outlier_share(known) for fit, known in fits) == pytest.approx(share, abs=0.07)
    assert min(fit.evidence(known) for fit, known in fits) > 0.95


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("apart", [5.0, 8.0])
def test_outliers_and_inliers_are_told_apart(share, apart):
    pool, known = scores(1000, share, apart=apart)
    lower, outliers = two_gaussians(pool, known).lower(pool), round(share * 1000)
    assert lower[:-outliers].mean() > 0.97
    assert lower[-outliers:].mean() < 0.05


def test_without_labelled_samples_a_mixture_is_found_as_well():
    pool, _ = scores(1000, 0.4)
    fit = two_gaussians(pool)
    assert fit.upper_share == pytest.approx(0.4, abs=0.03)
    assert fit.gain > 0.3


def test_inliers_of_the_upper_component_are_no_outliers():
    """The share is of what the upper component has beyond what labelled samples have of it."""
    fit = TwoGaussians((0.0, 10.0), (1.0, 1.0), upper_share=0.5, log_likelihood=0.0, gain=1.0)
    for of_upper in (0.0, 0.1, 0.3, 0.5):
        upper = round(of_upper * 20)
        labeled = torch.tensor([10.0] * upper + [-1.0] * (20 - upper))
        assert fit.outlier_share(labeled) == pytest.approx(1 - 0.5 / (1 - of_upper), abs=1e-6)
    # More of them than of the pool, or all: then there are none.
    for upper in (15, 20):
        assert fit.outlier_share(torch.tensor([10.0] * upper + [-1.0] * (20 - upper))) == 0


# --- Evidence ---


@pytest.mark.parametrize(("n", "labeled"), [(200, 5), (1000, 20), (1000, 400)])
def test_a_clean_pool_is_no_evidence(n, labeled):
    for seed in range(10):
        pool, known = scores(n, labeled=labeled, seed=seed)
        fit = two_gaussians(pool, known)
        assert fit is None or fit.evidence(known) < 0.05, seed


@pytest.mark.parametrize("n", [50, 100])
def test_a_small_clean_pool_is_rarely_evidence(n):
    """A few dozen samples may happen to lie in two heaps."""
    evidence = []
    for seed in range(20):
        pool, known = scores(n, seed=seed)
        fit = two_gaussians(pool, known)
        evidence.append(0.0 if fit is None else fit.evidence(known))
    assert statistics.mean(evidence) < 0.1


def duplicates(seed=0):
    """Half of a clean pool is close to labelled samples, so that it looks more ordinary than any new sample."""
    pool, _ = scores(1000, 0.5, seed=seed)
    _, known = scores(0, labeled=40, seed=seed, center=2.0 + 0.3 * APART)
    return pool, known


def test_labelled_samples_in_the_upper_component_are_evidence_against_outliers():
    for seed in range(5):
        pool, known = duplicates(seed)
        # Even a fit that knows nothing of them.
        fit = two_gaussians(pool)
        assert fit.upper_share == pytest.approx(0.5, abs=0.03)
        assert fit.outlier_share(known) == 0
        assert fit.evidence(known) == 0
        fit = two_gaussians(pool, known)
        assert fit is None or fit.evidence(known) == 0


@pytest.mark.parametrize("labeled", [0, 1, 4])
def test_too_few_labels_are_no_evidence(labeled):
    fit, known = found(300, 0.4)
    assert fit.evidence(known[:5]) == 1
    assert fit.evidence(known[:labeled]) == 0
    # Scores that are no numbers are no labels either.
    for odd in (torch.nan, torch.inf, -torch.inf):
        assert fit.evidence(torch.cat([known[:labeled], torch.full((20,), odd, dtype=torch.float64)])) == 0


@pytest.mark.parametrize(
    ("changed", "evidence"),
    [
        ({}, 1.0),
        ({"gain": 0.02}, 0.0),
        ({"gain": 0.026}, 0.4),
        ({"gain": 0.035}, 1.0),
        ({"means": (0.0, 0.5)}, 0.0),
        ({"means": (0.0, 1.4), "variances": (1.0, 7.0)}, 0.5),
        ({"means": (0.0, 0.9)}, 1.0),
    ],
)
def test_evidence_grows_with_gain_and_distance(changed, evidence):
    facts = {"means": (0.0, 10.0), "variances": (1.0, 1.0), "upper_share": 0.3, "log_likelihood": 0.0, "gain": 1.0}
    labeled = torch.full((20,), -1.0)
    assert TwoGaussians(**facts | changed).evidence(labeled) == pytest.approx(evidence, abs=1e-6)


@pytest.mark.parametrize(
    ("upper", "gain", "apart", "sure"),
    [
        (0, 0.2, 3.0, 1.0),
        # Two of 40 labelled samples are in the upper component, four, six.
        (2, 0.2, 3.0, 1.0),
        (4, 0.2, 3.0, 1 / 3),
        (6, 0.2, 3.0, 0.0),
        # Few outliers gain little; then they must be far away.
        (0, 0.08, 3.0, 0.5),
        (0, 0.06, 3.0, 0.0),
        (0, 0.06, 3.5, 0.5),
        (0, 0.06, 4.0, 1.0),
        (0, 0.02, 4.0, 0.0),
    ],
)
def test_to_be_sure_labelled_samples_must_be_in_the_lower_component_and_outliers_many_or_far(upper, gain, apart, sure):
    fit = TwoGaussians((0.0, apart), (1e-4, 1.9999), upper_share=0.6, log_likelihood=0.0, gain=gain)
    labeled = torch.tensor([apart] * upper + [-1.0] * (40 - upper))
    assert fit.evidence(labeled) == (gain > 0.02)
    assert fit.strict_evidence(labeled, torch.zeros(40, dtype=torch.int64)) == pytest.approx(sure, abs=1e-3)


def test_to_be_sure_every_class_has_the_same_say():
    """All of a class with two labels are in the upper component: 5 % of the labelled samples, half of the classes."""
    fit = TwoGaussians((0.0, 10.0), (1.0, 1.0), upper_share=0.5, log_likelihood=0.0, gain=1.0)
    labeled, classes = torch.tensor([-1.0] * 38 + [10.0] * 2), torch.tensor([0] * 38 + [1] * 2)
    assert fit.strict_evidence(labeled, torch.zeros_like(classes)) == 1
    assert fit.strict_evidence(labeled, classes) == 0
    damaged = torch.cat([labeled, torch.tensor([torch.nan])]), torch.cat([classes, torch.tensor([2])])
    assert fit.strict_evidence(damaged[0], damaged[1]) == 0


def test_evidence_falls_with_the_share_of_inliers_in_the_upper_component():
    fit = TwoGaussians((0.0, 10.0), (1.0, 1.0), upper_share=0.6, log_likelihood=0.0, gain=1.0)
    evidence = []
    for upper in range(21):
        labeled = torch.tensor([10.0] * upper + [-1.0] * (20 - upper))
        # By hand: of the pool's share in the lower component, and so of its inliers, follows what of the upper is inliers.
        inliers = 0.4 / max(1 - upper / 20, 1e-9)
        of_upper = min((inliers - 0.4) / 0.6, 1.0)
        evidence.append(fit.evidence(labeled))
        assert evidence[-1] == pytest.approx(min(max((0.85 - of_upper) / 0.2, 0.0), 1.0), abs=1e-6)
    assert evidence[0] == 1
    assert evidence[-1] == 0
    assert any(0 < value < 1 for value in evidence)


# --- Little to go by ---


@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_tiny_pool_has_no_components(size):
    pool, known = scores(100, 0.5)
    assert two_gaussians(pool[:size], known) is None
    odd = torch.full((20,), torch.nan, dtype=torch.float64)
    assert two_gaussians(torch.cat([pool[:size], odd, odd / 0]), known) is None


@pytest.mark.parametrize("value", [0.0, 2.0, -1e6])
def test_equal_scores_have_no_components(value):
    _, known = scores(100)
    assert two_gaussians(torch.full((50,), value), known) is None
    assert two_gaussians(torch.full((50,), value)) is None


def test_labelled_samples_above_all_of_the_pool_leave_no_components():
    pool, _ = scores(100)
    assert two_gaussians(pool, torch.full((30,), 99.0, dtype=torch.float64)) is None


def made_of_kinds(*kinds, inliers=800, labeled=40, seed=0):
    """Scores of a pool with inliers at 0 and kinds of outliers, each (number, mean); and of labelled samples."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, generator=generator, dtype=torch.float64) + mean for n, mean in ((inliers, 0.0), *kinds)]
    return torch.cat(parts), torch.randn(labeled, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_outliers_of_two_kinds_are_told_from_inliers(seed):
    """The farther ones are found first; the nearer ones only when those are gone."""
    pool, known = made_of_kinds((150, 4.0), (150, 12.0), seed=seed)
    inliers = inlier_component(pool, known, one_class(known)).lower(pool)
    assert (inliers[:800] > 0.5).double().mean() > 0.93
    assert (inliers[800:950] < 0.5).double().mean() > 0.75
    assert (inliers[950:] < 0.5).all()


def test_one_kind_after_the_other_as_by_hand():
    pool, known = made_of_kinds((150, 4.0), (150, 12.0))
    rest, expected = pool, None
    for _ in range(3):
        fit = two_gaussians(rest, known)
        if fit.strict_evidence(known, one_class(known)) < 0.5:
            break
        expected, rest = fit, rest[fit.lower(rest) >= 0.5]
    assert inlier_component(pool, known, one_class(known)) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_pool_of_inliers_has_no_outliers_to_tell(seed):
    assert inlier_component(*made_of_kinds(seed=seed), one_class(torch.empty(40))) is None


def test_damaged_scores_are_not_looked_at():
    pool, known = made_of_kinds((150, 4.0))
    damaged = torch.cat([pool, torch.tensor([math.inf, math.nan], dtype=torch.float64)])
    assert inlier_component(damaged, known, one_class(known)) == inlier_component(pool, known, one_class(known))
    assert inlier_component(torch.full((20,), math.nan, dtype=torch.float64), known, one_class(known)) is None
