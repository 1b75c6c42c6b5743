"""Means, deviations and intervals: by hand, against scipy, and in how often the intervals are right."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from momatch.sweep.statistics import Summary, estimate, paired_difference, paired_ratio, summary, t_quantile


def test_summary_by_hand():
    found = summary([2.0, 4.0, 9.0])
    assert (found.mean, found.std, found.n) == (5.0, pytest.approx(math.sqrt(13)), 3)
    assert summary([2.0]) == Summary(2.0, None, 1)
    assert summary([]) is None


def test_interval_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1; t(0.975, 2) = 4.302653.
    found = paired_difference({0: 2.0, 1: 4.0, 2: 6.0, 7: 9.0}, {0: 1.0, 1: 2.0, 2: 3.0, 8: 9.0})
    half = 4.302653 / math.sqrt(3)
    assert (found.mean, found.n) == (2.0, 3)
    assert (found.low, found.high) == (pytest.approx(2 - half, abs=1e-6), pytest.approx(2 + half, abs=1e-6))
    assert not found.is_above(0.0)
    assert found.is_below(4.5)
    assert found.is_above(-0.5)


def test_pairs_go_by_seed_not_by_order():
    found = paired_difference({2: 30.0, 0: 10.0, 1: 20.5}, {0: 9.0, 1: 19.0, 2: 29.5})
    assert found.mean == pytest.approx((1 + 1.5 + 0.5) / 3)


def test_one_pair_has_no_interval():
    found = paired_difference({0: 3.0}, {0: 1.0, 1: 5.0})
    assert (found.mean, found.low, found.high, found.n) == (2.0, None, None, 1)
    assert not found.is_above(-100.0)
    assert not found.is_below(100.0)


def test_no_common_seed():
    assert paired_difference({0: 3.0}, {1: 1.0}) is None
    assert paired_ratio({0: 3.0}, {1: 1.0}) is None


def test_differences_that_are_alike_claim_no_certainty():
    # 97.2 - 97.0 and 96.8 - 96.6 differ in the last bit of a float.
    found = paired_difference({0: 97.2, 1: 96.8, 2: 97.6}, {0: 97.0, 1: 96.6, 2: 97.4})
    assert found.low is None
    assert not found.is_above(0.0)
    assert estimate([0.0, 0.0, 0.0]).low is None
    # Nought but for rounding, which has a sign.
    assert paired_difference({0: 97.2 + 3e-14, 1: 97.2 + 3e-14, 2: 97.2}, {0: 97.2, 1: 97.2, 2: 97.2}).low is None


def test_ratio_is_that_of_logarithms():
    found = paired_ratio({0: 2.0, 1: 8.0}, {0: 1.0, 1: 1.0})
    low, high = stats.t.interval(0.95, 1, loc=math.log(4), scale=stats.sem([math.log(2), math.log(8)]))
    assert found.mean == pytest.approx(4.0)
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert paired_ratio({0: 0.0, 1: 1.0}, {0: 1.0, 1: 1.0}) is None


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=8))
def test_interval_against_scipy(pairs):
    first, second = ([pair[place] for pair in pairs] for place in (0, 1))
    found = paired_difference(dict(enumerate(first)), dict(enumerate(second)))
    if found.low is None:
        return
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=1e-6 * max(1, width))
    assert found.high == pytest.approx(expected.high, abs=1e-6 * max(1, width))


def test_intervals_hold_the_truth_as_often_as_they_say():
    generator = random.Random(0)
    hits = 0
    for _ in range(2000):
        found = estimate([generator.gauss(1.0, 2.0) for _ in range(3)])
        hits += found.low <= 1.0 <= found.high
    assert 0.935 < hits / 2000 < 0.965


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_quantile_against_scipy(n):
    assert t_quantile(n) == pytest.approx(stats.t.ppf(0.975, n - 1))


def test_quantile_of_one_value():
    with pytest.raises(ValueError, match="at least 2"):
        t_quantile(1)
