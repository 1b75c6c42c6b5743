"""Unlabelled pools that contain outliers, with the truth kept for scoring.

Outliers come from a second dataset, or from classes of the same dataset removed by `hold_out_classes`::

    known = hold_out_classes(dataset, ["truck", "ship"])
    data = split_by_seed(known.train, known.class_names, labels_per_class=4, seed=0)
    data = contaminate(data, known.unknown_train.images, fraction=0.2, seed=0, name="held out")
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.dataset import UNLABELED, Dataset, Examples, Split
from momatch.data.rows import Rows
from momatch.data.sampling import Purpose, bit_stream, permutations
from momatch.data.splits import PoolTruth, SemiSupervised
from momatch.numerics.checks import check_positive_int


@dataclass(frozen=True)
class HeldOut:
    """A dataset split into known and unknown classes. Known classes are renumbered, in their original order.

    Attributes:
        class_names: the known classes; label k of `train` and `test` is ``class_names[k]``.
        unknown_names: the held-out classes; label k of `unknown_train` and `unknown_test` is ``unknown_names[k]``.
        train: training examples of known classes, and all unlabelled ones (whose class may be unknown).
        test: test examples of known classes, or None if the dataset has no test split.
        unknown_train: training examples of the held-out classes.
        unknown_test: test examples of the held-out classes, or None.
    """

    class_names: tuple[str, ...]
    unknown_names: tuple[str, ...]
    train: Examples
    test: Examples | None
    unknown_train: Examples
    unknown_test: Examples | None


def hold_out_classes(dataset: Dataset, classes: Sequence[str | int]) -> HeldOut:
    """Remove `classes` from `dataset`.

    Args:
        dataset: the dataset to split; its tensors are neither copied nor read.
        classes: names or label values of the classes to hold out.

    Raises:
        ValueError: if a class does not exist or is repeated, none is given, or fewer than two would remain.
    """
    numbers = [_class_number(dataset, name) for name in classes]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"classes: got {list(classes)}, expected at least one class, without repeats")
    known = [k for k in range(dataset.num_classes) if k not in numbers]
    if len(known) < 2:
        raise ValueError(
            f"classes: got {list(classes)}, which leaves {len(known)} of {dataset.num_classes} classes; "
            "expected at least two known classes"
        )
    unknown = sorted(numbers)
    return HeldOut(
        class_names=tuple(dataset.class_names[k] for k in known),
        unknown_names=tuple(dataset.class_names[k] for k in unknown),
        train=_keep(dataset.train, [*known, UNLABELED], dataset.num_classes),
        test=None if dataset.test is None else _keep(dataset.test, known, dataset.num_classes),
        unknown_train=_keep(dataset.train, unknown, dataset.num_classes),
        unknown_test=None if dataset.test is None else _keep(dataset.test, unknown, dataset.num_classes),
    )


def contaminate(
    data: SemiSupervised,
    outliers: Rows | Tensor,
    *,
    fraction: float,
    seed: int,
    name: str = "outliers",
    pool_size: int | None = None,
) -> SemiSupervised:
    """Mix `outliers` into the unlabelled pool so that they are `fraction` of the resulting pool.

    The outliers are drawn by `seed` without replacement and appended, so inliers keep their positions if `pool_size` is None;
    batches are shuffled anyway. The labelled set is unchanged.

    Args:
        data: a split; if it is already contaminated, `fraction` counts only the new outliers.
        outliers: samples of unknown classes, as a tensor or rows; images are converted to the pool's shape
            (`PixelRows.converted`).
        fraction: fraction of new outliers in the resulting pool, in [0, 1).
        seed: a non-negative integer.
        name: their name in ``truth.origin_names``.
        pool_size: size of the resulting pool; None keeps every image and lets the pool grow. A fixed size makes fractions
            comparable: images drawn by `seed` are dropped from the pool to make room.

    Raises:
        ValueError: if `fraction` is out of range, the name is taken, or there are too few images.
    """
    if not 0.0 <= fraction < 1.0:
        raise ValueError(f"fraction: got {fraction!r}, expected a number in [0, 1)")
    if name in data.truth.origin_names:
        raise ValueError(f"name: got {name!r}, expected a name not in {data.truth.origin_names}")
    rows = Rows.of(outliers)
    in_pool, added = _counts(len(data.unlabeled), len(rows), fraction, pool_size)
    bits = bit_stream(seed, Purpose.CONTAMINATION)
    chosen = _draw(bits, len(rows), added)
    if in_pool < len(data.unlabeled):
        data = _keep_in_pool(data, _draw(bits, len(data.unlabeled), in_pool))
    converted = rows.select(chosen).like(data.unlabeled)
    truth = data.truth
    return replace(
        data,
        unlabeled=data.unlabeled.append(converted),
        truth=PoolTruth(
            labels=torch.cat([truth.labels, torch.full_like(chosen, UNLABELED)]),
            is_outlier=torch.cat([truth.is_outlier, torch.ones_like(chosen, dtype=torch.bool)]),
            origin=torch.cat([truth.origin, torch.full_like(chosen, len(truth.origin_names))]),
            row=torch.cat([truth.row, chosen]),
            origin_names=(*truth.origin_names, name),
        ),
    )


def _counts(pool: int, available: int, fraction: float, pool_size: int | None) -> tuple[int, int]:
    """Number of pool images to keep and of outliers to add."""
    if pool_size is None:
        kept, added = pool, round(pool * fraction / (1.0 - fraction))
    else:
        added = round(check_positive_int("pool_size", pool_size) * fraction)
        kept = pool_size - added
    if kept > pool:
        raise ValueError(
            f"pool_size: got {pool_size}, which needs {kept} inliers, expected at most the {pool} available"
        )
    if added > available:
        # Rounded down, so that the suggested number works.
        reachable = math.floor(1e4 * available / (pool + available if pool_size is None else pool_size)) / 1e4
        raise ValueError(
            f"fraction: got {fraction}, which needs {added} outliers, expected at most {reachable} with the "
            f"{available} available; lower it, or set a smaller pool_size"
        )
    return kept, added


def _draw(bits: np.random.PCG64, size: int, count: int) -> Int64[Tensor, " {count}"]:
    """Draw `count` of ``range(size)`` without replacement, ascending."""
    (order,) = permutations(bits, 1, size)
    return torch.from_numpy(order[:count]).sort().values


def _keep_in_pool(data: SemiSupervised, positions: Int64[Tensor, " n"]) -> SemiSupervised:
    truth = data.truth
    return replace(
        data,
        unlabeled=data.unlabeled.select(positions),
        truth=replace(
            truth,
            labels=truth.labels[positions],
            is_outlier=truth.is_outlier[positions],
            origin=truth.origin[positions],
            row=truth.row[positions],
        ),
    )


def _keep(split: Split, classes: Sequence[int], num_classes: int) -> Examples:
    """The examples of `classes` (old label values), with class ``classes[k]`` renumbered to k; `UNLABELED` stays."""
    number = torch.full((num_classes + 1,), num_classes)  # The last cell is for -1: index -1 finds it.
    kept = [k for k in classes if k != UNLABELED]
    number[torch.tensor(kept, dtype=torch.int64)] = torch.arange(len(kept))
    if UNLABELED in classes:
        number[UNLABELED] = UNLABELED
    labels = number[split.labels]
    (positions,) = torch.nonzero(labels != num_classes, as_tuple=True)
    return Examples(split.rows.select(positions), labels[positions])


def _class_number(dataset: Dataset, name: str | int) -> int:
    if isinstance(name, int) and 0 <= name < dataset.num_classes:
        return name
    if isinstance(name, str) and name in dataset.class_names:
        return dataset.class_names.index(name)
    raise ValueError(
        f"classes: got {name!r}, expected one of {list(dataset.class_names)} "
        f"or a number from 0 to {dataset.num_classes - 1}"
    )
