"""A part of a dataset, drawn by seed: what is worth having of it, where not all can be had."""

import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.dataset import UNLABELED
from momatch.data.permutations import Purpose, bit_stream, permutations


def draw_subset(labels: Int64[Tensor, " N"], count: int, *, seed: int) -> Int64[Tensor, " n"]:
    """Positions of `count` samples, ascending; all where there are no more.

    Labels are scarce, so unlabelled samples are left out first: all labelled ones stay and the rest is drawn from the
    unlabelled. Where the labelled ones alone are too many, each class keeps its share of them.

    Args:
        labels: (N,) labels, `UNLABELED` where not known.
        count: at least 1.
        seed: a non-negative integer.
    """
    bits = bit_stream(seed, Purpose.SUBSET)
    (order,) = permutations(bits, 1, len(labels))
    shuffled = labels[torch.from_numpy(order)]
    # Where a sample stands among those of its class, from 0 to 1: the first `count` by that are an even share of each.
    place = torch.zeros(len(labels), dtype=torch.float64)
    for label in shuffled.unique().tolist():
        (members,) = torch.nonzero(shuffled == label, as_tuple=True)
        place[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    place[shuffled == UNLABELED] += 1
    chosen = place.argsort(stable=True)[:count]
    return torch.from_numpy(order)[chosen].sort().values
