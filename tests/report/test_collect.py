"""Collecting what a report says: whole runs of every kind."""

import shutil
from dataclasses import replace

import pytest
import torch

from momatch.data.dataset import Split
from momatch.data.load import load_dataset
from momatch.data.rows import PixelRows
from momatch.inference.evaluate import evaluate_run
from momatch.report import predictions, report_run
from momatch.report.collect import collect
from momatch.report.page import build_page
from momatch.report.predictions import MAX_POOL, MAX_TO_LABEL, file_names, pool_sample
from momatch.report.run_report import Densities, MapPoints, Missing, RunReport
from momatch.training.run import Run
from tests.report.small_runs import NAMES, STEPS, train, write_dataset

PARTS = ("evaluation", "points", "clusters", "densities", "mistakes", "outlying", "to_label")


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def found(trained_run):
    before, state = files_of(trained_run), torch.get_rng_state()
    report = collect(trained_run, most_points=50)
    assert files_of(trained_run) == before  # nothing is written
    assert torch.equal(torch.get_rng_state(), state)
    return report


def test_a_finished_run_has_every_part(found, trained_run):
    assert found.problems == ()
    assert (found.name, found.directory, found.class_names) == ("run", trained_run, NAMES)
    assert found.config == Run.load(trained_run).config
    assert found.result["test_accuracy"] == found.evaluation.accuracy
    assert [line["step"] for line in found.metrics] == list(range(10, STEPS + 1, 10))
    assert not [part for part in PARTS if isinstance(getattr(found, part), Missing)]
    assert [cluster.name for cluster in found.clusters] == list(NAMES)
    assert [cluster.n for cluster in found.clusters] == [20] * 4
    assert found.notes == ("The map shows 50 of 80 images, the same share of every class.",)


def test_the_metrics_are_those_of_evaluate(found, trained_run, tmp_path):
    other = str(write_dataset(tmp_path / "other.npz", seed=5))
    report = collect(trained_run, outliers=[other, other], most_points=40)
    metrics = evaluate_run(Run.load(trained_run), outliers=[other])
    assert report.evaluation.to_dict().items() <= metrics.items()
    expected = metrics["outliers"][other]
    for ours, theirs in (("judge", "judge"), ("as trained", "as_trained"), ("refitted", "refitted")):
        assert report.densities.separation[ours] == {other: expected[theirs]}
        assert {name: len(values) for name, values in report.densities.log_density[ours].items()} == {
            "test images": 80,
            other: 80,
        }
    assert report.points.origin_names == ("test images", other)
    assert torch.bincount(report.points.origin).tolist() == [20, 20]
    assert bool((report.points.labels[report.points.origin == 1] == -1).all())


def test_points_are_the_images_with_what_the_model_says(found, trained_run):
    run, points = Run.load(trained_run), found.points
    test = load_dataset(run.config.dataset, progress=False).test
    assert points.images.shape == (50, 1, 8, 8)
    assert torch.bincount(points.labels, minlength=4).min() >= 12
    # The images shown, found again in the dataset, give the same outputs.
    rows = [int((test.images == image).flatten(1).all(1).nonzero()) for image in points.images]
    assert len(set(rows)) == 50
    z = run.classifier.embed(test.images[rows])
    log_joint = run.classifier.head(z)
    torch.testing.assert_close(points.labels, test.labels[rows])
    torch.testing.assert_close(points.predicted, log_joint.argmax(1))
    torch.testing.assert_close(points.confidence, log_joint.softmax(1).amax(1).double(), rtol=1e-4, atol=1e-5)
    scores = run.predict(test.images[rows])
    torch.testing.assert_close(points.distance, scores.distance, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(points.log_density, scores.log_density, rtol=1e-4, atol=1e-3)
    assert found.has_judge
    assert points.centers["PCA"].shape == points.centers["t-SNE"].shape == (4, 2)
    assert 0 < points.explained <= 1


def test_flagged_are_five_per_cent_of_the_test_images(trained_run):
    points = collect(trained_run, most_points=80).points
    assert len(points.flagged) == 80
    assert int(points.flagged.sum()) == 4
    score = Run.load(trained_run).predict(points.images).outlier_score
    assert score[points.flagged].min() > score[~points.flagged].max()


def test_mistakes_are_wrong_and_the_most_confident_come_first(found):
    assert len(found.mistakes) == round(80 * (1 - found.evaluation.accuracy))
    assert all(picture.truth != picture.predicted for picture in found.mistakes)
    confidences = [picture.confidence for picture in found.mistakes]
    assert confidences == sorted(confidences, reverse=True)


def test_what_is_to_be_labelled_next_is_not_outlying(found):
    assert 0 < len(found.to_label) <= MAX_TO_LABEL
    outlying = [picture.image.numpy().tobytes() for picture in found.outlying]
    assert not any(picture.image.numpy().tobytes() in outlying for picture in found.to_label)


def test_rows_of_a_selection_keep_their_file_names():
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    split = Split(PixelRows([images], torch.tensor([3, 1, 0])), torch.zeros(3, dtype=torch.int64), ("d", "b", "a"))
    some = split.rows.select(torch.tensor([2, 0]))
    assert file_names(split, some) == ("a", "d")
    # A pool that held-out images were added to has the tensors twice.
    assert file_names(split, split.rows.append(some)) == ("d", "b", "a", "a", "d")
    assert file_names(Split(images, torch.zeros(4, dtype=torch.int64)), some) == ()


def test_the_most_outlying_of_the_pool_come_first(found):
    scores = [picture.score for picture in found.outlying]
    assert len(scores) == 40
    assert scores == sorted(scores, reverse=True)
    assert {picture.truth for picture in found.outlying} <= set(NAMES)


def test_a_large_pool_is_looked_at_in_part(trained_run, monkeypatch):
    monkeypatch.setattr("momatch.report.predictions.MAX_POOL", 50)
    assert collect(trained_run, most_points=20).notes[1] == (
        "The images of the pool were chosen from a random 50 of the 160 unlabelled images."
    )


def test_the_share_of_a_pool_is_drawn_by_the_seed():
    size = MAX_POOL + 1000
    first = pool_sample(size, 2**62)
    assert len(first.unique()) == len(first) == MAX_POOL
    assert torch.equal(first, pool_sample(size, 2**62))
    assert not torch.equal(first, pool_sample(size, 1))
    assert torch.equal(pool_sample(7, 0), torch.arange(7))


def test_what_takes_long_is_said(trained_run):
    said = []
    collect(trained_run, most_points=20, log=said.append)
    assert [text.split()[0] for text in said] == ["loading", "running", "computing", "running"]


def test_outliers_that_are_not_at_hand_are_named_and_left_out(trained_run, tmp_path):
    report = collect(trained_run, outliers=["mnist", "no-such"], data_dir=str(tmp_path), most_points=20)
    assert report.problems == (
        f"The outliers 'mnist' were skipped: mnist is not in {tmp_path}; download it with `momatch data mnist`, or pass its "
        "directory as data_dir (--data-dir, $MOMATCH_DATA).",
        "The outliers 'no-such' were skipped: 'no-such' is neither a known dataset (digits, mnist, fashion-mnist, kmnist, "
        "cifar10, cifar100, svhn, stl10) nor a path that exists.",
    )
    assert report.points.origin_names == ("test images",)
    assert report.densities.separation["as trained"] == {}


def test_held_out_classes_are_outliers_of_their_own(tmp_path):
    run = train(tmp_path, held_out_classes="high, left", held_out_in_pool=True, steps=10)
    report = collect(run, most_points=200)
    assert report.problems == ()
    assert report.class_names == ("right", "low")
    assert report.points.origin_names == ("test images", "held-out classes")
    assert torch.bincount(report.points.origin).tolist() == [40, 40]
    assert report.densities.separation["as trained"].keys() == {"held-out classes"}
    assert len(report.clusters) == 2
    assert {picture.predicted for picture in report.outlying} <= {"right", "low"}
    truths = {picture.truth for picture in report.outlying}
    assert truths <= {"right", "low", "high (held out)", "left (held out)"}
    assert truths & {"high (held out)", "left (held out)"}


def test_a_linear_head_has_no_centers(tmp_path):
    report = collect(train(tmp_path, head="linear", judge="head", embedding_dim=0, steps=10), most_points=20)
    assert not report.has_judge
    assert report.outlier_list is None
    assert report.problems == ()
    assert report.clusters.reason.startswith("A linear head has no centers")
    assert report.points.centers["t-SNE"].shape == report.points.centers["PCA"].shape == (0, 2)
    assert bool(report.points.distance.isnan().all())
    assert report.densities.log_density.keys() == {"as trained"}
    assert bool(report.points.log_density.isfinite().all())
    scores = [picture.score for picture in report.outlying]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("settings", [{"head": "kmeans", "embedding_dim": 1}, {"embedding_dim": 2, "refit": False}])
def test_few_dimensions(tmp_path, settings):
    report = collect(train(tmp_path, steps=10, **settings), most_points=40)
    assert report.problems == ()
    assert isinstance(report.points, MapPoints)
    assert report.points.explained == pytest.approx(1)
    assert all(places.isfinite().all() and places.shape == (40, 2) for places in report.points.maps.values())
    assert len(report.clusters[0].moments) == {1: 4, 2: 8}[settings["embedding_dim"]]
    states = ["judge", "as trained", "refitted"] if settings.get("refit", True) else ["judge", "as trained"]
    assert list(report.densities.log_density) == states
    assert list(report.densities.separation) == states


def test_without_a_judge_the_refitted_head_scores_outliers(tmp_path):
    path = train(tmp_path, judge="head", steps=10)
    report, run = collect(path, most_points=80), Run.load(path)
    assert not report.has_judge
    assert list(report.densities.log_density) == ["as trained", "refitted"]
    z = run.classifier.embed(report.points.images)
    torch.testing.assert_close(report.points.distance, run.refitted_head.mahalanobis(z).amin(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(report.points.log_density, run.refitted_head(z).logsumexp(1), rtol=1e-4, atol=1e-4)


def test_the_list_of_outliers_comes_with_pictures(tmp_path):
    dataset = load_dataset(str(write_dataset(tmp_path / "corners.npz")), progress=False)
    dataset.train.images[50:53], dataset.train.labels[50:53] = 255, -1
    names = tuple(f"{row}.png" for row in range(len(dataset.train)))
    junk = replace(dataset, train=Split(dataset.train.images, dataset.train.labels, names))
    path = train(tmp_path, dataset=junk, steps=10, labels_per_class=25)
    report = collect(path, dataset=junk, most_points=20)
    assert report.problems == ()
    found = report.outlier_list
    assert found.path == path / "outliers.csv"
    assert {one.path for one in found.listed[:3]} == {"50.png", "51.png", "52.png"}
    assert len(found.images) == min(len(found.listed), 20)
    for one, image in zip(found.listed, found.images, strict=False):
        assert torch.equal(image, junk.train.images[one.row])
    page = build_page([report])
    assert f"<code>{path / 'outliers.csv'}</code>" in page
    assert "number 1 of the list" in page
    # Without the dataset there is the list alone.
    alone = collect(path)
    assert alone.outlier_list == replace(found, images=())
    # A list that does not fit the dataset is not hidden.
    lines = (path / "outliers.csv").read_text().splitlines()
    (path / "outliers.csv").write_text("\n".join([lines[0], "x.png,99999,left,0.5,1.0,0.1"]) + "\n")
    other = collect(path, dataset=junk, most_points=20)
    assert other.problems[0].startswith("The list of outliers is of other images: ")
    assert (len(other.outlier_list.listed), other.outlier_list.images) == (1, ())
    (path / "outliers.csv").write_text("nonsense\nmore\n")
    damaged = collect(path, dataset=junk, most_points=20)
    assert damaged.outlier_list is None
    assert damaged.problems[0].startswith("The list of outliers cannot be read: ")
    assert isinstance(damaged.outlying, tuple)


def test_a_run_without_test_images_still_shows_its_pool(tmp_path):
    run = train(tmp_path, dataset=str(write_dataset(tmp_path / "no-test.npz", test=0)), steps=10)
    report = collect(run)
    assert report.evaluation.reason.startswith("There is nothing to evaluate on: the dataset has no test images")
    assert report.evaluation == report.mistakes
    assert report.points.origin_names == ("images of the pool",)
    assert 0 < int((report.points.labels >= 0).sum()) < len(report.points.labels)
    assert len(report.outlying) == 40
    assert report.problems == ()


def test_test_images_without_labels_have_a_map_and_no_accuracy(tmp_path):
    run = train(tmp_path, dataset=str(write_dataset(tmp_path / "unlabelled.npz", labelled_test=False)), steps=10)
    report = collect(run, most_points=30)
    assert isinstance(report.points, MapPoints)
    assert isinstance(report.densities, Densities)
    assert "labelled test images" in report.evaluation.reason
    assert "labelled test images" in report.mistakes.reason
    assert "labelled test images" in report.clusters.reason


def test_a_model_that_diverged_leaves_a_reason_for_every_part(trained_run, monkeypatch):
    def diverged(classifier, images, **options):
        outputs = real(classifier, images, **options)
        outputs.z.fill_(torch.nan)
        outputs.log_joint.fill_(torch.nan)
        return outputs

    real = predictions.run_classifier
    monkeypatch.setattr(predictions, "run_classifier", diverged)
    report = collect(trained_run)
    for part in PARTS[:-2]:
        assert isinstance(getattr(report, part), Missing), part
    assert "diverged" in report.points.reason
    assert report.outlying == ()


def test_large_images_become_thumbnails(trained_run, monkeypatch):
    monkeypatch.setattr("momatch.report.predictions.MAX_THUMBNAIL_SIDE", 4)
    report = collect(trained_run, most_points=10)
    assert report.points.images.shape == (10, 1, 4, 4)
    assert report.outlying[0].image.shape == (1, 8, 8)  # a contact sheet has few


def test_a_name_of_ones_own_and_a_relative_directory(trained_run, monkeypatch):
    monkeypatch.chdir(trained_run)
    assert collect(trained_run.relative_to(trained_run), most_points=1).name == "run"
    assert collect(trained_run, most_points=1, name="mine").name == "mine"


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such directory, expected a run directory"):
        collect(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="got a file, expected a run directory"):
        collect(tmp_path / "file")
    with pytest.raises(ValueError, match="most_points: got 0"):
        collect(tmp_path, most_points=0)


def test_the_dataset_is_gone(trained_run, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(trained_run.parent, folder)
    text = (folder / "run" / "data.json").read_text()
    (folder / "run" / "data.json").write_text(text.replace(str(trained_run.parent), str(tmp_path / "nowhere")))
    report = collect(folder / "run")
    assert isinstance(report, RunReport)
    assert len(report.problems) == 1
    assert report.problems[0].startswith("The dataset cannot be loaded: ")
    assert "nowhere" in report.problems[0]
    assert "run this where training was started" in report.problems[0]
    assert report.class_names == NAMES
    assert len(report.metrics) == 4
    assert not [part for part in PARTS if "could not be loaded" not in getattr(report, part).reason]


def test_a_dataset_that_was_passed_to_fit_is_passed_to_the_report(tmp_path):
    """It has the name of a known dataset, but other images: loading it by name would evaluate on the wrong ones."""
    dataset = replace(load_dataset(write_dataset(tmp_path / "corners.npz"), progress=False), name="digits")
    run = train(tmp_path, dataset=dataset, steps=10)
    report = collect(run, dataset=dataset, most_points=5)
    assert report.problems == ()
    assert report.evaluation.accuracy == report.result["test_accuracy"]
    assert report.points.images.shape[1:] == (1, 8, 8)
    report_run(Run.load(run), dataset=dataset)
    assert "The classes of" not in (run / "report.html").read_text(encoding="utf-8")


def test_a_known_dataset_that_is_gone_is_not_downloaded(run_copy, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("network")

    monkeypatch.setattr("requests.get", refuse)
    old = Run.load(run_copy).config.dataset
    for name in ("config.json", "data.json"):
        (run_copy / name).write_text((run_copy / name).read_text().replace(old, "mnist"))
    report = collect(run_copy, data_dir=str(tmp_path / "empty"))
    (problem,) = report.problems
    assert problem.startswith(f"The dataset cannot be loaded: mnist is not in {tmp_path / 'empty'}; download it with ")
    assert not (tmp_path / "empty").exists()


def test_a_dataset_with_other_classes_is_not_judged(run_copy, tmp_path):
    record = run_copy / "data.json"
    path = write_dataset(tmp_path / "three.npz", classes=3)
    record.write_text(record.read_text().replace(Run.load(run_copy).config.dataset, str(path)))
    report = collect(run_copy)
    (problem,) = report.problems
    assert problem.startswith(f"The dataset cannot be loaded: {path}: data differ from what the run in ")
    assert report.class_names == NAMES
    assert not [part for part in PARTS if not isinstance(getattr(report, part), Missing)]


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("config.json", '"seed": 0', '"seed": 7', ["config.json says seed 7, result.json says 0"]),
        ("result.json", '"steps": 40', '"steps": 80', ["config.json says steps 40, result.json says 80"]),
        (
            "config.json",
            '"head": "aagmm"',
            '"head": "kmeans"',
            ["config.json says head 'kmeans', model.json says 'aagmm'"],
        ),
        (
            "result.json",
            '"test_accuracy": ',
            '"test_accuracy": 0.125, "was": ',
            ["but result.json says 12.5", "belongs to another run"],
        ),
    ],
)
def test_files_that_contradict_each_other(run_copy, file, old, new, words):
    path = run_copy / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    (problem,) = collect(run_copy, most_points=1).problems
    assert all(word in problem for word in words)
