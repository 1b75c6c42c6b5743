"""The training data as a weighted set: neither the order of samples nor how repetition is written down matters.

A sample that comes three times, or once with weight 3, is the same set; so is one that is missing or has weight 0. Everything
that follows (scaling, batches, held-out samples) reads the set alone, so a fit does too.
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

#: More calibration samples would make p-values finer than anybody's alpha.
MAX_CALIBRATION = 10_000
#: Ten samples of weight 1 have a tenth of the weight each, by whatever sum that was found.
_ROUNDING = 1e-9


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

    def where(self, keep: Bool[np.ndarray, " n"]) -> "WeightedSet":
        """These samples of the set."""
        return WeightedSet(self.x[keep], self.codes[keep], self.weight[keep])


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
    """Keep a share of the samples out of training, against which outliers can be judged.

    A sample leaves with all its copies and counts once: what the model was trained on says nothing about new samples, and a
    weight of ten does not make one observation ten.

    Labels are precious: only unlabelled samples leave, unless there are none. Labelled ones leave where there are plenty,
    50 a class on average and no class losing half of its own.

    Args:
        samples: everything.
        fraction: of the samples to keep out, 0 to below 1.
        seed: of the choice.

    Returns:
        What is left to train on; the features of held-out samples, (m, F), m at most `MAX_CALIBRATION`; and whether they
        are "unlabeled", "labeled", or none can be spared and they are those of "training".
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
    """Which of the samples `among` all may be held out.

    Not those that would stay in training under another label, nor one that alone has more than the share of the weight that is
    to be spared: training could not do without it.
    """
    _, which, copies = np.unique(samples.x, axis=0, return_inverse=True, return_counts=True)
    share = samples.weight / samples.weight[among].sum()
    spare: np.ndarray[Any, Any] = among & (copies[which.reshape(-1)] == 1) & (share <= fraction * (1.0 + _ROUNDING))
    return spare


class WeightedDraws:
    """Places drawn in proportion to their weights, one from each of `size` equal shares of the total weight.

    Args:
        weight: (N,) weights, above 0.
        size: places a draw.
        bits: source of the uniform numbers.
    """

    def __init__(self, weight: Float64[np.ndarray, " N"], size: int, bits: np.random.Generator) -> None:
        self._edges = np.cumsum(weight)
        self._size = size
        self._bits = bits

    def __call__(self) -> Int64[Tensor, " size"]:
        """The next places."""
        share = (np.arange(self._size) + self._bits.random(self._size)) / max(self._size, 1)
        places = np.searchsorted(self._edges, share * self._edges[-1], side="right")
        return torch.from_numpy(np.minimum(places, len(self._edges) - 1))  # rounding may end on the last edge


def weighted_batches(
    samples: WeightedSet, *, labeled_batch_size: int, unlabeled_batch_size: int, seed: int
) -> Iterator[Batch]:
    """Endless batches of row numbers, drawn by weight. The labelled samples are part of the unlabelled pool, too."""
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
