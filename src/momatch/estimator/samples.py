"""The training data as a weighted set, so that a fit does not depend on the order of samples.

Three copies of a sample are the same as one of weight 3, and a sample of weight 0 the same as none. Scaling, batches and
held-out samples are all derived from the set.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from momatch.data.batches import Batch

#: Maximum number of calibration samples; enough for any practical alpha.
MAX_CALIBRATION = 10_000
#: Relative tolerance when comparing shares of the total weight.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class WeightedSet:
    """Distinct samples in canonical order.

    Attributes:
        x: features, (n, F); no two rows have the same features and class.
        codes: class numbers, -1 for unlabelled, (n,); unlabelled samples come first.
        weight: weight of each, (n,), above 0.
    """

    x: Float64[np.ndarray, "n F"]
    codes: Int64[np.ndarray, " n"]
    weight: Float64[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.x)

    def where(self, keep: Bool[np.ndarray, " n"]) -> "WeightedSet":
        """The subset where `keep` is true."""
        return WeightedSet(self.x[keep], self.codes[keep], self.weight[keep])


def weighted_set(
    x: Float64[np.ndarray, "n F"], codes: Int64[np.ndarray, " n"], weight: Float64[np.ndarray, " n"]
) -> WeightedSet:
    """Merge samples with equal features and class, adding their weights, and sort them canonically."""
    keep = weight > 0
    x, codes, weight = x[keep] + 0.0, codes[keep], weight[keep]  # -0.0 + 0.0 is 0.0
    # Sorted by bytes, class first; any order that depends only on the samples would do.
    rows = np.ascontiguousarray(np.column_stack([codes.astype(np.float64) + 1.0, x]).astype(">f8"))
    keys = rows.view(np.dtype((np.void, rows.shape[1] * 8))).ravel()
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    # Floating-point sums depend on the order of their terms, so fix that too.
    by_sample = np.lexsort((weight, which))
    starts = np.searchsorted(which[by_sample], np.arange(len(first)))
    return WeightedSet(x[first], codes[first], np.add.reduceat(weight[by_sample], starts))


def hold_out(samples: WeightedSet, fraction: float, seed: int) -> tuple[WeightedSet, Float64[np.ndarray, "m F"], str]:
    """Keep a fraction of the samples out of training, for calibrating p-values.

    A sample is held out with all its copies and counts once: its weight does not make it several observations.

    Only unlabelled samples are held out, unless there are none. Labelled ones are held out only if there are at least 50 per
    class on average and no class loses half of its samples.

    Args:
        samples: all samples.
        fraction: fraction to hold out, 0 to below 1.
        seed: seed of the random choice.

    Returns:
        The samples to train on; the features of the calibration samples, (m, F), m at most `MAX_CALIBRATION`; and their
        source: "unlabeled", "labeled", or "training" if none could be spared and all training samples are used.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    is_labeled = samples.codes >= 0
    source = "labeled" if is_labeled.all() else "unlabeled"
    candidates = _spare(samples, is_labeled == (source == "labeled"), fraction)
    m = min(round(fraction * int(candidates.sum())), MAX_CALIBRATION)
    if m == 0:
        return samples, samples.x, "training"
    taken = rng.multivariate_hypergeometric(candidates.astype(np.int64), m, method="marginals") > 0
    if source == "labeled":
        per_class = np.bincount(samples.codes)
        lost = np.bincount(samples.codes[taken], minlength=len(per_class))
        if per_class.sum() < 50 * len(per_class) or bool(np.any(2 * lost >= per_class)):
            return samples, samples.x, "training"
    return samples.where(~taken), samples.x[taken], source


def _spare(samples: WeightedSet, among: Bool[np.ndarray, " n"], fraction: float) -> Bool[np.ndarray, " n"]:
    """Mask of the samples in `among` that may be held out.

    Excludes samples that would stay in training under another label, and samples with more than `fraction` of the weight.
    """
    _, which, copies = np.unique(samples.x, axis=0, return_inverse=True, return_counts=True)
    share = samples.weight / samples.weight[among].sum()
    spare: np.ndarray[Any, Any] = among & (copies[which.reshape(-1)] == 1) & (share <= fraction * (1.0 + _ROUNDING))
    return spare


class WeightedDraws:
    """Draws indices in proportion to their weights, one from each of `size` equal strata of the total weight.

    Args:
        weight: (N,) weights, above 0.
        size: indices per draw.
        bits: random generator.
    """

    def __init__(self, weight: Float64[np.ndarray, " N"], size: int, bits: np.random.Generator) -> None:
        self._edges = np.cumsum(weight)
        self._size = size
        self._bits = bits

    def __call__(self) -> Int64[Tensor, " size"]:
        """Draw the next indices."""
        share = (np.arange(self._size) + self._bits.random(self._size)) / max(self._size, 1)
        places = np.searchsorted(self._edges, share * self._edges[-1], side="right")
        return torch.from_numpy(np.minimum(places, len(self._edges) - 1))  # rounding may end on the last edge


def weighted_batches(
    samples: WeightedSet, *, labeled_batch_size: int, unlabeled_batch_size: int, seed: int
) -> Iterator[Batch]:
    """Endless batches of row numbers, drawn by weight. The pool includes the labelled samples."""
    labeled = torch.from_numpy(np.flatnonzero(samples.codes >= 0))
    labels = torch.from_numpy(samples.codes)[labeled]
    bits = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    draw_labeled = WeightedDraws(samples.weight[labeled.numpy()], labeled_batch_size, bits)
    draw_pool = WeightedDraws(samples.weight, unlabeled_batch_size, bits)
    for step in itertools.count():
        places, rows = draw_labeled(), draw_pool()
        yield Batch(
            step=step,
            labeled=labeled[places],
            labels=labels[places],
            labeled_indices=places,
            unlabeled=rows,
            unlabeled_indices=rows,
        )
