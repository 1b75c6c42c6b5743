"""Features brought to common units."""

import numpy as np
import pytest

from momatch.estimator.samples import weighted_set
from momatch.estimator.scaling import Scaling


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def scaling_of(x, scale, weight=None):
    return Scaling.of(weighted_set(x, np.full(len(x), -1), np.ones(len(x)) if weight is None else weight), scale)


def test_each_feature_by_its_own_deviation_against_repeated_samples(rng):
    x = rng.normal(size=(40, 3)) * np.array([1e-3, 1.0, 1e5]) + np.array([0.0, 5.0, -1e7])
    weight = rng.integers(1, 5, 40)
    scaling = scaling_of(x, "feature", weight.astype(float))
    repeated = x.repeat(weight, 0)
    np.testing.assert_allclose(scaling(x), (x - repeated.mean(0)) / repeated.std(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scaling.deviation, 1.0)


def test_all_features_by_one_number(rng):
    x = rng.normal(size=(40, 4)) * np.array([0.1, 1.0, 3.0, 0.0]) + 7.0
    scaling = scaling_of(x, "global")
    one = np.sqrt(x.var(0).mean())
    np.testing.assert_allclose(scaling(x), (x - x.mean(0)) / one, atol=1e-12)
    np.testing.assert_allclose(scaling.deviation, x.std(0) / one, atol=1e-12)


@pytest.mark.parametrize(
    ("deviations", "scale"),
    [
        ([1.0, 1.0, 1.0], "global"),
        ([2.9, 1.0, 0.001], "global"),
        ([6.6, 1.0, 1.0], "feature"),  # else the first would hide the others
        ([1e4, 10.0, 1.0], "feature"),
        ([0.0, 0.0, 0.0], "feature"),
    ],
)
def test_units_decide_where_nobody_does(rng, deviations, scale):
    x = rng.normal(size=(500, 3)) * np.array(deviations)
    assert scaling_of(x, "auto").scale == scale


def test_constant_features_say_nothing(rng):
    x = np.column_stack([np.full(20, 0.1), rng.normal(size=20)])
    for scale in ("global", "feature"):
        scaling = scaling_of(x, scale)
        assert (scaling(x + 5.0)[:, 0] == 0).all()
        assert scaling.deviation[0] == 0


@pytest.mark.parametrize("scale", ["global", "feature"])
def test_extreme_values(rng, scale):
    x = rng.normal(size=(20, 2)) * np.array([1e300, 1e-300])
    scaling = scaling_of(x, scale)
    assert np.isfinite(scaling(x)).all()
    assert np.abs(scaling(x)).max() > 1
    assert np.isfinite(scaling(np.full((1, 2), -1.7e308))).all()


@pytest.mark.parametrize("scale", ["auto", "global", "feature"])
@pytest.mark.parametrize("absurd", [1e4, -1e9, 1e300])
def test_one_absurd_row_does_not_decide_the_scale(rng, scale, absurd):
    x = rng.normal(size=(400, 3))
    plain = scaling_of(x, scale)(x)
    spoilt = np.concatenate([x, np.full((1, 3), absurd)])
    scaled = scaling_of(spoilt, scale)(spoilt)
    np.testing.assert_allclose(scaled[:-1].std(0) / plain.std(0), 1.0, atol=0.7)
    assert (np.abs(scaled[-1]) > 10).all()  # and is far away still
    assert (np.abs(scaled[-1]) < 50).all()


def test_rare_and_repeated_values_are_believed(rng):
    x = np.zeros((200, 4))
    x[0, 0] = 1e6  # the one value that is not 0
    x[:20, 1] = 10.0 ** np.arange(20)  # a twentieth of those that are not 0 may be anything
    x[:, 2] = np.where(rng.random(200) < 0.5, 0.1 + 0.2, 0.3)  # rounding
    x[0, 2] = 5.0
    x[:, 3] = rng.normal(size=200)
    scaling = scaling_of(x, "feature")
    assert ((scaling.low < x.min(0)) & (scaling.high > x.max(0))).all()
    weighted = scaling_of(x[:30], "feature", np.arange(1.0, 31.0))
    repeated = scaling_of(x[:30].repeat(np.arange(1, 31), 0), "feature")
    np.testing.assert_array_equal(weighted.high, repeated.high)


def test_subnormal_values():
    x = np.array([[5e-324], [1e-323], [0.0], [1e-322]])
    assert np.isfinite(scaling_of(x, "feature")(x)).all()
