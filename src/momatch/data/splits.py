"""Split training images into a labelled set and an unlabelled pool.

By seed: for each class in order, shuffle its indices with the seed's own generator and take the first `labels_per_class`. The
labelled set depends only on the labels and the seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from momatch.data.dataset import UNLABELED, Examples, Split
from momatch.data.rows import Rows
from momatch.data.sampling import Purpose, bit_stream, permutations
from momatch.numerics.checks import check_positive_int


@dataclass(frozen=True)
class PoolTruth:
    """The truth about the unlabelled pool, for scoring only; batches do not contain it.

    Index it with a batch's `unlabeled_indices`.

    Attributes:
        labels: (N_u,) true classes; `UNLABELED` if not known and for outliers.
        is_outlier: (N_u,) True for images added by `contaminate`.
        origin: (N_u,) index into `origin_names`.
        row: (N_u,) position among the examples of that origin.
        origin_names: "train" for the training set's own images; each contamination adds a name.
    """

    labels: Int64[Tensor, " N_u"]
    is_outlier: Bool[Tensor, " N_u"]
    origin: Int64[Tensor, " N_u"]
    row: Int64[Tensor, " N_u"]
    origin_names: tuple[str, ...] = ("train",)


@dataclass(frozen=True)
class SemiSupervised:
    """A labelled set and an unlabelled pool, with the truth about the pool.

    Attributes:
        class_names: label k is ``class_names[k]``.
        labeled: m labelled images.
        labels: (m,) labels.
        labeled_rows: (m,) their positions among the original examples.
        unlabeled: the pool of N_u images, in the order of the examples.
        truth: the truth about the pool; training must not read it.
    """

    class_names: tuple[str, ...]
    labeled: Rows
    labels: Int64[Tensor, " m"]
    labeled_rows: Int64[Tensor, " m"]
    unlabeled: Rows
    truth: PoolTruth

    @property
    def is_shown(self) -> Bool[Tensor, " N_u"]:
        """Which images of the pool are also in the labelled set."""
        return (self.truth.origin == 0) & torch.isin(self.truth.row, self.labeled_rows)


def select_labeled(
    labels: Int64[Tensor, " N"], class_names: Sequence[str], *, labels_per_class: int, seed: int
) -> Int64[Tensor, " m"]:
    """Draw `labels_per_class` indices of each class, in class order.

    Args:
        labels: (N,) labels, `UNLABELED` if not known.
        class_names: label k is ``class_names[k]``.
        labels_per_class: labels to use per class.
        seed: a non-negative integer.

    Returns:
        (K * labels_per_class,) indices into `labels`: those of class 0 in drawing order, then class 1, and so on.

    Raises:
        ValueError: if there are fewer than two classes, a class has too few labels, or an argument is out of range.
    """
    check_positive_int("labels_per_class", labels_per_class)
    counts = _class_counts(labels, class_names)
    short = [(name, n) for name, n in zip(class_names, counts, strict=True) if n < labels_per_class]
    if short:
        found = ", ".join(f"{name!r} has {n}" for name, n in short[:10]) + (", ..." if len(short) > 10 else "")
        raise ValueError(
            f"labels_per_class: expected at least {labels_per_class} labelled images in every class, got too few in "
            f"{len(short)} of {len(class_names)}: {found}; use at most {max(1, min(counts))}, or drop the class"
        )
    bits = bit_stream(seed, Purpose.SPLIT)
    chosen = []
    for k in range(len(class_names)):
        (members,) = torch.nonzero(labels == k, as_tuple=True)
        (order,) = permutations(bits, 1, len(members))
        chosen.append(members[torch.from_numpy(order[:labels_per_class])])
    return torch.cat(chosen)


def split_by_seed(
    examples: Examples | Split,
    class_names: Sequence[str],
    *,
    labels_per_class: int,
    seed: int,
    labeled_in_pool: bool = True,
) -> SemiSupervised:
    """Label `labels_per_class` images per class, drawn by `seed` (`select_labeled`).

    Args:
        examples: the training images, labelled and unlabelled.
        class_names: label k is ``class_names[k]``.
        labels_per_class: labels to use per class.
        seed: a non-negative integer.
        labeled_in_pool: put the labelled images in the unlabelled pool too, as in the published code.

    Raises:
        ValueError: see `select_labeled`.
    """
    examples = Examples.of(examples)
    rows = select_labeled(examples.labels, class_names, labels_per_class=labels_per_class, seed=seed)
    return _split(examples, class_names, rows, labeled_in_pool=labeled_in_pool)


def split_by_rows(
    examples: Examples | Split, class_names: Sequence[str], rows: Sequence[int], *, labeled_in_pool: bool = True
) -> SemiSupervised:
    """Label exactly the examples at `rows`, in that order.

    Args:
        examples: the training images, labelled and unlabelled.
        class_names: label k is ``class_names[k]``.
        rows: positions among `examples`, at least one of each class.
        labeled_in_pool: put the labelled images in the unlabelled pool too.

    Raises:
        ValueError: if a row is out of range, repeated or unlabelled, a class has no row, or there are fewer than two classes.
    """
    examples = Examples.of(examples)
    _class_counts(examples.labels, class_names)
    out_of_range = [row for row in rows if not 0 <= row < len(examples)]
    if out_of_range:
        raise ValueError(f"rows: got {_some(out_of_range)}, expected positions from 0 to {len(examples) - 1}")
    chosen = torch.tensor(list(rows), dtype=torch.int64)
    repeated = torch.nonzero(torch.bincount(chosen) > 1).flatten()
    if len(repeated):
        raise ValueError(f"rows: got {_some(repeated.tolist())} more than once, expected no repeats")
    unlabeled = chosen[examples.labels[chosen] == UNLABELED]
    if len(unlabeled):
        raise ValueError(f"rows: got {_some(unlabeled.tolist())}, which have no label; expected labelled examples")
    present = set(examples.labels[chosen].tolist())
    missing = [name for k, name in enumerate(class_names) if k not in present]
    if missing:
        raise ValueError(f"rows: got none of class {_some(missing)}, expected at least one row per class")
    return _split(examples, class_names, chosen, labeled_in_pool=labeled_in_pool)


def split_by_files(
    split: Split, class_names: Sequence[str], files: Sequence[str], *, labeled_in_pool: bool = True
) -> SemiSupervised:
    """Label exactly the images in `files`, in that order.

    Args:
        split: training images that came from files (`Split.files`).
        class_names: label k is ``class_names[k]``.
        files: file names as in `Split.files`: relative to the folder, or as written in the manifest.
        labeled_in_pool: put the labelled images in the unlabelled pool too.

    Raises:
        ValueError: if the images did not come from files, a name is unknown, or for the reasons of `split_by_rows`.
    """
    if not split.files:
        raise ValueError(
            "split: got images without file names, expected those of a folder or manifest; use split_by_rows"
        )
    row_of = {file: row for row, file in enumerate(split.files)}
    unknown = [file for file in files if file not in row_of]
    if unknown:
        raise ValueError(f"files: got {_some(unknown)}, expected names such as {split.files[0]!r}")
    rows = [row_of[file] for file in files]
    return split_by_rows(split, class_names, rows, labeled_in_pool=labeled_in_pool)


def split_as_labeled(examples: Examples, class_names: Sequence[str], *, labeled_in_pool: bool = True) -> SemiSupervised:
    """Use every label, for data with its own unlabelled part.

    Args:
        examples: the training images, labelled and unlabelled.
        class_names: label k is ``class_names[k]``.
        labeled_in_pool: put the labelled images in the unlabelled pool too.

    Raises:
        ValueError: if a class has no label, or there are fewer than two classes.
    """
    rows = torch.nonzero(examples.labels != UNLABELED).flatten().tolist()
    return split_by_rows(examples, class_names, rows, labeled_in_pool=labeled_in_pool)


def hold_out_pool(data: SemiSupervised, *, fraction: float, seed: int) -> tuple[SemiSupervised, Rows]:
    """Hold out a fraction of the pool from training, drawn by `seed`; labelled images stay in the pool.

    Args:
        data: a labelled set and a pool.
        fraction: fraction of the pool, in [0, 1).
        seed: a non-negative integer.

    Returns:
        The data with a smaller pool, and the held-out images: `fraction` of the pool, or all unlabelled images if fewer.
    """
    truth = data.truth
    (candidates,) = torch.nonzero(~data.is_shown, as_tuple=True)
    (order,) = permutations(bit_stream(seed, Purpose.CALIBRATION), 1, len(candidates))
    taken = candidates[torch.from_numpy(order[: round(fraction * len(truth.row))])].sort().values
    stays = torch.ones(len(truth.row), dtype=torch.bool)
    stays[taken] = False
    (kept,) = torch.nonzero(stays, as_tuple=True)
    smaller = PoolTruth(
        labels=truth.labels[kept],
        is_outlier=truth.is_outlier[kept],
        origin=truth.origin[kept],
        row=truth.row[kept],
        origin_names=truth.origin_names,
    )
    pool = data.unlabeled
    return replace(data, unlabeled=pool.select(kept), truth=smaller), pool.select(taken)


def _split(
    examples: Examples, class_names: Sequence[str], labeled: Int64[Tensor, " m"], *, labeled_in_pool: bool
) -> SemiSupervised:
    in_pool = torch.ones(len(examples), dtype=torch.bool)
    in_pool[labeled] = labeled_in_pool
    (pool,) = torch.nonzero(in_pool, as_tuple=True)
    return SemiSupervised(
        class_names=tuple(class_names),
        labeled=examples.rows.select(labeled),
        labels=examples.labels[labeled],
        labeled_rows=labeled,
        unlabeled=examples.rows.select(pool),
        truth=PoolTruth(
            labels=examples.labels[pool],
            is_outlier=torch.zeros(len(pool), dtype=torch.bool),
            origin=torch.zeros(len(pool), dtype=torch.int64),
            row=pool,
        ),
    )


def _class_counts(labels: Int64[Tensor, " N"], class_names: Sequence[str]) -> list[int]:
    """Number of labels of each class.

    Raises:
        ValueError: if fewer than two classes have labels, or a label is out of range.
    """
    known = labels[labels != UNLABELED]
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < len(class_names):
        raise ValueError(
            f"labels: got {int(known.min())} to {int(known.max())}, expected {UNLABELED} (unlabelled) or "
            f"0 to {len(class_names) - 1}"
        )
    counts: list[int] = torch.bincount(known, minlength=len(class_names)).tolist()
    present = [name for name, n in zip(class_names, counts, strict=True) if n]
    if len(present) < 2:
        raise ValueError(f"labels: got {len(present)} class(es) with labels ({_some(present)}), expected at least two")
    return counts


def _some(items: Sequence[object]) -> str:
    """The first few of `items`, for an error."""
    return ", ".join(repr(item) for item in items[:10]) + (", ..." if len(items) > 10 else "")
