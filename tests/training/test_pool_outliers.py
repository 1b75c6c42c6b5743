"""The list of the pool's outliers that a run writes."""

import csv
import math
from dataclasses import replace

import pytest
import torch

from momatch.cli.train import outlier_line
from momatch.config import TrainConfig
from momatch.data.dataset import Dataset, Split
from momatch.data.rows import PixelRows
from momatch.evaluation.evaluate import confident_samples, refit_head
from momatch.evaluation.judging import fit_judge
from momatch.storage.run_directory import OUTLIERS
from momatch.training import pool_outliers, refit
from momatch.training.data import HELD_OUT
from momatch.training.fit import fit
from momatch.training.pool_outliers import ListedOutlier, PoolOutliers, dataset_rows, find_outliers, read_outlier_list
from momatch.training.refit import fit_to_outputs
from momatch.training.setup import build_training

#: Images to calibrate on.
NEW = 20
#: Row of the image that belongs to no class.
PLANTED = 37


def corners(*, planted: bool = True, classes: int = 2, files: bool = True) -> Dataset:
    """Noisy images, each class bright in a corner of its own; image `PLANTED` is white."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60 * classes) % classes
    images = torch.randint(0, 60, (len(labels), 1, 8, 8), dtype=torch.uint8, generator=generator)
    for k in range(classes):
        top, left = 4 * (k // 2), 4 * (k % 2)
        images[labels == k, :, top : top + 4, left : left + 4] += 100
    if planted:
        images[PLANTED], labels[PLANTED] = 255, -1
    names = tuple(f"photos/{row}, a.png" for row in range(len(labels))) if files else ()
    class_names = ("left", "right", "low", "high")[:classes]
    return Dataset("corners", class_names, Split(images, labels, names), Split(images[:20], labels[:20].clamp_min(0)))


def settings(**changed: object) -> TrainConfig:
    small = {
        "backbone": "mlp",
        "flip": "no",
        "embedding_dim": 4,
        "labels_per_class": 25,
        "steps": 10,
        "labeled_batch_size": 12,
        "unlabeled_batch_size": 12,
        "ema_decay": 0.9,
        "progress": False,
        "device": "cpu",
    }
    return TrainConfig.from_dict(small | changed)


def lines(run):
    with open(run.directory / OUTLIERS, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fit(settings(run_dir=str(tmp_path_factory.mktemp("planted") / "run")), corners())


def test_a_planted_outlier_comes_first(run):
    first, *others = lines(run)
    assert list(first) == ["path", "row", "label", "confidence", "outlier_score", "p_inlier"]
    assert (first["path"], first["row"]) == (f"photos/{PLANTED}, a.png", str(PLANTED))
    assert first["label"] in ("left", "right")
    assert float(first["p_inlier"]) < 0.1
    assert 0.5 <= float(first["confidence"]) <= 1
    scores = [float(line["outlier_score"]) for line in (first, *others)]
    assert scores == sorted(scores, reverse=True)
    assert all(float(line["p_inlier"]) < 0.5 for line in others)
    # The score is that of a prediction.
    predicted = run.predict(corners().train.images[[PLANTED]])
    assert float(first["outlier_score"]) == pytest.approx(float(predicted.outlier_score), rel=1e-4)
    assert first["label"] == run.class_names[int(predicted.labels)]


def test_the_result_tells_the_share(run):
    result = run.result
    assert result["likely_outliers"] == len(lines(run))
    assert result["unlabeled_images"] == 120
    assert result["judged_images"] == 70, "without the labelled ones"
    assert 0.5 / 70 < result["estimated_outlier_share"] < 0.3
    assert not {"true_outlier_share", "outlier_precision", "outlier_recall"} & result.keys()  # nobody knows the truth


def test_the_summary_names_the_list(run):
    result = run.result | {"likely_outliers": 1, "estimated_outlier_share": 0.0123}
    path = run.directory / OUTLIERS
    assert outlier_line(run.config, result) == (
        f"1 image of the pool looks like an outlier: {path} (estimated share: 1.23 %)"
    )
    result["likely_outliers"] = 1200
    assert outlier_line(run.config, result).startswith("1,200 images of the pool look like outliers: ")
    result |= {"judged_images": 10_000, "unlabeled_images": 50_000}
    assert outlier_line(run.config, result).startswith("1,200 of 10,000 images from the pool look like outliers: ")
    assert outlier_line(run.config, result | {"likely_outliers": 0}) is None
    assert outlier_line(run.config, {}) is None


def test_the_list_is_read_back(run, tmp_path):
    read = read_outlier_list(run.directory / OUTLIERS)
    assert read[0].row == PLANTED
    assert read[0].is_outlier is None
    assert len(read) == len(lines(run))
    odd = ListedOutlier('a\udcff\n"b".png', None, "x, y", math.nan, math.inf, 0.0, True)
    unknown = ListedOutlier("", 3, "z", 0.5, 1.5, 0.25, None)
    (tmp_path / OUTLIERS).write_bytes(PoolOutliers((odd, unknown), 2, 9, 0.5, true_share=0.1).csv())
    first, second = read_outlier_list(tmp_path / OUTLIERS)
    assert math.isnan(first.confidence)
    assert first._replace(confidence=0.0) == odd._replace(confidence=0.0)
    assert second == unknown
    assert read_outlier_list(tmp_path / "none.csv") is None


@pytest.mark.parametrize("text", ["path,row\n1,2\n", "a\nb\n", 'path,row,label\n"', "path,row,label\nx\n"])
def test_a_damaged_list_is_refused(tmp_path, text):
    (tmp_path / OUTLIERS).write_text(text)
    with pytest.raises(ValueError, match=r"outliers\.csv: line \d+ cannot be read; the file is damaged"):
        read_outlier_list(tmp_path / OUTLIERS)


def test_a_pool_without_outliers_has_an_empty_list(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_outliers, "LIKELY_OUTLIER", 0.0)
    run = fit(settings(run_dir=str(tmp_path / "run")), corners(planted=False))
    assert (run.directory / OUTLIERS).read_text() == "path,row,label,confidence,outlier_score,p_inlier\n"
    assert run.result["likely_outliers"] == 0
    # As the list says.
    assert run.result["estimated_outlier_share"] == 0


@pytest.mark.parametrize(
    "changed", [{"judge": "head"}, {"algorithm": "supervised", "labels_per_class": 0, "labeled_in_pool": False}]
)
def test_without_a_judge_or_a_pool_nothing_is_written(tmp_path, changed):
    config = settings(run_dir=str(tmp_path / "run"), **changed)
    run = fit(config, corners(planted=False))
    assert not (run.directory / OUTLIERS).exists()
    assert not {"estimated_outlier_share", "likely_outliers", "judged_images"} & run.result.keys()


def test_overwriting_removes_the_list(tmp_path):
    config = settings(run_dir=str(tmp_path / "run"))
    assert (fit(config, corners()).directory / OUTLIERS).exists()
    run = fit(replace(config, judge="head", overwrite=True), corners())
    assert not (run.directory / OUTLIERS).exists()


def test_held_out_classes_are_known_outliers(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_outliers, "MAX_LISTED", 5)
    dataset = corners(planted=False, classes=4)
    # Far from the others, so that they are found.
    far = dataset.train.labels == 3
    dataset.train.images[far] = 255 - dataset.train.images[far]
    config = settings(run_dir=str(tmp_path / "run"), held_out_classes="high", held_out_in_pool=True)
    run = fit(config, dataset)
    result = run.result
    # Of the images that are not labelled.
    assert result["true_outlier_share"] == pytest.approx(0.25 * 160 / 110, abs=0.05)
    assert result["outlier_precision"] > 0.6
    assert result["outlier_recall"] > 0.9
    assert result["estimated_outlier_share"] == pytest.approx(result["true_outlier_share"], abs=0.15)
    listed = lines(run)
    assert len(listed) == 5 < result["likely_outliers"]
    for line in listed:
        assert line["is_outlier"] == "yes"
        assert int(dataset.train.labels[int(line["row"])]) == 3
        assert line["path"] == dataset.train.files[int(line["row"])]


@pytest.mark.parametrize("calibration_fraction", [None, 0.3])
def test_rows_are_those_of_the_dataset(calibration_fraction):
    """Whatever is held out of the pool, and if the split is itself a selection."""
    whole = corners(planted=False, classes=4, files=False)
    order = torch.randperm(len(whole.train), generator=torch.Generator().manual_seed(1))[:200]
    split = Split(PixelRows([whole.train.images], order), whole.train.labels[order])
    dataset = replace(whole, train=split)
    config = settings(
        held_out_classes="right", held_out_in_pool=True, calibration_fraction=calibration_fraction, labels_per_class=3
    ).resolved()
    training = build_training(config, torch.device("cpu"), dataset=dataset)
    pool = training.data.unlabeled
    assert set(training.data.truth.origin_names) == {"train", HELD_OUT}
    rows = dataset_rows(training, torch.arange(len(pool)))
    assert torch.equal(split.rows.gather(torch.tensor(rows)), pool.gather(torch.arange(len(pool))))
    assert len(set(rows)) == len(pool)


@pytest.fixture
def passed(monkeypatch):
    """How many images passed the network, and whether its stages were read, in each call."""
    calls = []

    def counted(classifier, rows, *, stage_names=None, **options):
        calls.append((len(rows), stage_names is not None))
        return real(classifier, rows, stage_names=stage_names, **options)

    real = refit.run_classifier
    monkeypatch.setattr(refit, "run_classifier", counted)
    return calls


def built(**changed):
    config = settings(**changed).resolved()
    return build_training(config, torch.device("cpu"), dataset=corners()), config


def test_head_and_judge_are_fitted_in_one_pass(passed):
    training, config = built()
    fitted = fit_to_outputs(training, config)
    head, judged = fitted.refitted, fitted.judged
    # The labelled images, the others of the pool, and those to calibrate on.
    assert passed == [(50, True), (70, True), (NEW, True)]
    average = training.step.average.classifier
    names = training.input.stage_names(average)
    assert judged.judge.stage_names == names
    outputs, labels = judged.pool.outputs, judged.pool.labels
    assert len(outputs) == len(labels) == 120
    assert torch.equal(labels[:50], training.data.labels)
    assert (labels[50:] == -1).all()
    assert torch.equal(judged.pool.of_pool.z, outputs.z[50:])
    # Both are those of the functions that they are made by.
    positions, classes = confident_samples(outputs, labels, cutoff=config.cutoff)
    expected = refit_head(average.head, outputs.z[positions], classes)
    for name, value in expected.state_dict().items():
        assert torch.equal(head.state_dict()[name], value), name
    found = fit_judge(outputs, labels, cutoff=config.cutoff, stage_names=names)
    assert torch.equal(judged.p_inlier, found.p_inlier[50:])
    for name, value in found.judge.state_dict().items():
        assert torch.equal(judged.judge.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("changed", "passes"),
    [
        ({"judge": "head"}, [(50, False), (70, False), (NEW, False)]),
        ({"refit": False}, [(50, True), (70, True), (NEW, True)]),
        ({"head": "linear"}, [(50, True), (70, True), (NEW, True)]),
        ({"refit": False, "judge": "head"}, [(NEW, False)]),
        ({"head": "linear", "judge": "head"}, [(NEW, False)]),
    ],
    ids=str,
)
def test_what_the_config_does_without_is_not_fitted(passed, changed, passes):
    training, config = built(**changed)
    fitted = fit_to_outputs(training, config)
    assert passed == passes
    assert (fitted.refitted is None) == (not config.refit or config.head == "linear")
    assert (fitted.judged is None) == (config.judge == "head")
    assert (find_outliers(training, fitted) is None) == (config.judge == "head")
    # Images come without evidence to match.
    assert fitted.temperature == 1.0


def test_labelled_images_are_never_listed(passed, monkeypatch):
    monkeypatch.setattr(refit, "POOL_SAMPLES", 40)
    training, config = built()
    fitted = fit_to_outputs(training, config)
    judged = fitted.judged
    assert passed == [(50, True), (35, True), (NEW, True)]
    rest = (~training.data.is_shown).nonzero().flatten()
    assert torch.equal(judged.pool.positions, rest[::2])
    # Even if all of them are strange.
    strange = torch.zeros(50 + 35, dtype=torch.float64)
    changed = replace(judged, found=replace(judged.found, p_inlier=strange))
    found = find_outliers(training, replace(fitted, judged=changed))
    assert len(passed) == 3
    assert found.judged == 35
    assert found.found == len(found.listed) == 35
    assert not {one.row for one in found.listed} & set(training.data.labeled_rows.tolist())
