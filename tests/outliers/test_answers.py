"""How unusual a classifier's answer is: against the definition, in its invariances and at its extremes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from momatch.outliers.judge import Judge
from tests.outliers.naive_answers import WEIGHT, naive_unusual


def answers(n, K, *, seed=0, sure=4.0, dtype=torch.float64):
    """Features, classes and posteriors of a classifier that is mostly right."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % K
    logits = torch.randn(n, K, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += sure
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64) + labels[:, None]
    return x.to(dtype), labels, logits.softmax(1).to(dtype)


def fitted(x, labels, posterior, *, num_classes=None, size=50):
    judge = Judge(x.shape[1], num_classes or posterior.shape[1], judges_answers=True).to(x.dtype)
    return judge.fit(list(zip(x.split(size), labels.split(size), posterior.split(size), strict=True)))


@pytest.mark.parametrize(("n", "K"), [(60, 2), (90, 3), (300, 10), (25, 10)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 2e-2)])
def test_the_definition(n, K, dtype, tolerance):
    x, labels, posterior = answers(n, K, dtype=dtype)
    judge = fitted(x, labels, posterior)
    new = answers(40, K, seed=1, sure=1.0)[2]
    unusual = torch.from_numpy(naive_unusual(posterior.double().numpy(), labels.numpy(), new.numpy()))
    torch.testing.assert_close(judge.answers(new.to(dtype)).double(), unusual, rtol=tolerance, atol=tolerance)
    distance = torch.linspace(1, 5, 40, dtype=dtype)
    deviations = (distance - judge.typical_distance) / judge.distance_deviation
    expected = deviations.double() + WEIGHT * unusual
    torch.testing.assert_close(judge.score(distance, new.to(dtype)).double(), expected, rtol=tolerance, atol=tolerance)


def test_the_features_are_judged_as_without_answers():
    x, labels, posterior = answers(90, 3)
    alone, judge = Judge(4, 3).double().fit([(x, labels)]), fitted(x, labels, posterior)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(judge.state_dict()[name], value, rtol=1e-9, atol=1e-9)


@given(seed=st.integers(0, 999), size=st.integers(1, 100))
@settings(max_examples=10)
def test_neither_order_nor_batches_nor_names_of_classes_matter(seed, size):
    x, labels, posterior = answers(90, 3)
    judge = fitted(x, labels, posterior)
    generator = torch.Generator().manual_seed(seed)
    order, names = torch.randperm(90, generator=generator), torch.randperm(3, generator=generator)
    other = fitted(x[order], names[labels[order]], posterior[order][:, names.argsort()], size=size)
    new = answers(20, 3, seed=1, sure=0.5)[2]
    torch.testing.assert_close(other.answers(new[:, names.argsort()]), judge.answers(new), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sure", [6.0, 8.0, 16.0, 25.0, 35.0, 60.0])
def test_an_answer_between_the_classes_is_unusual_and_new_inliers_are_not(sure, dtype):
    """However certain the classifier is: from 30 nats on its answers to the fit do not differ at all."""
    x, labels, posterior = answers(300, 3, sure=sure, dtype=dtype)
    judge = fitted(x, labels, posterior)
    between = torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=dtype)
    unusual = judge.answers(between)
    assert (unusual > 3).all()
    assert (unusual <= 10).all()
    new = judge.answers(answers(300, 3, seed=1, sure=sure, dtype=dtype)[2])
    assert float(new.abs().mean()) < 1.5
    assert float(new.abs().max()) < 8


def test_samples_with_wrong_labels_do_not_make_unsure_answers_usual():
    x, labels, posterior = answers(900, 3, sure=8.0)
    labels[:45] = (labels[:45] + 1) % 3
    uniform = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    assert float(fitted(x, labels, posterior).answers(uniform)) > 4


def test_answers_of_a_rare_class_are_as_usual_as_others():
    x, labels, posterior = answers(4000, 2, sure=5.0)
    some = (labels == 0) | (torch.arange(4000) % 100 < 2)
    judge = fitted(x[some], labels[some], posterior[some])
    _, truth, new = answers(1000, 2, seed=1, sure=5.0)
    means = [float(judge.answers(new[truth == k]).mean()) for k in (0, 1)]
    assert abs(means[0] - means[1]) < 0.3


# --- Extremes ---


@pytest.mark.parametrize(("n", "K"), [(1, 1), (9, 1), (1, 3), (2, 2), (3, 3), (4, 3)])
def test_few_samples_and_classes(n, K):
    x, labels, posterior = answers(n, K, dtype=torch.float32)
    judge = fitted(x, labels, posterior)
    new = torch.full((5, K), 1 / K)
    assert judge.verdict(torch.randn(5, 4), new).score.isfinite().all()
    assert float(judge.answers.deviation) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_answers_and_those_that_are_all_alike(dtype):
    x, labels, _ = answers(60, 3, dtype=dtype)
    for posterior in (torch.eye(3, dtype=dtype)[labels], torch.full((60, 3), 1 / 3, dtype=dtype)):
        judge = fitted(x, labels, posterior)
        assert judge.answers(posterior).abs().max() < 1e-3
        for new in (torch.eye(3, dtype=dtype), torch.full((3, 3), 1 / 3, dtype=dtype)):
            assert judge.verdict(x[:3], new).score.isfinite().all()


def test_a_class_without_samples():
    x, labels, posterior = answers(60, 3)
    posterior = torch.cat([posterior * 0.9, torch.full((60, 2), 0.05, dtype=torch.float64)], 1)
    judge = fitted(x, labels, posterior, num_classes=5)
    assert judge.answers(posterior).isfinite().all()
    assert np.allclose(judge.answers(posterior), naive_unusual(posterior, labels, posterior), atol=1e-6)


@pytest.mark.parametrize("K", [2, 3, 6])
def test_answers_between_a_class_and_one_without_samples_are_unusual(K):
    generator = torch.Generator().manual_seed(0)
    for present in range(1, K):
        labels = torch.arange(40 * present) % present
        logits = 15.0 * torch.eye(K, dtype=torch.float64)[labels]
        posterior = (logits + torch.randn(logits.shape, generator=generator, dtype=torch.float64)).softmax(1)
        judge = fitted(torch.randn(len(labels), 4, dtype=torch.float64), labels, posterior, num_classes=K)
        between = torch.zeros(1, K, dtype=torch.float64)
        between[0, 0] = between[0, K - 1] = 0.5
        assert judge.answers(between) > judge.answers(posterior).amax() + 1.0


def test_half_precision_and_damaged_posteriors():
    x, labels, posterior = answers(90, 3, dtype=torch.float32)
    judge, distance = fitted(x, labels, posterior.half()), torch.ones(4)
    half = judge.score(distance, posterior[:4].half())
    torch.testing.assert_close(half, fitted(x, labels, posterior).score(distance, posterior[:4]), rtol=0.1, atol=0.1)
    assert judge.score(distance, posterior[:4] * math.nan).tolist() == [math.inf] * 4


# --- As a part of the judge ---


def test_state_and_export(unchecked):
    x, labels, posterior = answers(90, 3, dtype=torch.float32)
    judge = fitted(x, labels, posterior)
    copy = Judge(4, 3, judges_answers=True)
    copy.load_state_dict(judge.state_dict())
    assert torch.equal(copy.verdict(x, posterior).score, judge.verdict(x, posterior).score)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*answers"):
        Judge(4, 3).load_state_dict(judge.state_dict())

    class Score(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.judge = judge

        def forward(self, x, posterior):
            return self.judge.verdict(x, posterior).score

    batch = {0: torch.export.Dim("n", min=1, max=1000)}
    program = torch.export.export(Score(), (x[:4], posterior[:4]), dynamic_shapes=(batch, batch), strict=False)
    for n in (1, 3, 90):
        torch.testing.assert_close(program.module()(x[:n], posterior[:n]), Score()(x[:n], posterior[:n]))


def test_a_pickle_of_an_older_version_counts_the_entropy():
    x, labels, posterior = answers(60, 3)
    judge = Judge(4, 3).double().fit([(x, labels)])
    older = Judge.__new__(Judge)
    older.__setstate__({name: value for name, value in judge.__dict__.items() if name != "answers"})
    assert torch.equal(older.verdict(x, posterior).score, judge.verdict(x, posterior).score)


def test_misuse(unchecked):
    x, labels, posterior = answers(60, 3)
    judge = Judge(4, 3, judges_answers=True).double()
    for batch, message in [
        (
            (x, labels),
            "got 2 tensors in a batch, expected features and classes, and posteriors, which judges_answers asks for",
        ),
        ((x, labels, posterior, posterior), "got 4 tensors in a batch"),
        ((x, labels, posterior[:, :2]), r"posterior: got shape \(60, 2\) of torch.float64, expected \(60, 3\)"),
        ((x, labels, posterior[:5]), r"posterior: got shape \(5, 3\)"),
        ((x, labels, labels[:, None].expand(60, 3)), r"posterior: got shape \(60, 3\) of torch.int64"),
        ((x, labels, posterior * math.nan), "posterior: got 60 of 60 samples with features that are not finite"),
        ((x, labels, 0.5 * posterior), "posterior: got 60 of 60 rows whose sum is not 1, such as 0.5"),
        ((x, labels, posterior.numpy()), r"posterior: got a ndarray, expected a tensor \(60, 3\)"),
        (
            (x, labels, 5 * posterior.log()),
            r"posterior: got values from -.* expected probabilities.* are these logits",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            judge.fit([batch])
    with pytest.raises(ValueError, match="expected features and classes alone: judges_answers is off"):
        Judge(4, 3).double().fit([(x, labels, posterior)])
    with pytest.raises(ValueError, match="judge: got no fit"):
        judge.score(torch.ones(60), posterior)
