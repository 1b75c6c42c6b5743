"""``momatch evaluate`` on a run that was really trained, if only for two steps: figures, tables, other datasets, messages."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from momatch.cli.evaluate import tables
from momatch.cli.main import main
from momatch.config import TrainConfig
from momatch.data.load import load_dataset
from momatch.inference.evaluate import evaluate_run
from momatch.training.fit import fit
from momatch.training.run import Run

SCORES = ["nearest", "assigned", "farthest", "density", "confidence"]
FIGURES = {
    "run": "runs/x",
    "dataset": "pets",
    "images": "test images",
    "n": 12,
    "accuracy": 0.75,
    "ece": 0.031,
    "nll": 1.23456,
    "compactness": 0.5,
    "compactness_true": None,
    "center_spread": 0.25,
    "center_offset": 1.5,
    "class_names": ["cat", "dog"],
    "per_class": [0.5, None],
    "confusion": [[6, 6], [0, 0]],
    "outliers": {},
}


def trained(path, **settings):
    small = {"steps": 2, "labeled_batch_size": 4, "unlabeled_batch_size": 4, "progress": False, "device": "cpu"}
    return fit(TrainConfig(**small | settings, run_dir=str(path)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def digits(tmp_path):
    """The first test images of digits, in colour and twice as large, with the classes in another order."""
    test = load_dataset("digits").test
    images = test.images[:60].repeat_interleave(2, 2).repeat_interleave(2, 3).repeat(1, 3, 1, 1).permute(0, 2, 3, 1)
    path = tmp_path / "digits.npz"
    np.savez(path, images=images.numpy(), labels=9 - test.labels[:60].numpy(), class_names=list("9876543210"))
    return path


def test_figures_are_those_of_the_result(run):
    figures = evaluate_run(run, batch_size=100)
    for key in ("accuracy", "compactness", "compactness_true", "ece"):
        expected = run.result["test_accuracy" if key == "accuracy" else key]
        assert figures[key] == pytest.approx(expected, rel=1e-5)
    assert (figures["n"], figures["images"], figures["outliers"]) == (500, "test images", {})
    assert np.sum(figures["confusion"]) == 500
    json.dumps(figures, allow_nan=False)


def test_classes_of_another_dataset_are_matched_by_name_and_images_converted(run, digits):
    figures = evaluate_run(run, dataset=str(digits))
    test = load_dataset("digits").test
    own = run.classifier(test.images[:60]).argmax(1)
    # Halving what was doubled gives the same images up to a gray level.
    assert figures["images"] == "all labelled images"
    assert np.sum(figures["confusion"], 1).tolist() == test.labels[:60].bincount(minlength=10).tolist()
    assert figures["accuracy"] == pytest.approx(float((own == test.labels[:60]).float().mean()), abs=0.15)


def test_outliers_as_trained_and_refitted(run, tmp_path):
    noise = torch.randint(0, 256, (40, 9, 7, 3), dtype=torch.uint8).numpy()
    np.savez(tmp_path / "noise.npz", images=noise, labels=np.arange(40) % 2)
    figures = evaluate_run(run, outliers=[str(tmp_path / "noise.npz"), "digits"])
    noise, itself = figures["outliers"].values()
    assert (noise["n"], itself["n"]) == (40, 500)
    for head in ("as_trained", "refitted"):
        assert list(noise[head]) == SCORES
        for score in SCORES:
            assert itself[head][score]["auroc"] == pytest.approx(0.5)
            assert itself[head][score]["fpr95"] == pytest.approx(0.95, abs=0.01)
    assert noise["as_trained"] != noise["refitted"]


def test_head_without_centers(tmp_path):
    linear = trained(tmp_path / "linear", head="linear")
    figures = evaluate_run(linear, outliers=["digits"])
    assert figures["compactness"] is None
    assert figures["outliers"]["digits"]["refitted"] is None
    assert list(figures["outliers"]["digits"]["as_trained"]) == ["density", "confidence"]
    assert "refitted" not in "\n".join(tables(figures))


def test_folder_of_other_sizes(run, tmp_path):
    for name, size in (("0", (12, 9)), ("1", (20, 31))):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", size, (i, 50, 90)).save(tmp_path / f"pets/{name}/{i}.png")
    assert evaluate_run(run, dataset=str(tmp_path / "pets"))["n"] == 6
    figures = evaluate_run(run, dataset=str(tmp_path / "pets"), test_fraction=0.34)
    assert (figures["n"], figures["images"]) == (2, "test images")


def test_never_on_images_that_were_trained_on(run, tmp_path):
    with pytest.raises(ValueError, match="splits training and test images differently"):
        evaluate_run(run, test_fraction=0.5)
    for name in ("a", "b"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(8):
            Image.new("L", (8, 8), 20 * i).save(tmp_path / f"pets/{name}/{i}.png")
    pets = trained(tmp_path / "run", dataset=str(tmp_path / "pets"))
    for name in (None, f"{tmp_path}/pets/", f"{tmp_path}/./pets"):
        with pytest.raises(
            ValueError, match=r"the dataset has no test images; train with test_fraction \(--test-fraction\)"
        ):
            evaluate_run(pets, dataset=name)


def test_command(run, tmp_path, capsys):
    path = tmp_path / "figures.json"
    assert (
        main(["evaluate", str(run.directory), "--outliers", "digits", "--json", str(path), "--batch-size", "99"]) == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"{run.directory} on digits: 500 test images\n")
    assert f"all metrics: {path}" in out
    assert json.loads(path.read_text()) == evaluate_run(Run.load(run.directory), outliers=["digits"], batch_size=99)
    assert sorted(child.name for child in tmp_path.iterdir() if child.is_file()) == ["figures.json"]


def test_a_write_that_fails_leaves_nothing_behind(run, tmp_path, capsys, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("momatch.storage.durable.os.replace", full)
    assert main(["evaluate", str(run.directory), "--json", str(tmp_path / "figures.json")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert [child for child in tmp_path.iterdir() if child.is_file()] == []


def test_tables():
    lines = list(tables(FIGURES))
    assert lines[0] == "runs/x on pets: 12 test images"
    values = dict(re.split(r"  +(?=\S+(?: %)?$)", line) for line in lines[2:9])
    assert values["accuracy"] == "75.00 %"
    assert values["calibration error (ECE)"] == "3.10 %"
    assert values["negative log likelihood"] == "1.235"
    assert [line.split() for line in lines[10:13]] == [
        ["class", "images", "accuracy"],
        ["0", "cat", "12", "50.00", "%"],
        ["1", "dog", "0", "-"],
    ]
    assert [line.split()[:4] for line in lines[14:]] == [
        ["confusion", "0", "1", "(rows:"],
        ["0", "cat", "6", "6"],
        ["1", "dog", ".", "."],
    ]


def test_many_classes_show_the_worst():
    K = 30
    confusion = (10 * torch.eye(K, dtype=torch.int64)).tolist()
    confusion[7][3], confusion[4][5] = 9, 2
    per_class = [1.0] * K
    per_class[7], per_class[4] = 10 / 19, 10 / 12
    names = [f"c{k}" for k in range(K)]
    figures = FIGURES | {"class_names": names, "confusion": confusion, "per_class": per_class}
    lines = list(tables(figures))
    start = next(i for i, line in enumerate(lines) if line.startswith("worst 20 classes"))
    assert [line.split()[1] for line in lines[start + 1 : start + 3]] == ["c7", "c4"]
    assert [line.split() for line in lines[-2:]] == [
        ["9", "7", "c7", "as", "3", "c3"],
        ["2", "4", "c4", "as", "5", "c5"],
    ]
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such directory"),
        (["RUN", "--json", "no/such/folder/a.json"], "--json: got no/such/folder/a.json"),
        (["RUN", "--json", "/"], "--json: got /, expected a file in an existing directory"),
        (["RUN", "--dataset", "mnits"], "did you mean 'mnist'"),
        (["RUN", "--outliers", "mnits"], "did you mean 'mnist'"),
        (["RUN", "--batch-size", "0"], "batch_size"),
        (["RUN", "--image-size", "0"], "size: got 0"),
    ],
)
def test_bad_input_is_a_message_and_an_exit_code(arguments, message, run, capsys):
    arguments = [str(run.directory) if word == "RUN" else word for word in arguments]
    assert main(["evaluate", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("momatch evaluate: error: ")
    assert message in err


def test_unknown_classes(run, tmp_path, capsys):
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 8, 8), np.uint8), labels=[0, 1, 0, 1], class_names=["cat", "0"])
    assert main(["evaluate", str(run.directory), "--dataset", str(tmp_path / "a.npz")]) == 1
    assert "got classes unknown to the run: cat; expected some of 0, 1, 2" in capsys.readouterr().err


def test_unfinished_run(tmp_path, capsys):
    from momatch.storage.run_directory import RunDirectory

    with RunDirectory.create(tmp_path / "run", TrainConfig(run_dir=str(tmp_path / "run")).resolved()):
        pass
    assert main(["evaluate", str(tmp_path / "run")]) == 1
    assert "not finished" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", "--outlier", "mnist"], ["a", "--batch-size", "x"]])
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", *arguments])
    assert capsys.readouterr().out == ""
