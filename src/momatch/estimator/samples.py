"""The training data as a weighted set: neither the order of samples nor how repetition is written down matters.

A sample that comes three times, or once with weight 3, is the same set; so is one that is missing or has weight 0. Everything
that follows (scaling, batches, held-out samples) reads the set alone, so a fit does too.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

#: More calibration samples would make p-values finer than anybody's alpha.
MAX_CALIBRATION = 10_000
#: Whole weights count as repetitions up to this total, what numpy's hypergeometric draws can take.
_MAX_REPETITIONS = 1e9


@dataclass(frozen=True)
class WeightedSet:
    """Distinct samples in an order of their own.

    Attributes:
        x: features, (n, F), no two rows with the same class alike.
        codes: class numbers, -1 for unlabelled, (n,); unlabelled samples come first.
        weight: how often each is there, (n,), all above 0.
    """

    x: Float64[np.ndarray, "n F"]
    codes: Int64[np.ndarray, " n"]
    weight: Float64[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.x)

    @property
    def repetitions(self) -> Int64[np.ndarray, " n"]:
        """How many observations each sample stands for: its weight where all weights are whole numbers, else 1."""
        whole = bool(np.all(self.weight == np.floor(self.weight))) and self.weight.sum() < _MAX_REPETITIONS
        return self.weight.astype(np.int64) if whole else np.ones(len(self), dtype=np.int64)

    def without(self, taken: Int64[np.ndarray, " n"]) -> "WeightedSet":
        """The set after `taken` observations of each sample have left it."""
        keep = taken < self.repetitions
        return WeightedSet(self.x[keep], self.codes[keep], (self.weight - taken)[keep])


def weighted_set(
    x: Float64[np.ndarray, "n F"], codes: Int64[np.ndarray, " n"], weight: Float64[np.ndarray, " n"]
) -> WeightedSet:
    """Merge samples that are alike in features and class, adding their weights, and bring them into one order."""
    keep = weight > 0
    x, codes, weight = x[keep] + 0.0, codes[keep], weight[keep]  # -0.0 + 0.0 is 0.0
    # The order is that of the bytes, class first: any order does that depends on the samples alone.
    rows = np.ascontiguousarray(np.column_stack([codes.astype(np.float64) + 1.0, x]).astype(">f8"))
    keys = rows.view(np.dtype((np.void, rows.shape[1] * 8))).ravel()
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    # Sums depend on the order of their terms, so that is fixed as well.
    by_sample = np.lexsort((weight, which))
    starts = np.searchsorted(which[by_sample], np.arange(len(first)))
    return WeightedSet(x[first], codes[first], np.add.reduceat(weight[by_sample], starts))


def hold_out(samples: WeightedSet, fraction: float, seed: int) -> tuple[WeightedSet, Float64[np.ndarray, "m F"], str]:
    """Keep a share of the observations out of training, against which outliers can be judged.

    Labels are precious: only unlabelled observations leave, unless there are none. Labelled ones leave where there are plenty,
    50 a class on average and no class losing half of its own.

    Args:
        samples: everything.
        fraction: of the observations to keep out, 0 to below 1.
        seed: of the choice.

    Returns:
        What is left to train on; the features of held-out observations, (m, F), m at most `MAX_CALIBRATION`; and whether they
        are "unlabeled", "labeled", or none can be spared and they are those of "training".
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    repetitions = samples.repetitions
    is_labeled = samples.codes >= 0
    source = "labeled" if is_labeled.all() else "unlabeled"
    candidates = np.where(is_labeled == (source == "labeled"), repetitions, 0)
    m = min(round(fraction * int(candidates.sum())), MAX_CALIBRATION)
    if m == 0:
        return samples, samples.x, "training"
    taken = rng.multivariate_hypergeometric(candidates, m, method="marginals")
    if source == "labeled":
        per_class = np.bincount(samples.codes, weights=repetitions)
        lost = np.bincount(samples.codes, weights=taken)
        if per_class.sum() < 50 * len(per_class) or bool(np.any(2 * lost >= per_class)):
            return samples, samples.x, "training"
    return samples.without(taken), np.repeat(samples.x, taken, axis=0), source
