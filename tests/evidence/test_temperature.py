import numpy as np
import pytest
from scipy.special import softmax

from momatch.evidence import matched_temperature


@pytest.mark.parametrize("confidence", [0.4, 0.6, 0.9])
@pytest.mark.parametrize("scale", [0.5, 5.0, 50.0])
def test_the_mean_confidence_is_the_wanted_one(confidence, scale):
    logits = scale * np.random.default_rng(0).normal(size=(300, 4))
    temperature = matched_temperature(logits, confidence)
    if 0.25 < temperature < 64.0:
        assert softmax(logits / temperature, axis=1).max(1).mean() == pytest.approx(confidence, abs=1e-3)
    else:
        assert temperature in (0.25, 64.0)


def test_a_constant_of_each_sample_does_not_matter():
    rng = np.random.default_rng(0)
    logits, shift = rng.normal(size=(50, 3)), 100.0 * rng.normal(size=(50, 1))
    assert matched_temperature(logits + shift, 0.5) == pytest.approx(matched_temperature(logits, 0.5), rel=1e-3)


@pytest.mark.parametrize(
    ("logits", "confidence", "expected"),
    [
        (np.empty((0, 3)), 0.5, 1.0),
        (np.zeros((4, 1)), 1.0, 0.25),  # a single class
        (np.zeros((4, 2)), 0.9, 0.25),  # no preference
        (np.array([[1e4, 0.0]]), 0.5, 64.0),
        (np.array([[0.0, -np.inf]]), 0.7, 64.0),
    ],
)
def test_extremes(logits, confidence, expected):
    assert matched_temperature(logits, confidence) == pytest.approx(expected)
