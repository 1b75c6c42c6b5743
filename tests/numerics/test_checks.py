"""The shared checks: what they let through, what they refuse, and when they may look at values."""

import math

import pytest
import torch

from momatch.numerics.checks import check_embeddings, check_fraction, check_labels, check_positive_int, is_readable


def test_values_are_read_on_the_cpu_only():
    assert is_readable(torch.ones(2))
    assert is_readable(torch.ones(2, requires_grad=True))
    assert not is_readable(torch.ones(2, device="meta"))


def test_values_are_not_read_inside_transforms():
    answers = []

    def look(x):
        answers.append(is_readable(x))
        return x.sum()

    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    assert answers == [False, False]


def test_values_are_not_read_while_compiling(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not is_readable(torch.ones(2))


@pytest.mark.parametrize("value", [1, 2, 10**9])
def test_positive_integers_pass(value):
    assert check_positive_int("size", value) == value


@pytest.mark.parametrize("value", [0, -3, 1.0, True, "4", None])
@pytest.mark.usefixtures("unchecked")
def test_other_values_are_no_positive_integers(value):
    with pytest.raises(ValueError, match=rf"size: got {value!r}, expected an integer of at least 1"):
        check_positive_int("size", value)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 0, 1])
@pytest.mark.usefixtures("unchecked")
def test_fractions_pass(value):
    result = check_fraction("share", value)
    assert result == value
    assert isinstance(result, float)


@pytest.mark.parametrize("value", [-1e-9, 1.0000001, math.nan, math.inf])
def test_other_values_are_no_fractions(value):
    with pytest.raises(ValueError, match=rf"share: got {value!r}, expected a number from 0 to 1"):
        check_fraction("share", value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_embeddings_pass(dtype):
    for shape in [(3,), (2, 3), (0, 3), (4, 2, 3)]:
        check_embeddings(torch.ones(shape, dtype=dtype), 3)
    check_embeddings(torch.ones(2, 3, dtype=dtype), 3, batch_dims=1)


@pytest.mark.parametrize(
    ("shape", "batch_dims", "message"),
    [
        ((), None, r"points: got shape \(\), expected \(\.\.\., 3\)"),
        ((3, 2), None, r"points: got shape \(3, 2\), expected \(\.\.\., 3\)"),
        ((3,), 1, r"points: got shape \(3,\), expected \(n, 3\)"),
        ((1, 2, 3), 1, r"points: got shape \(1, 2, 3\), expected \(n, 3\)"),
        ((0, 3), 1, r"points: got an empty batch \(0, 3\), expected at least one sample"),
    ],
)
def test_embeddings_of_another_shape_are_refused(shape, batch_dims, message):
    with pytest.raises(ValueError, match=message):
        check_embeddings(torch.ones(shape), 3, name="points", batch_dims=batch_dims)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_embeddings_of_another_dtype_are_refused(dtype):
    with pytest.raises(ValueError, match=rf"z: got dtype {dtype}, expected floating point"):
        check_embeddings(torch.ones(2, 3, dtype=dtype), 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_labels_pass(dtype):
    check_labels(torch.tensor([0, 2, 1], dtype=dtype), 3, 3, name="labels")
    check_labels(torch.empty(0, dtype=dtype), 0, 3, name="labels")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1]), r"labels: got shape \(2,\) and dtype torch.int64, expected \(3,\) class numbers"),
        (torch.zeros(3, 1).long(), r"labels: got shape \(3, 1\) and dtype torch.int64, expected \(3,\)"),
        (torch.zeros(3), r"labels: got shape \(3,\) and dtype torch.float32, expected .*integer dtype"),
        (torch.zeros(3).bool(), r"labels: got shape \(3,\) and dtype torch.bool, expected .*integer dtype"),
        (
            torch.tensor([0, -1, 1]),
            r"labels: got class numbers from -1 to 1, expected 0 to 2; leave unlabelled samples",
        ),
        (torch.tensor([0, 3, 1]), r"labels: got class numbers from 0 to 3, expected 0 to 2"),
    ],
)
def test_bad_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        check_labels(labels, 3, 3, name="labels")


def test_the_range_of_labels_is_not_read_where_that_would_wait():
    check_labels(torch.empty(3, dtype=torch.int64, device="meta"), 3, 3, name="labels")
