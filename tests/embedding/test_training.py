"""Training on features: end to end, resumed bit for bit, and a whole classifier of images at its end."""

import copy
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from momatch.augment import CachedView
from momatch.augment.draws import below, draw
from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.config.layers import Layer
from momatch.data.contaminate import contaminate
from momatch.data.load import load_dataset
from momatch.data.rows import FeatureRows
from momatch.embedding import embed
from momatch.evaluation.metrics import calibration
from momatch.inference.evaluate import evaluate_run
from momatch.models.outputs import run_classifier
from momatch.report.collect import collect
from momatch.report.run_report import Missing
from momatch.sweep.grid import Cell, Grid
from momatch.sweep.jobs import SweepOptions, plan_jobs
from momatch.training.fit import fit
from momatch.training.inputs import StandardizedLinear, feature_statistics
from momatch.training.setup import build_training
from tests.embedding.setting import F, small_options
from tests.training.test_fit import assert_same_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    embed(small_options(folder))
    return folder


def small_config(folder, **settings):
    small = {
        "dataset": str(folder / "features.npz"),
        "labels_per_class": 4,
        "embedding_dim": 4,
        "steps": 60,
        "labeled_batch_size": 12,
        "unlabeled_batch_size": 24,
        "eval_interval": 30,
        "log_interval": 10,
        "checkpoint_interval": 20,
        "ema_decay": 0.9,
        "device": "cpu",
        "progress": False,
        "run_dir": str(folder / "run"),
    }
    return TrainConfig.from_dict(small | settings)


@pytest.fixture(scope="module")
def run(folder):
    return fit(small_config(folder), trust_code=True)


def test_run_learns_and_its_record_says_what_the_file_decided(run, folder):
    assert run.result["test_accuracy"] > 0.6  # chance is 0.25
    assert run.config.backbone == "tests.embedding.setting:corners"
    assert (run.config.flip, run.config.strong_operations) == ("no", 3)
    assert run.spec.image_size == (8, 8)
    assert run.spec.dataset == "corners.npz"
    card = (run.directory / "README.md").read_text("utf-8")
    assert "| trained on | cached features of 5 views of each image (momatch embed)" in card
    assert "| trained parameters only, without the frozen backbone |" in card


def test_saved_model_takes_images_and_agrees_with_the_features(run, folder):
    features, images = load_dataset(folder / "features.npz"), load_dataset(folder / "corners.npz")
    from_features = run_classifier(run.classifier, features.test.rows)
    from_images = run_classifier(run.classifier, images.test.images)
    torch.testing.assert_close(from_features.z, from_images.z, atol=2e-3, rtol=1e-3)
    assert torch.equal(from_features.log_joint.argmax(1), from_images.log_joint.argmax(1))
    # Of several views the first is taken.
    torch.testing.assert_close(
        run_classifier(run.classifier, features.train.rows).z,
        run_classifier(run.classifier, images.train.images).z,
        atol=2e-3,
        rtol=1e-3,
    )
    assert run.model.predict(images.test.images[:3]).labels.shape == (3,)
    assert len(run.model.calibration.scores) == 80


def test_posteriors_are_as_confident_as_the_evidence(run, folder):
    assert run.model.temperature != 1.0
    assert json.loads((run.directory / "model.json").read_text("utf-8"))["temperature"] == run.model.temperature
    features = load_dataset(folder / "features.npz")
    outputs = run_classifier(run.classifier, features.test.rows, stage_names=run.model.stage_names)
    scores = run.model.scorer(outputs.z, outputs.stages)
    assert torch.equal(scores.labels, outputs.log_joint.argmax(1))
    expected = calibration(scores.posterior.double().log(), features.test.labels).error
    of_report = collect(run.directory, trust_code=True, most_points=50).evaluation.ece
    assert [run.result["ece"], evaluate_run(run)["ece"], of_report] == pytest.approx([expected] * 3, abs=1e-6)
    # The test images are those to calibrate on; the evidence is gathered again.
    guide = build_training(run.config, torch.device("cpu"), trust_code=True).guide
    assert scores.confidence.mean() == pytest.approx(guide.confidence, abs=1e-3)


def test_resumed_run_ends_as_the_undisturbed_one(run, folder, monkeypatch):
    from momatch.training.step import TrainStep

    config, step = small_config(folder, run_dir=str(folder / "resumed")), TrainStep.__call__

    def dying(self, batch, **options):
        if batch.step == 33:
            raise KeyboardInterrupt
        step(self, batch, **options)

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            fit(config, trust_code=True)
    fit(replace(config, resume=True), trust_code=True)
    assert_same_run(run.directory, folder / "resumed")


def test_evaluation_and_report_of_a_run_on_features(run, folder):
    figures = evaluate_run(run, outliers=["digits"])
    assert figures["accuracy"] == run.result["test_accuracy"]
    assert figures["outliers"]["digits"]["n"] == 500
    on_images = evaluate_run(run, dataset=str(folder / "corners.npz"))
    assert on_images["accuracy"] == pytest.approx(figures["accuracy"], abs=0.02)
    report = collect(run.directory, trust_code=True, outliers=["digits"], most_points=50)
    assert not report.problems
    assert not isinstance(report.points, Missing)
    # The pictures beside the features are the images themselves, as they are small.
    images = load_dataset(folder / "corners.npz").test.images
    known = {image.numpy().tobytes() for image in images}
    shown = report.points.images[report.points.origin == 0]
    assert all(image.numpy().tobytes() in known for image in shown)
    assert report.outlying[0].image.shape == (1, 8, 8)


def test_report_of_a_run_under_way_takes_its_checkpoint(run, folder, tmp_path):
    unfinished = tmp_path / "run"
    shutil.copytree(run.directory, unfinished)
    for name in ("result.json", "model.json", "model.safetensors"):
        (unfinished / name).unlink()
    report = collect(unfinished, trust_code=True, outliers=["digits"], most_points=40)
    assert not isinstance(report.points, Missing)
    assert report.evaluation.accuracy == run.result["test_accuracy"]


def test_held_out_classes_of_features_can_contaminate_the_pool(folder, tmp_path):
    config = small_config(folder, held_out_classes="high", held_out_in_pool=True, run_dir=str(tmp_path), steps=2)
    training = build_training(config.resolved(), torch.device("cpu"), trust_code=True)
    assert int(training.data.truth.is_outlier.sum()) == 40
    assert training.data.unlabeled.shape == (5, F)
    assert training.data.unlabeled.pictures.shape == (1, 8, 8)
    pool = training.data.unlabeled
    every = torch.arange(len(pool))
    with np.load(folder / "features.npz") as archive:
        stored = dict(zip(map(bytes, archive["train_features"]), archive["train_stages"], strict=True))
    for row, stages in zip(pool.gather(every).numpy(), pool.stages_at(every).numpy(), strict=True):
        np.testing.assert_array_equal(stages, stored[bytes(row)])


def test_other_features_than_the_models_are_refused(run, folder, tmp_path):
    other = embed(small_options(folder, out=tmp_path / "other.npz", seed=4)).spec.path
    with pytest.raises(ValueError, match=r"features of a backbone .* whose weights differ from the model's"):
        evaluate_run(run, dataset=str(other))
    data = build_training(small_config(folder).resolved(), torch.device("cpu"), trust_code=True).data
    with pytest.raises(ValueError, match="got images to mix with features"):
        contaminate(data, load_dataset("digits").train.images, fraction=0.1, seed=0)


@pytest.mark.parametrize(("split", "row", "view", "value"), [("train", 131, 4, "nan"), ("test", 7, 0, "-inf")])
def test_damaged_features_are_refused_before_training(folder, tmp_path, split, row, view, value):
    damaged = tmp_path / "damaged.npz"
    shutil.copy(folder / "features.npz", damaged)
    features = getattr(load_dataset(damaged), split).features
    at = damaged.read_bytes().index(features.numpy().tobytes()) + 2 * (row * features[0].numel() + view * F + 5)
    with open(damaged, "r+b") as file:
        file.seek(at)
        file.write(np.float16(value).tobytes())
    with pytest.raises(ValueError, match=rf"{split}_features: got non-finite features for image {row}, .*--verify"):
        fit(small_config(folder, dataset=str(damaged), run_dir=str(tmp_path / "run")), trust_code=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("split", "row", "value"), [("train", 131, "inf"), ("test", 7, "nan")])
def test_damaged_stages_are_refused_before_training(folder, tmp_path, monkeypatch, split, row, value):
    damaged = tmp_path / "damaged.npz"
    shutil.copy(folder / "features.npz", damaged)
    with np.load(damaged) as archive:
        stages = archive[f"{split}_stages"]
    at = damaged.read_bytes().index(stages.tobytes()) + 4 * (row * stages.shape[1] + 5)
    with open(damaged, "r+b") as file:
        file.seek(at)
        file.write(np.float32(value).tobytes())
    monkeypatch.setattr("momatch.training.inputs.CHUNK_BYTES", 10 * stages[0].nbytes)
    with pytest.raises(ValueError, match=rf"{split}_stages: got non-finite statistics for image {row}, .*--verify"):
        fit(small_config(folder, dataset=str(damaged), run_dir=str(tmp_path / "run")), trust_code=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "mlp"}, "backbone: got 'mlp', expected 'tests.embedding.setting:corners', as in"),
        ({"cutout": 0.1}, "cutout: got 0.1, expected 0.5"),
        ({"image_size": 16}, "image_size: got 16, expected it not to be set: .* features of 8x8 images"),
        ({"test_fraction": 0.2}, "test_fraction: got 0.2, expected it not to be set"),
        ({"compile": True}, "compile: got True, expected it not to be set"),
    ],
)
def test_settings_that_the_file_has_decided_are_refused(folder, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        fit(small_config(folder, run_dir=str(tmp_path / "run"), **settings), trust_code=True)
    assert not (tmp_path / "run").exists()


def test_cached_views_are_drawn_by_seed_step_and_place():
    features = torch.arange(6 * 5 * 2, dtype=torch.float16).view(6, 5, 2)
    weak, strong = CachedView(0, 3, default_view=0), CachedView(3, 2, default_view=1)
    drawn = strong(features, seed=1, step=7, offset=2)
    chosen = 3 + below(draw(6, 1, seed=1, step=7, view=1, offset=2)[:, 0], 2)
    assert torch.equal(drawn, torch.stack([features[i, k] for i, k in enumerate(chosen.tolist())]))
    # A process that holds the second half draws what one process draws for it.
    assert torch.equal(weak(features, seed=1, step=7)[3:], weak(features[3:], seed=1, step=7, offset=3))
    views = [int((weak(features, seed=0, step=step)[0, 0] - features[0, 0, 0]) / 2) for step in range(300)]
    assert np.bincount(views).tolist() == pytest.approx([100, 100, 100], abs=25)
    with pytest.raises(ValueError, match="got 3 views, expected at least 5"):
        strong(features[:, :3], seed=0, step=0)
    with pytest.raises(ValueError, match="expected at least one to draw from"):
        CachedView(1, 0, default_view=1)


def test_standardised_projection_folds_into_a_linear_one():
    features = 5 + 3 * torch.randn(64, 4, dtype=torch.float64).float()
    features[:, 2] = 7
    mean, std = feature_statistics(FeatureRows([features[:, None].half()]))
    assert float(std[2]) == 1
    torch.testing.assert_close(mean[[0, 1, 3]], features[:, [0, 1, 3]].mean(0), atol=2e-3, rtol=0)
    torch.testing.assert_close(std[[0, 1, 3]], features[:, [0, 1, 3]].std(0, correction=0), atol=2e-3, rtol=0)
    layer = StandardizedLinear(torch.nn.Linear(4, 3), mean, std)
    naive = ((features - mean) / std) @ layer.weight.T + layer.bias
    torch.testing.assert_close(layer(features), naive)
    torch.testing.assert_close(layer.folded()(features), naive, atol=1e-5, rtol=1e-5)
    state = copy.deepcopy(layer).state_dict()
    assert set(state) == {"weight", "bias", "mean", "std"}


def test_sweep_plans_a_run_on_features_as_training_records_it(run):
    decided = {"backbone", "backbone_variant", "flip", "strong_operations", "cutout"}
    settings = {
        key: value for key, value in run.config.to_dict().items() if key not in RUNTIME_KEYS | decided | {"seed"}
    }
    grid = Grid("g", "title", "question?", (Cell("row", "column", settings),), ("test_accuracy",), None, (0,))
    (job,), _ = plan_jobs([grid], SweepOptions(Layer({}), {}, None, run.directory.parent, None))
    assert job.config.first_difference(run.config) is None
