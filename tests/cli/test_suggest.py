"""``momatch suggest`` on a features file and on a run."""

import csv
import shutil

import numpy as np
import pytest

from momatch import TrainConfig, fit
from momatch.cli.main import main
from momatch.cli.suggest import lines
from momatch.data.load import load_dataset
from momatch.embedding import embed
from momatch.labeling.answers import Answers
from momatch.suggestions import Pool, Suggestions
from tests.embedding.folders import folder_options
from tests.embedding.setting import small_options


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """A features file whose images are all labelled, and a run on a few of the labels."""
    folder = tmp_path_factory.mktemp("suggest")
    features = folder / "features.npz"
    embed(small_options(folder, out=features))
    settings = {"labels_per_class": 2, "steps": 10, "progress": False, "seed": 1}
    config = TrainConfig.preset("features", dataset=str(features), run_dir=str(folder / "run"), **settings)
    return features, fit(config, trust_code=True).directory


def test_a_run_suggests_rows_it_has_not_seen(embedded, tmp_path, capsys):
    features, run = embedded
    out = tmp_path / "to_label.csv"
    assert main(["suggest", str(run), "--n", "6", "--out", str(out), "--trust-code"]) == 0
    assert "6 images to label" in capsys.readouterr().out
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [""] * 6
    names = load_dataset(features).class_names
    assert all(row["guess"] in names and 0 < float(row["confidence"]) <= 1 for row in rows)
    assert len({row["row"] for row in rows}) == 6
    assert main(["suggest", str(run), "--out", str(out), "--trust-code"]) == 1
    assert "--overwrite" in capsys.readouterr().err


def test_all_labelled_is_an_error_without_a_traceback(embedded, capsys):
    assert main(["suggest", str(embedded[0])]) == 1
    assert "expected some without a label" in capsys.readouterr().err


def test_what_is_no_features_file_is_refused(tmp_path, capsys):
    (tmp_path / "x.npz").write_bytes(b"no")
    assert main(["suggest", str(tmp_path / "x.npz")]) == 1
    assert "momatch embed" in capsys.readouterr().err
    assert main(["suggest", str(tmp_path)]) == 1


def test_what_is_not_there_is_said(tmp_path, capsys):
    assert main(["suggest", str(tmp_path / "nothere.npz")]) == 1
    assert "nothere.npz: there is no such file or directory" in capsys.readouterr().err


def test_only_csv_is_written(tmp_path, capsys):
    assert main(["suggest", str(tmp_path / "f.npz"), "--out", "to_label.txt"]) == 1
    assert "out: got to_label.txt, expected a .csv file" in capsys.readouterr().err


def test_a_name_is_printed_in_one_line():
    found = Suggestions(np.array([0]), np.array([-1]), np.array([0.0]), np.array([1]))
    files = ("a\nb é.png", "c\x1b.png")
    features = np.zeros((2, 1), np.float32)
    pool = Pool(features, np.array([-1, -1]), (), np.arange(2), files, None, None)
    printed = list(lines(pool, found))
    assert (printed[0], printed[-1]) == ("a\\nb é.png", "c\\x1b.png")


def test_answers_of_the_page_beside_the_features_are_known(tmp_path, capsys):
    options = folder_options(tmp_path)
    embed(options)
    labels = options.out.with_name("labels.csv")
    Answers(labels, ["pets/unlabeled/cat0.png", "pets/unlabeled/dog0.png"], ["cat", ""])

    def offered():
        assert main(["suggest", str(options.out), "--n", "100"]) == 0
        printed = capsys.readouterr()
        return {line.split()[0] for line in printed.out.splitlines() if line}, printed.err

    names, said = offered()
    assert f"labels are read from {labels}" in said
    assert "unlabeled/cat0.png" not in names
    assert "unlabeled/dog0.png" in names
    labels.write_text("path,label\npets/unlabeled/cat0.png,cat\n")
    names, said = offered()
    assert "unlabeled/cat0.png" in names, "not a manifest of the page"
    assert "labels are read" not in said


def test_printed_names_are_rows_where_there_are_no_files(embedded, capsys):
    assert main(["suggest", str(embedded[1]), "--n", "3", "--trust-code"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3
    assert all(line.split()[0].isdigit() and "sure" in line for line in lines[:3])


def test_what_is_of_no_class_is_never_offered_nor_its_copies(tmp_path, capsys):
    options = folder_options(tmp_path)
    shutil.copy(tmp_path / "pets/unlabeled/cat0.png", tmp_path / "pets/unlabeled/copy.png")
    embed(options)
    features, labels = str(options.out), tmp_path / "labels.csv"
    given = "path,label,status\ncat/0.png,cat,\ndog/0.png,dog,\ncat/1.png,cat,\ndog/1.png,dog,\n"
    names = ("unlabeled/cat0.png", "unlabeled/copy.png")

    def offered(*words):
        assert main(["suggest", *words, "--n", "100"]) == 0
        return {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}

    labels.write_text(given)
    assert len(offered(features, "--labels", str(labels)) & set(names)) == 1, "one of two copies"
    labels.write_text(given + "unlabeled/cat0.png,,none\n")
    assert not offered(features, "--labels", str(labels)) & set(names)
    config = TrainConfig.preset(
        "features", dataset=features, labels=str(labels), run_dir=str(tmp_path / "run"), steps=5, progress=False
    )
    fit(config, trust_code=True)
    capsys.readouterr()
    assert not offered(str(tmp_path / "run"), "--trust-code") & set(names)
