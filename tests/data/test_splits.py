"""Labelled sets and unlabelled pools."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momatch.data.dataset import UNLABELED, Examples, Split
from momatch.data.sampling import Purpose, bit_stream
from momatch.data.splits import (
    hold_out_pool,
    select_labeled,
    split_as_labeled,
    split_by_files,
    split_by_rows,
    split_by_seed,
)

PAPER_SEEDS = (3474173998, 273230791, 3586106167, 1325645050, 2564231920)


def make_examples(labels):
    labels = torch.as_tensor(labels)
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous()
    return Examples.of(Split(images, labels))


def names(count):
    return [f"class {k}" for k in range(count)]


def shown(images):
    """The number that each image of `make_examples` carries."""
    return images.gather(torch.arange(len(images)))[:, 0, 0, 0].tolist()


def test_the_protocols_rule_word_by_word():
    """For each class in order: shuffle its indices with the seed's own generator, take 4."""
    labels = torch.arange(200) * 7 % 10
    generator = bit_stream(11, Purpose.SPLIT)
    expected = []
    for k in range(10):
        indices = [i for i in range(200) if labels[i] == k]
        shuffled = [i for _, i in sorted(zip(generator.random_raw(len(indices)), indices, strict=True))]
        expected += shuffled[:4]
    assert select_labeled(labels, names(10), labels_per_class=4, seed=11).tolist() == expected


def test_the_papers_seeds_give_the_sets_they_always_gave():
    labels = torch.arange(50_000) % 10
    drawn = [select_labeled(labels, names(10), labels_per_class=4, seed=seed) for seed in PAPER_SEEDS]
    assert [int(rows.sum()) for rows in drawn] == [1070540, 1177470, 821510, 1110550, 962780]
    assert drawn[0][:4].tolist() == [22680, 24030, 4130, 28610]


@given(
    labels=st.lists(st.integers(-1, 2), min_size=12, max_size=60),
    labels_per_class=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    labeled_in_pool=st.booleans(),
)
def test_any_split_is_consistent(labels, labels_per_class, seed, labeled_in_pool):
    labels += [0, 1, 2] * labels_per_class
    examples = make_examples(labels)
    data = split_by_seed(
        examples, names(3), labels_per_class=labels_per_class, seed=seed, labeled_in_pool=labeled_in_pool
    )
    rows = data.labeled_rows.tolist()
    assert data.labels.tolist() == [k for k in range(3) for _ in range(labels_per_class)]
    assert len(set(rows)) == len(rows)
    assert [labels[row] for row in rows] == data.labels.tolist()
    assert shown(data.labeled) == rows
    pool = [row for row in range(len(labels)) if labeled_in_pool or row not in rows]
    assert shown(data.unlabeled) == pool
    assert data.truth.labels.tolist() == [labels[row] for row in pool]
    assert data.truth.row.tolist() == pool
    assert not data.truth.is_outlier.any()
    assert not data.truth.origin.any()


def test_the_set_depends_on_labels_and_seed_alone():
    labels = torch.arange(100) % 5
    first = select_labeled(labels, names(5), labels_per_class=4, seed=3)
    torch.manual_seed(9)
    np.random.seed(9)  # noqa: NPY002
    again = select_labeled(labels, names(5), labels_per_class=4, seed=3)
    assert torch.equal(first, again)
    assert not torch.equal(first, select_labeled(labels, names(5), labels_per_class=4, seed=4))
    # More labels extend the set that fewer give.
    more = select_labeled(labels, names(5), labels_per_class=6, seed=3).view(5, 6)
    assert torch.equal(more[:, :4], first.view(5, 4))


def test_every_member_of_a_class_is_drawn_equally_often():
    labels = torch.arange(20) % 2
    counts = torch.zeros(20)
    for seed in range(500):
        counts[select_labeled(labels, names(2), labels_per_class=4, seed=seed)] += 1
    # 500 draws with probability 0.4: 200, standard deviation 11.
    assert (counts - 200).abs().max() < 50


def test_explicit_rows_are_taken_as_given():
    data = split_by_rows(make_examples([0, 1, 1, 0, -1, 1]), names(2), [5, 0, 2], labeled_in_pool=False)
    assert data.labels.tolist() == [1, 0, 1]
    assert shown(data.labeled) == [5, 0, 2]
    assert shown(data.unlabeled) == [1, 3, 4]
    assert data.truth.labels.tolist() == [1, 0, UNLABELED]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 1, 6], "rows: got 6, expected positions from 0 to 5"),
        ([0, 1, -1], "rows: got -1, expected positions from 0 to 5"),
        ([0, 1, 1], "rows: got 1 more than once, expected no repeats"),
        ([0, 1, 4], "rows: got 4, which have no label; expected labelled examples"),
        ([0, 3], "rows: got none of class 'class 1', expected at least one row per class"),
        ([], "rows: got none of class 'class 0', 'class 1'"),
    ],
)
def test_bad_rows_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        split_by_rows(make_examples([0, 1, 1, 0, -1, 1]), names(2), rows)


def test_a_class_with_too_few_labels_is_named():
    labels = [0] * 5 + [1] * 3 + [2] * 5 + [-1] * 5
    message = (
        "expected at least 4 labelled images in every class, got too few in 1 of 3: 'class 1' has 3; use at most 3"
    )
    with pytest.raises(ValueError, match=message):
        split_by_seed(make_examples(labels), names(3), labels_per_class=4, seed=0)


def test_an_absent_class_is_named():
    with pytest.raises(ValueError, match="'class 2' has 0"):
        select_labeled(torch.tensor([0, 1, 0, 1]), names(3), labels_per_class=1, seed=0)


@pytest.mark.parametrize(("labels", "count"), [([0, 0, 0, -1], 1), ([1, 1, 1], 2), ([-1, -1], 2), ([], 2)])
def test_fewer_than_two_classes_are_refused(labels, count):
    with pytest.raises(ValueError, match=r"class\(es\) with labels .*, expected at least two"):
        select_labeled(torch.tensor(labels, dtype=torch.int64), names(count), labels_per_class=1, seed=0)


@pytest.mark.parametrize("labels_per_class", [0, -4])
def test_at_least_one_label_a_class(labels_per_class):
    with pytest.raises(
        ValueError, match=f"labels_per_class: got {labels_per_class}, expected an integer of at least 1"
    ):
        select_labeled(torch.tensor([0, 1]), names(2), labels_per_class=labels_per_class, seed=0)


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(ValueError, match="labels: got 0 to 2, expected -1"):
        select_labeled(torch.tensor([0, 1, 2]), names(2), labels_per_class=1, seed=0)


def test_labels_as_they_are():
    data = split_as_labeled(make_examples([0, -1, 1, -1, 1]), names(2), labeled_in_pool=False)
    assert shown(data.labeled) == [0, 2, 4]
    assert data.labels.tolist() == [0, 1, 1]
    assert shown(data.unlabeled) == [1, 3]
    with pytest.raises(ValueError, match="rows: got none of class 'class 2'"):
        split_as_labeled(make_examples([0, -1, 1]), names(3))


def test_labelled_files_by_name():
    images = torch.arange(4, dtype=torch.uint8).view(-1, 1, 1, 1)
    files = ("cat/a.png", "cat/b.png", "dog/a.png", "dog/b.png")
    split = Split(images, torch.tensor([0, 0, 1, 1]), files)
    data = split_by_files(split, ["cat", "dog"], ["dog/b.png", "cat/a.png"], labeled_in_pool=False)
    assert data.labeled_rows.tolist() == [3, 0]
    assert data.labels.tolist() == [1, 0]
    assert shown(data.unlabeled) == [1, 2]
    with pytest.raises(ValueError, match=r"files: got 'cat/c.png', expected names such as 'cat/a.png'"):
        split_by_files(split, ["cat", "dog"], ["cat/c.png"])
    with pytest.raises(ValueError, match="split: got images without file names"):
        split_by_files(Split(images, split.labels), ["cat", "dog"], ["cat/a.png"])
    with pytest.raises(ValueError, match="files: got 1, expected 4, one per image"):
        Split(images, split.labels, ("a.png",))


@pytest.mark.parametrize("labeled_in_pool", [True, False])
def test_what_is_held_out_of_the_pool_is_in_neither_set(labeled_in_pool):
    data = split_by_seed(
        make_examples([0, 1] * 20), names(2), labels_per_class=3, seed=5, labeled_in_pool=labeled_in_pool
    )
    smaller, images = hold_out_pool(data, fraction=0.25, seed=5)
    out, pool, labeled = set(shown(images)), set(shown(smaller.unlabeled)), set(shown(smaller.labeled))
    assert len(out) == round(0.25 * len(data.unlabeled))
    assert not out & (pool | labeled)
    assert out | pool == set(shown(data.unlabeled))
    assert smaller.truth.row.tolist() == shown(smaller.unlabeled)
    assert smaller.truth.labels.tolist() == [row % 2 for row in smaller.truth.row.tolist()]
    again, other = (set(shown(hold_out_pool(data, fraction=0.25, seed=seed)[1])) for seed in (5, 6))
    assert out == again != other


def test_shown_labels_are_never_held_out():
    data = split_as_labeled(make_examples([0, 1, 0, 1, -1]), names(2))
    smaller, images = hold_out_pool(data, fraction=0.9, seed=0)
    assert shown(images) == [4]
    assert shown(smaller.unlabeled) == [0, 1, 2, 3]
