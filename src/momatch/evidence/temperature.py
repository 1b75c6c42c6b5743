"""The temperature of a posterior (docs/method.md, "Evidence"): p(y | x) ∝ q(y | x)^(1 / T)."""

import numpy as np
from jaxtyping import Float64
from scipy.optimize import brentq
from scipy.special import softmax

_LOWEST, _HIGHEST = 0.25, 64.0


def matched_temperature(log_posterior: Float64[np.ndarray, "n K"], confidence: float) -> float:
    """The temperature at which a posterior is as confident as it should be.

    Args:
        log_posterior: of n samples, up to a constant for each.
        confidence: what the mean of the largest probabilities should be.

    Returns:
        From 1/4 to 64; 1 without samples.
    """
    if len(log_posterior) == 0:
        return 1.0

    def excess(log_temperature: float) -> float:
        return float(softmax(log_posterior / np.exp(log_temperature), axis=1).max(1).mean()) - confidence

    # The confidence falls as the temperature rises.
    lowest, highest = float(np.log(_LOWEST)), float(np.log(_HIGHEST))
    if excess(lowest) <= 0.0:
        return _LOWEST
    if excess(highest) >= 0.0:
        return _HIGHEST
    return float(np.exp(brentq(excess, lowest, highest, xtol=1e-4)))
