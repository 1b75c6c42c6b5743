import copy
import math
from dataclasses import replace
from itertools import cycle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momatch.algorithms import ALGORITHMS
from momatch.config.presets import PRESETS
from momatch.heads import log_posterior
from momatch.training.average import AveragedModel
from momatch.training.guard import Guard
from momatch.training.objective import BatchFacts, Embeddings
from momatch.training.step import METRICS
from tests.training.setting import CONFIG, POOL, K, small_batch, small_classifier, small_step, with_settings


def metric(step, name):
    return float(step.metrics[METRICS.index(name)])


def parameters(step):
    return [parameter.detach().clone() for parameter in step.classifier.parameters()]


HEADS = [
    {"head": "aagmm", "moment_order": 2},
    {"head": "kmeans", "moment_order": 1},
    {"head": "linear", "moment_order": 0},
]
# Heads and algorithms do not know each other: each algorithm has one of the heads, and each head several algorithms.
SETTINGS = [{"algorithm": algorithm, **head} for algorithm, head in zip(ALGORITHMS, cycle(HEADS), strict=False)]
SETTINGS += HEADS
NEW = [name for name in ALGORITHMS if name not in ("flexmatch", "fixmatch", "freematch", "softmatch", "supervised")]
SETTINGS += [{"algorithm": algorithm, "outliers": "percentile", "accumulate": 2} for algorithm in NEW]
SETTINGS += [{"algorithm": algorithm, "outliers": "auto", "moment_inliers": True} for algorithm in NEW]
SETTINGS += [{"algorithm": algorithm, "forward": "split"} for algorithm in ("uda", "comatch", "simmatch")]
SETTINGS += [{"moment_order": order} for order in (0, 3, 4)]
SETTINGS += [{"constraint": constraint} for constraint in ("mmd", "kl")]
SETTINGS += [{"outliers": rule} for rule in ("percentile", "annealed", "chi2")]
SETTINGS += [
    {"outliers": "percentile", "outlier_refit_interval": 5},
    {"outliers": "percentile", "outlier_score": "density"},
    {"outliers": "auto"},
    {"outliers": "auto", "moment_inliers": True},
]
SETTINGS += [
    {"forward": "split"},
    {"accumulate": 2},
    {"optimizer": "adamw"},
    {"clip_norm": 0.0},
    {"channels_last": False},
]
SETTINGS += [{"moment_variant": "published"}, {"moment_assignment": "prediction"}, {"moment_whiten": True}]


def name_of(settings):
    return "-".join(f"{key}={value}" for key, value in settings.items())


@pytest.mark.parametrize("settings", SETTINGS, ids=name_of)
def test_whole_step_never_waits_for_the_device(settings):
    # On "meta" a read-back, a data-dependent shape or a stray CPU tensor raises.
    config = with_settings(**settings)
    step = small_step(config, batch_norm=True, device="meta")
    u = 0 if config.algorithm == "supervised" else 8
    for number in range(2):
        step(small_batch(number, device="meta", u=u), lr=0.1, progress=0.5)
    assert step.metrics.is_meta


@pytest.mark.parametrize("settings", SETTINGS, ids=name_of)
def test_every_setting_trains(settings):
    config = with_settings(**settings)
    step = small_step(config, batch_norm=True)
    before, average_before = parameters(step), copy.deepcopy(step.average.classifier.state_dict())
    u = 0 if config.algorithm == "supervised" else 8
    for number in range(3):
        step(small_batch(number, u=u), lr=0.05, progress=number / 3)
    assert metric(step, "good_steps") == 3
    assert metric(step, "skipped_steps") == 0
    assert all(parameter.isfinite().all() for parameter in step.classifier.parameters())
    changed = [not torch.equal(old, new) for old, new in zip(before, step.classifier.parameters(), strict=True)]
    assert all(changed)
    assert any(
        not torch.equal(value, average_before[name]) for name, value in step.average.classifier.state_dict().items()
    )


@pytest.mark.parametrize("algorithm", ["mixmatch", "remixmatch", "meanteacher", "flexmatch"])
def test_only_the_pass_that_is_trained_on_counts_in_the_running_statistics(algorithm):
    step = small_step(with_settings(algorithm=algorithm), batch_norm=True)
    step(small_batch(0), lr=0.05, progress=0.5)
    (tracked,) = [value for name, value in step.classifier.state_dict().items() if name.endswith("num_batches_tracked")]
    assert int(tracked) == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_teachers_projector_is_averaged_as_its_network_is(accumulate):
    step = small_step(with_settings(algorithm="simmatchv2", accumulate=accumulate, ema_decay=0.05))
    algorithm = step.objective.algorithm
    before = {name: value.detach().clone() for name, value in algorithm.projector.named_parameters()}
    step(small_batch(0), lr=0.05, progress=0.5)
    for name, value in algorithm.projector.named_parameters():
        average = algorithm.teacher.get_buffer(name.replace(".", "_"))
        torch.testing.assert_close(average, 0.05 * before[name] + 0.95 * value.detach())


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_follows_single_precision(precision):
    exact, half = small_step(), small_step(with_settings(precision=precision))
    for number in range(3):
        for step in (exact, half):
            step(small_batch(number), lr=0.05, progress=0.0)
    assert metric(half, "good_steps") + metric(half, "skipped_steps") == 3
    if precision == "bfloat16":
        assert metric(half, "loss") == pytest.approx(metric(exact, "loss"), rel=0.05)


def test_head_and_constraint_see_single_precision(monkeypatch):
    step = small_step(with_settings(precision="bfloat16"))
    seen = []
    forward = step.objective.forward
    monkeypatch.setattr(
        step.objective,
        "forward",
        lambda head, z, *args, **kw: seen.append(z.strong.dtype) or forward(head, z, *args, **kw),
    )
    step(small_batch(), lr=0.05, progress=0.0)
    assert seen == [torch.float32]


def test_loss_is_that_of_the_formula():
    """Order 2, FlexMatch at its first step (beta = 0, so every sample counts), against plain autograd in float64."""
    config = with_settings(clip_norm=0.0, momentum=0.0, weight_decay=0.0, lr=1.0)
    step = small_step(config)
    batch = small_batch()
    labeled = step.weak(batch.labeled, seed=0, step=0, view=2)
    weak = step.weak(batch.unlabeled, seed=0, step=0)
    strong = step.strong(batch.unlabeled, seed=0, step=0)
    model = copy.deepcopy(step.classifier).double()
    z = [model.embed(model.preprocess(images)) for images in (labeled, weak, strong)]
    pseudo = model.head(z[1]).argmax(-1)
    loss = F.cross_entropy(model.head(z[0]), batch.labels) + F.cross_entropy(model.head(z[2]), pseudo)
    for view, clusters in zip(z, (batch.labels, pseudo, pseudo), strict=True):
        for k in range(K):
            u = view[clusters == k] - model.head.centers[k]
            if len(u) == 0:
                continue
            share, first, second = len(u) / len(view), u.mean(0), u.T @ u / len(u)
            eye = torch.eye(len(second), dtype=torch.bool)
            diagonal, rest = (second[eye] - 1).square().mean(), second[~eye].square().mean()
            loss = loss + share * (first.square().mean() + 0.5 * 0.5 * (diagonal + rest))
    loss.backward()
    before = parameters(step)
    step(batch, lr=1.0, progress=0.0)
    assert metric(step, "loss") == pytest.approx(loss.item(), rel=1e-5)
    for old, new, exact in zip(before, step.classifier.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(old - new, exact.grad.float(), rtol=2e-4, atol=2e-6)


def test_split_forward_gives_the_weak_view_no_gradient():
    joint, split = small_step(), small_step(with_settings(forward="split"))
    seen = {}
    for name, step in (("joint", joint), ("split", split)):
        inner = step.objective.forward

        def watch(head, z, *args, name=name, inner=inner, **kw):
            seen[name] = (z.labeled.requires_grad, z.weak.requires_grad, z.strong.requires_grad)
            return inner(head, z, *args, **kw)

        step.objective.forward = watch
        step(small_batch(), lr=0.05, progress=0.0)
    assert seen == {"joint": (True, True, True), "split": (True, False, True)}
    # Without batch norm the passes do not see each other: before the first update all but the constraint is equal.
    for part in ("supervised_loss", "unlabeled_loss"):
        assert metric(joint, part) == pytest.approx(metric(split, part), rel=1e-6)


def test_accumulated_gradients_are_means_over_the_parts():
    settings = {
        "clip_norm": 0.0,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "moment_order": 0,
        "algorithm": "fixmatch",
        "cutoff": 0.0,
    }
    whole, parts = small_step(with_settings(**settings)), small_step(with_settings(**settings, accumulate=2))
    for step in (whole, parts):
        step(small_batch(), lr=0.1, progress=0.0)
    for one, two in zip(whole.classifier.parameters(), parts.classifier.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    assert metric(whole, "loss") == pytest.approx(metric(parts, "loss"), rel=1e-6)


def test_average_follows_its_formula_and_copies_buffers():
    step = small_step(with_settings(ema_decay=0.2), batch_norm=True)
    expected = parameters(step)
    for number in range(4):
        step(small_batch(number), lr=0.05, progress=0.0)
        decay = min(0.2, (1 + number) / (10 + number))
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, parameters(step), strict=True)]
    for value, average in zip(expected, step.average.classifier.parameters(), strict=True):
        torch.testing.assert_close(average, value)
    for live, copied in zip(step.classifier.buffers(), step.average.classifier.buffers(), strict=True):
        assert torch.equal(live, copied)


def test_average_forgets_the_random_weights_that_training_starts_from():
    live = small_classifier()
    for parameter in live.parameters():
        parameter.data.fill_(1.0)
    average = AveragedModel(live, 0.999)
    for parameter in live.parameters():
        parameter.data.zero_()
    for number in range(20):
        average.update(number, torch.ones(()))
    # With a constant decay of 0.999, 98 % would be left.
    assert max(float(parameter.max()) for parameter in average.classifier.parameters()) < 1e-6


def test_decay_of_the_papers_presets_is_their_protocols():
    # The decay reaches the constant value of the protocol after 0.9 % of the steps, when no initial weights are left.
    average = AveragedModel(small_classifier(), PRESETS["paper-cifar10"]["ema_decay"])
    assert average.decay_at(8989) < average.decay_at(8990) == average.decay_at(2**20) == 0.999
    assert math.prod(average.decay_at(step) for step in range(8990)) < 1e-20


def test_skipped_steps_leave_the_average_alone():
    live = small_classifier()
    average = AveragedModel(live, 0.9)
    before = [parameter.clone() for parameter in average.classifier.parameters()]
    for parameter in live.parameters():
        parameter.data.add_(1.0)
    average.update(0, torch.zeros(()))
    assert all(torch.equal(old, new) for old, new in zip(before, average.classifier.parameters(), strict=True))


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("good", [True, False])
def test_guard_undoes_bad_steps_alone(readable, good, monkeypatch):
    monkeypatch.setattr("momatch.training.guard.is_readable", lambda tensor: readable)
    tensors = [torch.zeros(3), torch.zeros(2, dtype=torch.int64)]
    guard = Guard(tensors)
    guard.save()
    for tensor in tensors:
        tensor.add_(1)
    guard.restore_unless(torch.tensor(good))
    assert all(bool((tensor == int(good)).all()) for tensor in tensors)


def test_interval_metrics_are_means_since_the_last_call():
    step, other = small_step(), small_step()
    for number in range(3):
        step(small_batch(number), lr=0.05, progress=0.0)
    first = step.interval_metrics()
    losses = []
    for number in range(3):
        other(small_batch(number), lr=0.05, progress=0.0)
        losses.append(other.interval_metrics()["loss"])
    assert first["loss"] == pytest.approx(sum(losses) / 3)
    assert first["skipped_steps"] == 0
    assert step.interval_metrics()["loss"] is None


def test_gradient_is_clipped():
    step = small_step(with_settings(clip_norm=1e-3, momentum=0.0, weight_decay=0.0))
    before = parameters(step)
    step(small_batch(), lr=1.0, progress=0.0)
    moved = torch.stack([(old - new).square().sum() for old, new in zip(before, parameters(step), strict=True)])
    assert float(moved.sum().sqrt()) == pytest.approx(1e-3, rel=1e-3)
    assert metric(step, "gradient_norm") > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("first", [True, False])
def test_bad_step_changes_nothing_and_is_counted(optimizer, where, first, unchecked):
    step = small_step(with_settings(optimizer=optimizer), batch_norm=True)
    twin = small_step(with_settings(optimizer=optimizer), batch_norm=True)
    good_steps = [] if first else [0, 1]
    for number in good_steps:
        step(small_batch(number), lr=0.05, progress=0.0)
        twin(small_batch(number), lr=0.05, progress=0.0)
    before, average = copy.deepcopy(step.classifier.state_dict()), copy.deepcopy(step.average.classifier.state_dict())
    if where == "loss":
        handle = step.classifier.backbone[0].register_forward_hook(lambda module, args, out: out * torch.nan)
    else:
        handle = step.classifier.projection.weight.register_hook(lambda gradient: gradient * torch.inf)
    for number in (7, 8):
        step(small_batch(number), lr=0.05, progress=0.0)
    handle.remove()
    floating = [name for name, value in before.items() if value.is_floating_point()]
    for name in floating:
        assert torch.equal(before[name], step.classifier.state_dict()[name]), name
        assert torch.equal(average[name], step.average.classifier.state_dict()[name]), name
    assert metric(step, "skipped_steps") == 2
    assert metric(step, "skipped_in_a_row") == 2
    assert metric(step, "longest_skip") == 2
    assert metric(step, "good_steps") == len(good_steps)
    assert step.metrics.isfinite().all()
    # What follows is what would have followed without them, the optimiser's memory included.
    if where == "loss":
        for trained in (step, twin):
            trained(small_batch(9), lr=0.05, progress=0.0)
        for one, two in zip(step.classifier.parameters(), twin.classifier.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)
    assert metric(step, "skipped_in_a_row") == (0 if where == "loss" else 2)


def test_outliers_leave_no_trace_in_the_pseudo_labels():
    step = small_step(with_settings(outliers="percentile", outlier_percentile=0.0))
    step(small_batch(), lr=0.05, progress=0.0)
    # The lowest labelled score is the threshold: nearly everything is an outlier.
    share = metric(step, "outlier_share")
    assert share > 0.5
    assert metric(step, "utilisation") <= 1 - share + 1e-6


def test_metrics_are_those_of_the_batch():
    step = small_step(with_settings(algorithm="fixmatch", cutoff=0.0))
    batch = small_batch()
    with torch.no_grad():
        weak = step.weak(batch.unlabeled, seed=0, step=0)
        predicted = log_posterior(step.classifier(weak)).argmax(-1)
    right = (predicted == batch.unlabeled_indices % K).float().mean()
    step(batch, lr=0.05, progress=0.0)
    assert metric(step, "utilisation") == 1
    assert metric(step, "correct_weight") / metric(step, "known_weight") == pytest.approx(float(right))


def test_same_batches_give_the_same_weights_and_other_seeds_others():
    def trained(seed):
        step = small_step(with_settings(seed=seed), batch_norm=True)
        for number in range(3):
            step(small_batch(number), lr=0.05, progress=0.0)
        return parameters(step)

    one, same, other = trained(0), trained(0), trained(1)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_objective_takes_an_empty_pool_for_supervised_training():
    step = small_step(with_settings(algorithm="supervised"))
    z = Embeddings(torch.randn(4, 4), torch.empty(0, 4), torch.empty(0, 4))
    empty = torch.empty(0, dtype=torch.int64)
    losses = step.objective(step.classifier.head, z, BatchFacts(torch.arange(4) % K, empty, empty, 0.0))
    assert set(losses.parts) == {"supervised_loss", "constraint_loss"}


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("mixmatch", "a pass of their own anyway"),
        ("meanteacher", "their own anyway"),
        ("simmatchv2", "their own anyway"),
        ("pseudolabel", "the very view"),
    ],
)
def test_split_forward_is_refused_where_it_makes_no_sense(algorithm, reason):
    with pytest.raises(ValueError, match=rf"forward: got 'split' with algorithm .*{reason}"):
        small_step(with_settings(algorithm=algorithm, forward="split"))


def test_what_is_not_a_square_image_is_not_rotated():
    step = small_step(with_settings(algorithm="remixmatch"))
    batch = small_batch()
    flat = replace(batch, unlabeled=batch.unlabeled[:, :, :6], labeled=batch.labeled[:, :, :6])
    with pytest.raises(ValueError, match=r"rotation_weight: got samples of shape \(1, 6, 8\), expected square images"):
        step(flat, lr=0.1, progress=0.0)
    unturned = small_step(with_settings(algorithm="remixmatch", rotation_weight=0.0))
    unturned(flat, lr=0.1, progress=0.0)
    assert metric(unturned, "good_steps") == 1


def test_rotated_images_leave_no_trace_in_the_statistics(monkeypatch):
    """Those of batch norm are for upright images. With turned ones among them, digits lose 14 percentage points."""
    turned, blank = (small_step(with_settings(algorithm="remixmatch"), batch_norm=True) for _ in range(2))
    turned(small_batch(), lr=0.05, progress=0.5)
    monkeypatch.setattr("momatch.training.step._rotate", lambda images, turns: torch.zeros_like(images))
    blank(small_batch(), lr=0.05, progress=0.5)
    rotation_losses = [step.interval_metrics()["rotation_loss"] for step in (turned, blank)]
    assert rotation_losses[0] != rotation_losses[1]
    for one, other in zip(turned.classifier.buffers(), blank.classifier.buffers(), strict=True):
        assert torch.equal(one, other)
    assert all(norm.track_running_stats for norm in turned.classifier.modules() if isinstance(norm, nn.BatchNorm2d))


def test_terms_of_an_algorithm_are_logged_by_name():
    step = small_step(with_settings(algorithm="comatch"))
    for number in range(3):
        step(small_batch(number), lr=0.05, progress=0.5)
    metrics = step.interval_metrics()
    assert metrics["contrast_loss"] > 0
    parts = ("supervised_loss", "unlabeled_loss", "contrast_loss", "constraint_loss")
    assert metrics["loss"] == pytest.approx(sum(metrics[name] for name in parts), rel=1e-5)
    assert step.interval_metrics()["contrast_loss"] is None


def test_teacher_leaves_no_trace_in_the_average():
    """Its pass uses the batch's statistics, as the student's does, but must not change its own."""
    step = small_step(with_settings(algorithm="meanteacher"), batch_norm=True)
    step(small_batch(), lr=0.05, progress=0.5)
    assert not any(module.training for module in step.average.classifier.modules())
    for live, copied in zip(step.classifier.buffers(), step.average.classifier.buffers(), strict=True):
        assert torch.equal(live, copied)


def test_setting_is_small():
    assert CONFIG.unlabeled_batch_size <= POOL
    assert sum(parameter.numel() for parameter in small_classifier().parameters()) < 1000
