"""How frequent the classes are in the pool (docs/method.md, "Evidence").

Labels that were drawn as classes occur say so themselves. Labels that were drawn balanced say nothing about it; then
the pool does.
"""

import numpy as np
from jaxtyping import Float64, Int64
from scipy.stats import chi2

#: Added to each class's labels: a class is never impossible.
_PSEUDO_COUNT = 0.5
#: Share of the classes that have the same number of labels in a balanced draw.
_MOST = 0.75
#: In a nearly balanced draw the smallest number of labels is at least this share of the largest, and the pool's frequencies
#: would give such labels with at most this probability.
_NEARLY, _BY_CHANCE = 0.75, 1e-2
_ITERATIONS = 200
_TOLERANCE = 1e-6


def label_prior(counts: Float64[np.ndarray, " K"]) -> Float64[np.ndarray, " K"]:
    """Frequencies of the classes among the labels."""
    share: np.ndarray = (counts + _PSEUDO_COUNT) / (counts + _PSEUDO_COUNT).sum()
    return share


def is_balanced_draw(counts: Int64[np.ndarray, " K"], pool: Float64[np.ndarray, " K"]) -> bool:
    """Whether the same number of labels, or nearly so, was drawn of each class, as far as there were so many.

    Then most classes have exactly the largest number, which chance hardly ever does; or all have nearly as many, and the pool
    is of other frequencies than a draw at random could come from (likelihood-ratio test).

    Args:
        counts: labels of each class.
        pool: frequencies of the classes in the pool, `pool_prior`.
    """
    if not is_nearly_balanced(counts):
        return False
    if _is_of_one_number(counts):
        return True
    ratio = 2.0 * float(counts @ np.log(counts / counts.sum() / np.maximum(pool, np.finfo(float).tiny)))
    return bool(chi2.sf(ratio, len(counts) - 1) < _BY_CHANCE)


def is_nearly_balanced(counts: Int64[np.ndarray, " K"]) -> bool:
    """Whether the numbers of labels alone allow a balanced draw."""
    largest = int(counts.max())
    is_near = _is_of_one_number(counts) or int(counts.min()) >= _NEARLY * largest
    return largest > 1 and len(counts) > 1 and is_near


def _is_of_one_number(counts: Int64[np.ndarray, " K"]) -> bool:
    return int((counts == counts.max()).sum()) >= _MOST * len(counts)


def _uncertainty(posterior: Float64[np.ndarray, "n K"], share: Float64[np.ndarray, " n"]) -> float:
    """0 if every posterior is certain, 1 if each is the same for all classes."""
    K = posterior.shape[1]
    return float(np.clip((1.0 - share @ posterior.max(1)) * K / max(K - 1, 1), 0.0, 1.0))


def pool_prior(
    posterior: Float64[np.ndarray, "n K"], sample_weight: Float64[np.ndarray, " n"], prior: Float64[np.ndarray, " K"]
) -> Float64[np.ndarray, " K"]:
    """Frequencies of the classes in a pool, by expectation maximisation.

    They are drawn towards the labels' as if the pool had more samples, as many times as it is uncertain: weak posteriors would
    otherwise lose whole classes.

    Args:
        posterior: of the pool's samples, for classes of the frequencies `prior`.
        sample_weight: of each.
        prior: frequencies of the classes among the labels.
    """
    share = sample_weight / max(float(sample_weight.sum()), np.finfo(float).tiny)
    found, inertia = prior, _uncertainty(posterior, share)
    for _ in range(_ITERATIONS):
        expected = (share @ reweighted(posterior, found / prior) + inertia * prior) / (1.0 + inertia)
        change = float(np.abs(expected - found).max())
        found = expected / expected.sum()
        if change < _TOLERANCE:
            break
    return found


def reweighted(posterior: Float64[np.ndarray, "n K"], ratio: Float64[np.ndarray, " K"]) -> Float64[np.ndarray, "n K"]:
    """The posterior if each class were so many times as frequent."""
    amount = posterior * ratio
    probability: np.ndarray = amount / np.maximum(amount.sum(1, keepdims=True), np.finfo(float).tiny)
    return probability
