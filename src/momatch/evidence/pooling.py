"""Log-linear pooling of several views' class probabilities (docs/method.md, "Evidence").

    p(y | x) ∝ ∏_v q_v(y | x)^w_v,   q_v = (1 - ε) p_v + ε / K

The weights maximise the likelihood of labels that the views have not seen, with a penalty for leaving their beginning.
Their sum is free: it is the inverse temperature, so the pooled posterior is calibrated to those labels.
"""

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import minimize
from scipy.special import softmax

#: ε: no view may rule out a class, and forests of few labels do.
_SMOOTHING = 0.02
#: Strength of the penalty, in labels.
_PENALTY = 1.0
#: Smallest weight of a view, as a share of its beginning: where all mislead, they still say more than nothing. Largest weight.
_SMALLEST, _LARGEST = 0.05, 4.0


def log_smoothed(probability: Float64[np.ndarray, "*n K"]) -> Float64[np.ndarray, "*n K"]:
    """log q_v."""
    logarithm: np.ndarray = np.log((1.0 - _SMOOTHING) * probability + _SMOOTHING / probability.shape[-1])
    return logarithm


def pooled(views: Float64[np.ndarray, "V n K"], weights: Float64[np.ndarray, " V"]) -> Float64[np.ndarray, "n K"]:
    """The pooled posterior of the views' probabilities."""
    return log_linear(log_smoothed(views), weights)


def pooling_weights(
    views: Float64[np.ndarray, "V m K"],
    labels: Int64[np.ndarray, " m"],
    sample_weight: Float64[np.ndarray, " m"],
    beginning: Float64[np.ndarray, " V"],
) -> Float64[np.ndarray, " V"]:
    """The weights of the views.

    Args:
        views: probabilities of samples by views that have not seen them.
        labels: their true classes.
        sample_weight: of each; one label counts 1.
        beginning: the weights without any label.
    """
    logarithm, rows = log_smoothed(views), np.arange(len(labels))
    of_label = logarithm[:, rows, labels]  # (V, m)

    def objective(weights: Float64[np.ndarray, " V"]) -> tuple[float, Float64[np.ndarray, " V"]]:
        posterior = log_linear(logarithm, weights)
        likelihood = np.log(np.maximum(posterior[rows, labels], np.finfo(float).tiny)) @ sample_weight
        slope = (of_label - (posterior * logarithm).sum(2)) @ sample_weight
        away = weights - beginning
        penalty = _PENALTY * len(views)
        return penalty * float(away @ away) - float(likelihood), 2.0 * penalty * away - slope

    bounds = [(_SMALLEST * begin, _LARGEST) for begin in beginning]
    found = minimize(objective, beginning, jac=True, bounds=bounds, method="L-BFGS-B")
    weights: np.ndarray = found.x
    return weights


def log_likelihood(
    views: Float64[np.ndarray, "V m K"],
    weights: Float64[np.ndarray, " V"],
    labels: Int64[np.ndarray, " m"],
    sample_weight: Float64[np.ndarray, " m"],
) -> float:
    """Log-likelihood of labels under the pooled posterior."""
    posterior = pooled(views, weights)[np.arange(len(labels)), labels]
    return float(np.log(np.maximum(posterior, np.finfo(float).tiny)) @ sample_weight)


def log_linear(
    logarithm: Float64[np.ndarray, "V n K"], weights: Float64[np.ndarray, " V"]
) -> Float64[np.ndarray, "n K"]:
    """The posterior proportional to exp of the weighted sum of logarithms.

    Unlike a matrix product, einsum rounds each row alike, whatever the others are.
    """
    posterior: np.ndarray = softmax(np.einsum("v,vnk->nk", weights, logarithm), axis=1)
    return posterior
