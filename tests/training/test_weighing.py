"""Training with outliers="auto": P(inlier) of the pool, when it is judged, what it changes and what is saved of it."""

from dataclasses import replace

import pytest
import torch

from momatch.config import TrainConfig
from momatch.data.dataset import Dataset, Split
from momatch.data.load import load_dataset
from momatch.embedding import embed
from momatch.evaluation.pool_judging import judge_pool
from momatch.models.outputs import run_classifier
from momatch.storage.checkpoint import FOLDER, load_newest
from momatch.training import fit as fit_module
from momatch.training.fit import DivergenceError, fit
from momatch.training.refit import MOST_WEIGHINGS, weigh_pool, weighing_steps
from momatch.training.setup import build_training
from momatch.training.state import History, collect, restore
from tests.embedding.setting import small_options
from tests.training import test_fit
from tests.training.test_fit import StopAt, assert_same_run, metrics_of
from tests.training.test_inlier_objective import OF_OUTLIERS

#: For `far_dataset`.
WITH_NOISE = {"held_out_classes": "noise", "held_out_in_pool": True, "labels_per_class": 12}
WEIGHTS = "objective.inlier_probability"


def config(folder, **settings):
    return test_fit.config(folder, **{"judge": "stages", **settings})


@pytest.fixture
def weighings(monkeypatch):
    """The steps before which the pool was judged."""
    seen = []

    def noted(training):
        seen.append(training.stream.step)
        weigh_pool(training)

    monkeypatch.setattr(fit_module, "weigh_pool", noted)
    return seen


def long_enough(folder, **settings):
    """A run that is long enough for a few passes over a small pool."""
    return config(folder, outliers="auto", held_out_classes="8,9", labels_per_class=4, **settings)


def small_pool(size=400):
    digits = load_dataset("digits", size=8)
    few = slice(0, size)
    return replace(digits, train=Split(digits.train.images[few], digits.train.labels[few]))


# --- When ---


@pytest.mark.parametrize("pool_size", [1, 100, 50_000, 10**9])
@pytest.mark.parametrize("steps", [1, 2, 7, 1000, 2**20])
def test_the_pool_is_judged_once_or_as_often_as_is_cheap(steps, pool_size):
    settings = TrainConfig(steps=steps).resolved()
    found = weighing_steps(settings, pool_size)
    assert 1 <= len(found) <= MOST_WEIGHINGS
    assert all(0 <= step < steps for step in found)
    # Not before the network has learned something, if there is a step between.
    assert min(found) >= min(round(0.1 * steps), steps - 1)
    # A pass costs a third of a step for as many images; several cost a twentieth of the training.
    trained = steps * (settings.labeled_batch_size + 2 * settings.unlabeled_batch_size)
    if len(found) > 1:
        assert len(found) * pool_size / 3 <= 0.05 * trained
    if steps >= 1000:
        once_more = min(len(found) + 1, MOST_WEIGHINGS)
        assert len(found) == MOST_WEIGHINGS or once_more * pool_size / 3 > 0.05 * trained
        gaps = torch.tensor([*sorted(found), steps]).diff()
        assert int(gaps.max() - gaps.min()) <= 1
        assert min(found) == round((0.1 if len(found) > 1 else 0.25) * steps)


def test_training_that_is_long_for_its_pool_has_it_judged_four_times():
    assert weighing_steps(TrainConfig(steps=1000).resolved(), 100) == {100, 325, 550, 775}
    assert weighing_steps(TrainConfig(steps=1000).resolved(), 10**9) == {250}


@pytest.mark.parametrize("pool_size", [1, 10**9])
def test_stages_that_training_does_not_change_are_judged_once_before_it(pool_size):
    assert weighing_steps(TrainConfig(steps=1000).resolved(), pool_size, stages_change=False) == {0}


def test_an_empty_pool_is_no_error():
    assert weighing_steps(TrainConfig(steps=100).resolved(), 0)


def test_the_pool_is_judged_when_it_is_due(weighings, tmp_path):
    settings, dataset = long_enough(tmp_path / "run", steps=60), small_pool(120)
    fit(settings, dataset)
    assert weighings == sorted(weighing_steps(settings.resolved(), int((dataset.train.labels < 8).sum())))
    assert len(weighings) > 1


def test_features_are_judged_before_the_first_step(weighings, tmp_path):
    embed(small_options(tmp_path))
    features = {"dataset": str(tmp_path / "features.npz"), "image_size": None, "labels_per_class": 4}
    settings = config(tmp_path / "run", outliers="auto", **features)
    fit(settings, trust_code=True)
    assert weighings == [0]


@pytest.mark.parametrize("outliers", ["none", "percentile"])
def test_otherwise_it_is_never_judged(weighings, tmp_path, outliers):
    fit(config(tmp_path / "run", steps=2, outliers=outliers), small_pool())
    assert weighings == []
    assert WEIGHTS not in load_newest(tmp_path / "run" / FOLDER).tensors


# --- What ---


def test_weights_are_those_of_the_averaged_models_judge(tmp_path):
    settings = long_enough(tmp_path / "run", held_out_in_pool=True).resolved()
    training = build_training(settings, torch.device("cpu"), dataset=small_pool())
    weights, data = training.step.objective.inlier_probability, training.data
    assert weights.shape == (len(data.unlabeled),) == (400,)
    assert (weights == 1).all()
    before = {name: value.clone() for name, value in training.step.average.classifier.state_dict().items()}
    random_state = torch.get_rng_state()
    weigh_pool(training)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert weights is training.step.objective.inlier_probability, "updated in place"
    average = training.step.average.classifier
    for name, value in average.state_dict().items():
        assert torch.equal(value, before[name]), name
    names = average.backbone.stage_names
    # Labelled images in the pool are no question.
    rest = (~data.is_shown).nonzero().flatten()
    assert (weights[data.is_shown] == 1).all()
    both = (data.labeled, data.unlabeled.select(rest))
    labeled, pool = (run_classifier(average, rows, stage_names=names) for rows in both)
    expected = judge_pool(labeled.append(pool), torch.cat([data.labels, torch.full((len(rest),), -1)]))[len(labeled) :]
    torch.testing.assert_close(weights[rest], expected.float())
    assert 0 <= float(weights.min()) <= float(weights.max()) <= 1


def test_weights_follow_the_objective_between_dtypes_and_are_no_parameters(tmp_path):
    settings = long_enough(tmp_path / "run").resolved()
    objective = build_training(settings, torch.device("cpu"), dataset=small_pool()).step.objective
    assert "inlier_probability" in objective.state_dict()
    assert not objective.inlier_probability.requires_grad


def far_dataset(n=160):
    """Two classes of stripes, and half as much noise, which the network sees to be other."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    stripes = torch.zeros(n, 1, 8, 8)
    stripes[labels == 0, :, ::2] = 140.0
    stripes[labels == 1, :, :, ::2] = 140.0
    stripes = stripes + 25 * torch.randn(stripes.shape, generator=generator)
    noise = 255.0 * (torch.rand(n // 2, 1, 8, 8, generator=generator) > 0.5)
    images = torch.cat([stripes, noise]).clamp(0, 255).to(torch.uint8)
    train = Split(images, torch.cat([labels, torch.full((n // 2,), 2)]))
    test = Split(images[:40], labels[:40])
    return Dataset("stripes", ("rows", "columns", "noise"), train, test)


def test_pseudo_labels_of_outliers_are_logged_and_fewer(tmp_path):
    settings = {"steps": 60, "log_interval": 30, "algorithm": "fixmatch", "cutoff": 0.6, **WITH_NOISE}
    lines = {}
    for outliers in ("none", "auto"):
        run = fit(config(tmp_path / outliers, outliers=outliers, **settings), far_dataset())
        lines[outliers] = run.metrics()
        for line in lines[outliers]:
            assert all(0 <= line[name] <= 1 for name in OF_OUTLIERS if line[name] is not None)
            # A third of the pool is noise.
            assert line["true_outlier_share"] == pytest.approx(1 / 3, abs=0.1)
    assert all(line["outlier_precision"] is None and line["outlier_recall"] == 0 for line in lines["none"])
    assert lines["none"][-1]["outliers_pseudo_labeled"] > 0.2
    last = lines["auto"][-1]
    assert last["outliers_pseudo_labeled"] < 0.1
    assert last["outlier_precision"] > 0.9
    assert last["outlier_recall"] > 0.9
    assert last["outlier_share"] == pytest.approx(last["true_outlier_share"], abs=0.05)
    weights = load_newest(tmp_path / "auto" / FOLDER).tensors[WEIGHTS]
    assert weights[160:].mean() < 0.1
    assert weights[:160].mean() > 0.9


def test_likely_outliers_are_not_drawn_and_the_metrics_are_of_the_whole_pool(tmp_path):
    settings = config(tmp_path / "run", outliers="auto", algorithm="flexmatch", **WITH_NOISE).resolved()
    training = build_training(settings, torch.device("cpu"), dataset=far_dataset())
    step, noise = training.step, training.data.truth.is_outlier
    weights = step.objective.inlier_probability
    # Found: all noise but three, and two that are none.
    weights[noise] = 0.1
    weights[noise.nonzero()[:3]] = 0.6
    weights[(~noise).nonzero()[:2]] = 0.4
    training.leave_out_outliers()
    found = weights < 0.5
    assert training.left_out_share == pytest.approx(float(found.float().mean()))
    drawn = []
    for number in range(20):
        batch = next(training.stream)
        drawn.append(batch.unlabeled_indices)
        step(batch, lr=0.0, progress=number / 20)
    assert not found[torch.cat(drawn)].any()
    metrics = step.interval_metrics()
    assert metrics["outlier_share"] == pytest.approx(float(found.float().mean()), rel=1e-5)
    assert metrics["true_outlier_share"] == pytest.approx(float(noise.float().mean()), rel=0.05)
    assert metrics["outlier_precision"] == pytest.approx(float(noise[found].float().mean()), rel=1e-5)
    assert metrics["outlier_recall"] == pytest.approx(float(found[noise].float().mean()), rel=0.05)
    # Of three of all, each by its P(inlier).
    assert metrics["outliers_pseudo_labeled"] < 0.65 * 3 / float(noise.sum())
    assert int(step.objective.algorithm.policy.counts.sum()) == int((~found).sum())
    # Nothing would be left to draw.
    weights.fill_(0.2)
    training.leave_out_outliers()
    assert found[next(training.stream).unlabeled_indices].any()
    assert step.interval_metrics()["outlier_share"] is None


def test_without_known_outliers_nothing_about_them_is_logged(tmp_path):
    run = fit(config(tmp_path / "run", outliers="auto", steps=3), small_pool())
    assert all(not line.keys() & set(OF_OUTLIERS) for line in run.metrics())
    assert all(0 <= line["outlier_share"] <= 1 for line in run.metrics())


def test_a_clean_pool_trains_as_if_nobody_had_looked(weighings, tmp_path):
    plain, looked = (config(tmp_path / outliers, outliers=outliers, seed=1) for outliers in ("none", "auto"))
    for settings in (plain, looked):
        fit(settings, load_dataset("digits", size=8))
    assert weighings
    assert metrics_of(tmp_path / "none") == metrics_of(tmp_path / "auto")
    assert (tmp_path / "none" / "model.safetensors").read_bytes() == (
        tmp_path / "auto" / "model.safetensors"
    ).read_bytes()


# --- Saved and resumed ---


def test_weights_are_in_the_checkpoint(tmp_path):
    settings = long_enough(tmp_path / "run").resolved()
    training = build_training(settings, torch.device("cpu"), dataset=small_pool())
    weigh_pool(training)
    training.step.objective.inlier_probability[:3] = torch.tensor([0.25, 0.5, 0.75])
    tensors, facts = collect(training, History())
    kept = {name: value.clone() for name, value in tensors.items()}
    other = build_training(settings, torch.device("cpu"), dataset=small_pool())
    restore(other, kept, facts)
    assert torch.equal(other.step.objective.inlier_probability, training.step.objective.inlier_probability)
    del kept[WEIGHTS]
    with pytest.raises(ValueError, match="checkpoint: objective does not match the config"):
        restore(other, kept, facts)


class FailureError(Exception):
    pass


def fail():
    raise FailureError


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("steps", [(3, 27), (9, 45)])
def test_run_interrupted_twice_ends_as_if_it_had_not_been(steps, weighings, tmp_path):
    settings = {"steps": 60, "eval_interval": 0, **WITH_NOISE}
    undisturbed = fit(config(tmp_path / "whole", outliers="auto", **settings), far_dataset(80))
    whole = list(weighings)
    assert whole == [6, 24, 42]
    # Weights of 1 would be restored by nothing at all.
    assert (load_newest(undisturbed.directory / FOLDER).tensors[WEIGHTS] < 0.9).any()
    folder = tmp_path / "run"
    for step, resume in zip(steps, (False, True), strict=True):
        with pytest.raises(FailureError):
            fit(config(folder, outliers="auto", **settings, resume=resume), far_dataset(80), tracker=StopAt(step, fail))
    weighings.clear()
    fit(config(folder, outliers="auto", **settings, resume=True), far_dataset(80))
    assert_same_run(undisturbed.directory, folder)
    last = steps[-1] - 1
    assert weighings == [at for at in whole if at >= last - last % 4]


@pytest.mark.parametrize("labels", [1, 2])
def test_few_labels_train(tmp_path, labels):
    run = fit(config(tmp_path / "run", outliers="auto", labels_per_class=labels, steps=3), small_pool())
    assert run.result["steps"] == 3
    if labels == 1:
        assert (load_newest(tmp_path / "run" / FOLDER).tensors[WEIGHTS] == 1).all()


@pytest.mark.parametrize(
    "settings", [{"algorithm": "supervised"}, {"head": "linear"}, {"outlier_refit_interval": 2}], ids=str
)
def test_other_settings_go_with_it(settings, tmp_path):
    run = fit(config(tmp_path / "run", outliers="auto", steps=3, **settings), small_pool())
    assert run.result["steps"] == 3
    assert len(metrics_of(run.directory)) == 1


def test_a_diverged_run_stops_with_a_diagnosis(tmp_path):
    wild = {"lr": 1e6, "moment_order": 1, "clip_norm": 0.0, "max_skipped_steps": 4, "steps": 60}
    with pytest.raises(DivergenceError, match=r"not finite for \d+ consecutive steps"):
        fit(config(tmp_path / "run", outliers="auto", **wild, checkpoint_interval=0), small_pool())
