"""Pools with outliers, and the truth that is kept about them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momatch.data.contaminate import contaminate, hold_out_classes
from momatch.data.dataset import UNLABELED, Dataset, Split
from momatch.data.rows import PixelRows
from momatch.data.splits import split_by_seed

NAMES = ("ant", "bee", "cat", "dog")


def make_dataset(train=80, test=20, unlabeled=0):
    """Images that carry their row number; the last `unlabeled` of train have no label."""
    labels = torch.arange(train) % 4
    if unlabeled:
        labels[-unlabeled:] = UNLABELED
    return Dataset("toy", NAMES, Split(numbered(train), labels), Split(numbered(test), torch.arange(test) % 4))


def numbered(n, shape=(1, 4, 4)):
    return torch.arange(n, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, *shape).contiguous()


def shown(images):
    return images.gather(torch.arange(len(images)))[:, 0, 0, 0].tolist()


def make_split():
    dataset = make_dataset()
    known = hold_out_classes(dataset, ["bee"])
    return known, split_by_seed(known.train, known.class_names, labels_per_class=4, seed=1)


def test_held_out_classes_leave_and_the_rest_are_renumbered():
    known = hold_out_classes(make_dataset(unlabeled=8), ["dog", 0])
    assert known.class_names == ("bee", "cat")
    assert known.unknown_names == ("ant", "dog")
    for part, classes, count, unlabeled in (
        (known.train, (1, 2), 72, 8),
        (known.test, (1, 2), 20, 0),
        (known.unknown_train, (0, 3), 72, 0),
        (known.unknown_test, (0, 3), 20, 0),
    ):
        rows = shown(part.images)
        expected = [row for row in range(count) if row % 4 in classes] + list(range(count, count + unlabeled))
        assert rows == expected
        assert part.labels.tolist() == [UNLABELED if row >= count else classes.index(row % 4) for row in rows]


def test_a_dataset_without_test_split_stays_without():
    dataset = make_dataset()
    known = hold_out_classes(Dataset("toy", NAMES, dataset.train, None), ["bee"])
    assert known.test is None
    assert known.unknown_test is None


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["fox"], r"classes: got 'fox', expected one of \['ant', 'bee', 'cat', 'dog'\] or a number from 0 to 3"),
        ([4], "classes: got 4, expected"),
        ([-1], "classes: got -1, expected"),
        (["bee", 1], "without repeats"),
        ([], "at least one class"),
        (["ant", "bee", "cat"], "leaves 1 of 4 classes; expected at least two known classes"),
    ],
)
def test_impossible_hold_outs_are_refused(classes, message):
    with pytest.raises(ValueError, match=message):
        hold_out_classes(make_dataset(), classes)


def test_held_out_classes_as_outliers():
    known, data = make_split()
    mixed = contaminate(data, known.unknown_train.images, fraction=0.2, seed=5, name="bees")
    assert len(mixed.unlabeled) == 75
    assert int(mixed.truth.is_outlier.sum()) == 15
    pool = shown(mixed.unlabeled)
    assert pool[:60] == shown(data.unlabeled)
    assert all(row % 4 == 1 for row in pool[60:])
    assert len(set(pool)) == 75
    truth = mixed.truth
    assert truth.is_outlier.tolist() == [False] * 60 + [True] * 15
    assert truth.labels.tolist() == data.truth.labels.tolist() + [UNLABELED] * 15
    assert truth.origin_names == ("train", "bees")
    assert truth.origin.tolist() == [0] * 60 + [1] * 15
    assert [shown(known.unknown_train.images)[row] for row in truth.row[60:]] == pool[60:]
    assert [shown(known.train.images)[row] for row in truth.row[:60]] == pool[:60]
    # What training sees of the labelled set is untouched.
    assert mixed.labeled is data.labeled
    assert mixed.labels is data.labels
    assert mixed.class_names == ("ant", "cat", "dog")


def test_a_second_dataset_of_another_shape():
    _, data = make_split()
    mixed = contaminate(data, numbered(100, shape=(3, 8, 8)), fraction=0.5, seed=0)
    assert mixed.unlabeled.shape == (1, 4, 4)
    assert shown(mixed.unlabeled)[60:] == mixed.truth.row[60:].tolist()


@given(fraction=st.floats(0, 0.9), pool_size=st.none() | st.integers(1, 60), seed=st.integers(0, 2**32))
def test_the_fraction_is_that_of_the_resulting_pool(fraction, pool_size, seed):
    _, data = make_split()
    outliers = PixelRows([numbered(250)], torch.arange(250).repeat(3))
    mixed = contaminate(data, outliers, fraction=fraction, seed=seed, pool_size=pool_size)
    n = len(mixed.unlabeled)
    assert pool_size is None or n == pool_size
    assert abs(int(mixed.truth.is_outlier.sum()) - fraction * n) <= 1
    assert len(mixed.truth.labels) == len(mixed.truth.row) == len(mixed.truth.origin) == n
    inliers = ~mixed.truth.is_outlier
    # The truth is about the very image at its position.
    kept = data.truth.row.tolist().index
    positions = [kept(row) for row in mixed.truth.row[inliers].tolist()]
    assert shown(mixed.unlabeled)[: len(positions)] == [shown(data.unlabeled)[p] for p in positions]
    assert mixed.truth.labels[inliers].tolist() == data.truth.labels[positions].tolist()
    assert mixed.truth.row[inliers].unique().numel() == int(inliers.sum())
    assert mixed.truth.row[~inliers].unique().numel() == int((~inliers).sum())


def test_seeds_decide_which():
    _, data = make_split()
    draws = [contaminate(data, numbered(200), fraction=0.3, seed=seed).truth.row.tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_two_contaminations_are_told_apart():
    _, data = make_split()
    mixed = contaminate(data, numbered(200), fraction=0.25, seed=0, name="a")
    mixed = contaminate(mixed, numbered(200), fraction=0.2, seed=0, name="b")
    assert torch.bincount(mixed.truth.origin).tolist() == [60, 20, 20]
    assert mixed.truth.origin_names == ("train", "a", "b")
    with pytest.raises(ValueError, match="name: got 'b', expected a name not in"):
        contaminate(mixed, numbered(200), fraction=0.2, seed=0, name="b")


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_fractions_out_of_range_are_refused(fraction):
    with pytest.raises(ValueError, match=r"fraction: got .*, expected a number in \[0, 1\)"):
        contaminate(make_split()[1], numbered(10), fraction=fraction, seed=0)


def test_too_few_images_are_counted_and_the_stated_fraction_works():
    _, data = make_split()
    message = "fraction: got 0.5, which needs 60 outliers, expected at most 0.2307 with the 18 available"
    with pytest.raises(ValueError, match=message):
        contaminate(data, numbered(18), fraction=0.5, seed=0)
    contaminate(data, numbered(18), fraction=0.2307, seed=0)
    with pytest.raises(ValueError, match=r"needs 25 outliers, expected at most 0\.36"):
        contaminate(data, numbered(18), fraction=0.5, seed=0, pool_size=50)
    with pytest.raises(
        ValueError, match="pool_size: got 100, which needs 90 inliers, expected at most the 60 available"
    ):
        contaminate(data, numbered(18), fraction=0.1, seed=0, pool_size=100)
