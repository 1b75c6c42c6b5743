"""P(inlier) in the loss of a hand-made batch: in the metrics, and with `moment_inliers` in the constraint."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from momatch.constraints import MomentConstraint
from momatch.heads import HEADS
from momatch.training.objective import BatchFacts, Embeddings, build_objective
from tests.training.setting import POOL, D, K, small_batch, small_step, with_settings

#: Unlabelled samples of the batch: P(inlier), and true classes, of which -2 is an outlier and -1 is not known.
TRUST = torch.tensor([1.0, 0.0, 0.7, 0.2, 0.0, 0.5, 0.49, 1.0])
TRUTH = torch.tensor([0, -2, -2, -2, 1, 2, -1, -2])
#: Where they are in the pool.
INDICES = torch.tensor([3, 0, 7, 11, 5, 1, 9, 2])


def small_case(**settings):
    """An objective, a head and embeddings; the constraint is all of the loss of the unlabelled samples."""
    generator = torch.Generator().manual_seed(0)
    config = with_settings(algorithm="fixmatch", cutoff=0.0, unlabeled_weight=0.0, **settings)
    torch.manual_seed(0)
    head = HEADS[config.head](D, K)
    with torch.no_grad():
        head.centers.normal_(generator=generator)
    objective = build_objective(config, head, POOL)
    if objective.inlier_probability is not None:
        objective.inlier_probability[INDICES] = TRUST
    z = Embeddings(*(torch.randn(n, D, generator=generator, requires_grad=True) for n in (4, 8, 8)))
    labels = torch.tensor([0, 1, 2, 0])
    losses = objective(head, z, BatchFacts(labels, INDICES, TRUTH, 0.5))
    losses.total.backward()
    return SimpleNamespace(losses=losses, head=head, z=z, labels=labels, predicted=head(z.weak).argmax(1))


# --- In the constraint ---


@pytest.mark.parametrize("order", [1, 2, 3])
def test_samples_count_in_the_constraint_by_their_p_inlier(order):
    case = small_case(outliers="auto", moment_inliers=True, moment_order=order, moment_weight=0.3)
    assignment = TRUST.unsqueeze(1) * F.one_hot(case.predicted, K)
    constraint, centers = MomentConstraint(order), case.head.centers
    of_pool = sum(constraint(view, centers, assignment) for view in (case.z.weak, case.z.strong))
    expected = 0.3 * (constraint(case.z.labeled, centers, case.labels) + of_pool)
    torch.testing.assert_close(case.losses.parts["constraint_loss"], expected.detach())


@pytest.mark.parametrize("constraint", ["moments", "mmd", "kl"])
def test_what_is_no_inlier_does_not_move(constraint):
    trusted = small_case(outliers="auto", moment_inliers=True, constraint=constraint)
    for view in (trusted.z.weak, trusted.z.strong):
        moved = view.grad.abs().sum(1)
        assert torch.equal(moved == 0, TRUST == 0)
    # Without the setting they do, though their pseudo-labels do not count.
    plain = small_case(outliers="auto", constraint=constraint)
    for view in (plain.z.weak, plain.z.strong):
        assert (view.grad.abs().sum(1) > 0).all()


def test_labelled_samples_count_in_full():
    trusted, plain = (small_case(outliers="auto", moment_inliers=inliers) for inliers in (True, False))
    assert (plain.z.labeled.grad != 0).all()
    assert torch.equal(trusted.z.labeled.grad, plain.z.labeled.grad)


@pytest.mark.parametrize("outliers", ["none", "percentile"])
def test_without_p_inlier_the_setting_is_refused(outliers):
    with pytest.raises(ValueError, match=f"moment_inliers: got True with outliers '{outliers}', expected 'auto'"):
        small_case(outliers=outliers, moment_inliers=True)


def test_a_pool_of_inliers_alone_is_as_without_the_setting():
    """But for rounding: the samples are then assigned by weights that are 0 and 1."""
    steps = [small_step(with_settings(outliers="auto", moment_inliers=inliers)) for inliers in (True, False)]
    for number in range(3):
        for step in steps:
            step(small_batch(number), lr=0.05, progress=0.0)
    trusted, plain = (step.interval_metrics() for step in steps)
    assert trusted["constraint_loss"] == pytest.approx(plain["constraint_loss"], rel=1e-4)
    assert plain["constraint_loss"] > 0.01


# --- In the metrics ---


def test_metrics_of_a_hand_made_batch():
    means = small_case(outliers="auto").losses.means
    # Found: P(inlier) below one half, which is true of samples 1, 3, 4 and 6; outliers: samples 1, 2, 3 and 7.
    assert float(means["outlier_share"]) == 4 / 8
    assert float(means["true_outliers"]) == 4 / 8
    assert float(means["found_outliers"]) == 2 / 8
    # Every prediction is sure enough, but what was found has no pseudo-label, and the others have one by their P(inlier).
    assert float(means["outlier_weight"]) == pytest.approx((0.7 + 1.0) / 8)
    assert float(means["utilisation"]) == pytest.approx((1.0 + 0.7 + 0.5 + 1.0) / 8)


def test_without_a_rule_no_outliers_are_found():
    means = small_case(outliers="none").losses.means
    assert float(means["outlier_share"]) == float(means["found_outliers"]) == 0
    assert float(means["true_outliers"]) == 4 / 8
    assert float(means["outlier_weight"]) == 4 / 8


def known_outliers(step, outliers, p_inlier):
    step.truth[outliers] = -2
    step.objective.inlier_probability.copy_(p_inlier)


def counts(batch, outliers, p_inlier):
    """Of a batch: samples, found outliers, true ones, and both."""
    in_batch = batch.unlabeled_indices.tolist()
    found, true = ({i for i in in_batch if which(i)} for which in (lambda i: p_inlier[i] < 0.5, outliers.__contains__))
    return torch.tensor([len(in_batch), len(found), len(true), len(found & true)])


def test_precision_and_recall_are_those_of_all_steps_since_the_last_line():
    """Of the sums, not means of each step's."""
    step = small_step(with_settings(algorithm="fixmatch", cutoff=0.0, outliers="auto"))
    outliers, p_inlier = [0, 1, 2, 3, 4], torch.ones(POOL)
    p_inlier[[0, 1, 2, 8, 9]] = torch.tensor([0.0, 0.1, 0.4, 0.3, 0.0])
    known_outliers(step, outliers, p_inlier)
    for first in (0, 2):
        batches = [small_batch(number) for number in (first, first + 1)]
        for batch in batches:
            step(batch, lr=0.0, progress=0.0)
        samples, found, true, both = sum(counts(batch, outliers, p_inlier) for batch in batches).tolist()
        assert 0 < both < min(found, true)
        metrics = step.interval_metrics()
        assert metrics["true_outlier_share"] == pytest.approx(true / samples)
        assert metrics["outlier_share"] == pytest.approx(found / samples)
        assert metrics["outlier_precision"] == pytest.approx(both / found)
        assert metrics["outlier_recall"] == pytest.approx(both / true)


OF_OUTLIERS = ("true_outlier_share", "outlier_precision", "outlier_recall", "outliers_pseudo_labeled")


def test_without_known_outliers_there_is_nothing_to_say():
    step = small_step(with_settings(outliers="auto"))
    step.objective.inlier_probability.fill_(0.1)
    step(small_batch(), lr=0.05, progress=0.0)
    metrics = step.interval_metrics()
    assert not metrics.keys() & set(OF_OUTLIERS)
    assert metrics["outlier_share"] == 1


def test_if_nothing_is_found_there_is_no_precision():
    step = small_step(with_settings(outliers="auto"))
    known_outliers(step, list(range(POOL)), torch.ones(POOL))
    step(small_batch(), lr=0.05, progress=0.0)
    metrics = step.interval_metrics()
    assert metrics["outlier_precision"] is None
    assert metrics["outlier_recall"] == 0
    assert metrics["true_outlier_share"] == 1
