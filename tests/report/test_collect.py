"""Collecting what a report says: whole runs of every kind."""

import shutil

import pytest
import torch

from momatch.data.load import load_dataset
from momatch.inference.evaluate import evaluate_run
from momatch.report.collect import collect
from momatch.report.contact_sheets import MOST_OF_POOL, drawn_from_pool
from momatch.report.findings import Densities, Findings, Missing, Points
from momatch.training.run import Run
from tests.report.small_runs import NAMES, STEPS, train, write_dataset

PARTS = ("evaluation", "points", "clusters", "densities", "mistakes", "outlying")


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def found(trained_run):
    before, state = files_of(trained_run), torch.get_rng_state()
    findings = collect(trained_run, most_points=50)
    assert files_of(trained_run) == before  # nothing is written
    assert torch.equal(torch.get_rng_state(), state)
    return findings


def test_a_finished_run_has_every_part(found, trained_run):
    assert found.problems == ()
    assert (found.name, found.directory, found.class_names) == ("run", trained_run, NAMES)
    assert found.config == Run.load(trained_run).config
    assert found.result["test_accuracy"] == found.evaluation.accuracy
    assert [line["step"] for line in found.metrics] == list(range(10, STEPS + 1, 10))
    assert not [part for part in PARTS if isinstance(getattr(found, part), Missing)]
    assert [cluster.name for cluster in found.clusters] == list(NAMES)
    assert [cluster.n for cluster in found.clusters] == [20] * 4
    assert found.notes == ("The map shows 50 of 80 images, of each class the same share.",)


def test_the_figures_are_those_of_evaluate(found, trained_run, tmp_path):
    other = str(write_dataset(tmp_path / "other.npz", seed=5))
    findings = collect(trained_run, outliers=[other, other], most_points=40)
    figures = evaluate_run(Run.load(trained_run), outliers=[other])
    assert findings.evaluation.to_dict().items() <= figures.items()
    expected = figures["outliers"][other]
    for ours, theirs in (("as trained", "as_trained"), ("refitted", "refitted")):
        assert findings.densities.separation[ours] == {other: expected[theirs]}
        assert {name: len(values) for name, values in findings.densities.log_density[ours].items()} == {
            "test images": 80,
            other: 80,
        }
    assert findings.points.origin_names == ("test images", other)
    assert torch.bincount(findings.points.origin).tolist() == [20, 20]
    assert bool((findings.points.labels[findings.points.origin == 1] == -1).all())


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
    torch.testing.assert_close(points.distance, run.refitted_head.mahalanobis(z).amin(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(points.log_density, run.refitted_head(z).logsumexp(1), rtol=1e-4, atol=1e-4)
    assert points.centers["PCA"].shape == points.centers["t-SNE"].shape == (4, 2)
    assert 0 < points.explained <= 1


def test_flagged_are_five_per_cent_of_the_test_images(trained_run):
    points = collect(trained_run, most_points=80).points
    assert len(points.flagged) == 80
    assert int(points.flagged.sum()) == 4
    assert points.distance[points.flagged].min() > points.distance[~points.flagged].max()


def test_mistakes_are_wrong_and_the_most_confident_come_first(found):
    assert len(found.mistakes) == round(80 * (1 - found.evaluation.accuracy))
    assert all(picture.truth != picture.predicted for picture in found.mistakes)
    confidences = [picture.confidence for picture in found.mistakes]
    assert confidences == sorted(confidences, reverse=True)


def test_the_most_outlying_of_the_pool_come_first(found):
    scores = [picture.score for picture in found.outlying]
    assert len(scores) == 40
    assert scores == sorted(scores, reverse=True)
    assert {picture.truth for picture in found.outlying} <= set(NAMES)


def test_a_large_pool_is_looked_at_in_part(trained_run, monkeypatch):
    monkeypatch.setattr("momatch.report.contact_sheets.MOST_OF_POOL", 50)
    assert collect(trained_run, most_points=20).notes[1] == (
        "The most outlying images are those of 50 of the 160 unlabelled ones, drawn by the run's seed."
    )


def test_the_share_of_a_pool_is_drawn_by_the_seed():
    size = MOST_OF_POOL + 1000
    first = drawn_from_pool(size, 2**62)
    assert len(first.unique()) == len(first) == MOST_OF_POOL
    assert torch.equal(first, drawn_from_pool(size, 2**62))
    assert not torch.equal(first, drawn_from_pool(size, 1))
    assert torch.equal(drawn_from_pool(7, 0), torch.arange(7))


def test_what_takes_long_is_said(trained_run):
    said = []
    collect(trained_run, most_points=20, say=said.append)
    assert [text.split()[0] for text in said] == ["loading", "running", "t-SNE", "running"]


def test_outliers_that_are_not_at_hand_are_named_and_left_out(trained_run, tmp_path):
    findings = collect(trained_run, outliers=["mnist", "no-such"], data_dir=str(tmp_path), most_points=20)
    assert findings.problems == (
        f"The outliers 'mnist' are left out: mnist is not in {tmp_path}; fetch it with `momatch data mnist`, or say where it "
        "lies with data_dir (--data-dir, $MOMATCH_DATA).",
        "The outliers 'no-such' are left out: 'no-such' is neither a known dataset (digits, mnist, fashion-mnist, kmnist, "
        "cifar10, cifar100, svhn, stl10) nor a path that exists.",
    )
    assert findings.points.origin_names == ("test images",)
    assert findings.densities.separation["as trained"] == {}


def test_held_out_classes_are_outliers_of_their_own(tmp_path):
    run = train(tmp_path, held_out_classes="high, left", held_out_in_pool=True, steps=10)
    findings = collect(run, most_points=200)
    assert findings.problems == ()
    assert findings.class_names == ("right", "low")
    assert findings.points.origin_names == ("test images", "held-out classes")
    assert torch.bincount(findings.points.origin).tolist() == [40, 40]
    assert findings.densities.separation["as trained"].keys() == {"held-out classes"}
    assert len(findings.clusters) == 2
    assert {picture.predicted for picture in findings.outlying} <= {"right", "low"}
    truths = {picture.truth for picture in findings.outlying}
    assert truths <= {"right", "low", "high (held out)", "left (held out)"}
    assert truths & {"high (held out)", "left (held out)"}


def test_a_linear_head_has_no_centers(tmp_path):
    findings = collect(train(tmp_path, head="linear", embedding_dim=0, steps=10), most_points=20)
    assert findings.problems == ()
    assert findings.clusters.reason.startswith("A linear head has no centers")
    assert findings.points.centers["t-SNE"].shape == findings.points.centers["PCA"].shape == (0, 2)
    assert bool(findings.points.distance.isnan().all())
    assert findings.densities.log_density.keys() == {"as trained"}
    assert bool(findings.points.log_density.isfinite().all())
    scores = [picture.score for picture in findings.outlying]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("settings", [{"head": "kmeans", "embedding_dim": 1}, {"embedding_dim": 2, "refit": False}])
def test_few_dimensions(tmp_path, settings):
    findings = collect(train(tmp_path, steps=10, **settings), most_points=40)
    assert findings.problems == ()
    assert isinstance(findings.points, Points)
    assert findings.points.explained == pytest.approx(1)
    assert all(places.isfinite().all() and places.shape == (40, 2) for places in findings.points.maps.values())
    assert len(findings.clusters[0].moments) == {1: 4, 2: 8}[settings["embedding_dim"]]
    states = {"as trained", "refitted"} if settings.get("refit", True) else {"as trained"}
    assert findings.densities.log_density.keys() == states


def test_a_run_without_test_images_still_shows_its_pool(tmp_path):
    run = train(tmp_path, dataset=str(write_dataset(tmp_path / "no-test.npz", test=0)), steps=10)
    findings = collect(run)
    assert findings.points.reason.startswith("There is nothing to evaluate on: the dataset has no test images")
    assert findings.evaluation == findings.mistakes == findings.points
    assert len(findings.outlying) == 40
    assert findings.problems == ()


def test_test_images_without_labels_have_a_map_and_no_accuracy(tmp_path):
    run = train(tmp_path, dataset=str(write_dataset(tmp_path / "unlabelled.npz", labelled_test=False)), steps=10)
    findings = collect(run, most_points=30)
    assert isinstance(findings.points, Points)
    assert isinstance(findings.densities, Densities)
    assert "labelled test images" in findings.evaluation.reason
    assert "labelled test images" in findings.mistakes.reason
    assert "labelled test images" in findings.clusters.reason


def test_a_model_that_diverged_leaves_words_in_place_of_figures(trained_run, monkeypatch):
    def diverged(classifier, images, **options):
        outputs = real(classifier, images, **options)
        outputs.z.fill_(torch.nan)
        outputs.log_joint.fill_(torch.nan)
        return outputs

    from momatch.report import judged

    real = judged.run_classifier
    monkeypatch.setattr(judged, "run_classifier", diverged)
    findings = collect(trained_run)
    for part in PARTS[:-1]:
        assert isinstance(getattr(findings, part), Missing), part
    assert "diverged" in findings.points.reason
    assert findings.outlying == ()


def test_large_images_become_thumbnails(trained_run, monkeypatch):
    monkeypatch.setattr("momatch.report.judged.MOST_PIXELS", 4)
    findings = collect(trained_run, most_points=10)
    assert findings.points.images.shape == (10, 1, 4, 4)
    assert findings.outlying[0].image.shape == (1, 8, 8)  # a contact sheet has few


def test_a_name_of_ones_own_and_a_relative_directory(trained_run, monkeypatch):
    monkeypatch.chdir(trained_run)
    assert collect(trained_run.relative_to(trained_run), most_points=1).name == "run"
    assert collect(trained_run, most_points=1, name="mine").name == "mine"


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such directory, expected the directory of a run"):
        collect(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="got a file, expected the directory of a run"):
        collect(tmp_path / "file")
    with pytest.raises(ValueError, match="most_points: got 0"):
        collect(tmp_path, most_points=0)


def test_the_dataset_is_gone(trained_run, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(trained_run.parent, folder)
    text = (folder / "run" / "data.json").read_text()
    (folder / "run" / "data.json").write_text(text.replace(str(trained_run.parent), str(tmp_path / "nowhere")))
    findings = collect(folder / "run")
    assert isinstance(findings, Findings)
    assert len(findings.problems) == 1
    assert findings.problems[0].startswith("The images cannot be loaded: ")
    assert "nowhere" in findings.problems[0]
    assert "the one that the run was started in" in findings.problems[0]
    assert findings.class_names == NAMES
    assert len(findings.metrics) == 4
    assert not [part for part in PARTS if "could not be loaded" not in getattr(findings, part).reason]


def test_a_known_dataset_that_is_gone_is_not_downloaded(run_copy, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("network")

    monkeypatch.setattr("requests.get", refuse)
    old = Run.load(run_copy).config.dataset
    for name in ("config.json", "data.json"):
        (run_copy / name).write_text((run_copy / name).read_text().replace(old, "mnist"))
    findings = collect(run_copy, data_dir=str(tmp_path / "empty"))
    (problem,) = findings.problems
    assert problem.startswith(f"The images cannot be loaded: mnist is not in {tmp_path / 'empty'}; fetch it with ")
    assert not (tmp_path / "empty").exists()


def test_a_dataset_with_other_classes_is_not_judged(run_copy, tmp_path):
    record = run_copy / "data.json"
    path = write_dataset(tmp_path / "three.npz", classes=3)
    record.write_text(record.read_text().replace(Run.load(run_copy).config.dataset, str(path)))
    findings = collect(run_copy)
    (problem,) = findings.problems
    assert problem.startswith(f"The images cannot be loaded: {path}: got data that differ from those that the run in ")
    assert findings.class_names == NAMES
    assert not [part for part in PARTS if not isinstance(getattr(findings, part), Missing)]


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("config.json", '"seed": 0', '"seed": 7', ["config.json says seed 7, result.json 0"]),
        ("result.json", '"steps": 40', '"steps": 80', ["config.json says steps 40, result.json 80"]),
        ("config.json", '"head": "aagmm"', '"head": "kmeans"', ["config.json says head 'kmeans', model.json 'aagmm'"]),
        (
            "result.json",
            '"test_accuracy": ',
            '"test_accuracy": 0.125, "was": ',
            ["give an accuracy of", "or a file is another run's"],
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
