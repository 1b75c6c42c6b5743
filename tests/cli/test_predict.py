"""``momatch predict`` on a run that was really trained, if only for two steps: rows, words, warnings, refusals, signals."""

import csv
import io
import json
import os
import shutil
import signal
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from momatch.cli.main import main
from momatch.config import TrainConfig
from momatch.data.load import load_dataset
from momatch.inference.predict import pipeline
from momatch.training.fit import fit
from momatch.training.run import Run, load_trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    small = {"steps": 2, "labeled_batch_size": 4, "unlabeled_batch_size": 4, "progress": False, "device": "cpu"}
    return fit(TrainConfig(**small, image_size=8, run_dir=str(tmp_path_factory.mktemp("runs") / "digits")))


@pytest.fixture
def photos(tmp_path):
    """Test images of digits as files."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, pixels in enumerate(load_dataset("digits").test.images[:5, 0].numpy()):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_to_the_standard_output_and_words_to_the_other(run, photos, capsysbinary):
    assert main(["predict", str(run.directory), str(photos), "--batch-size", "2", "--workers", "2"]) == 0
    out, err = (text.decode() for text in capsysbinary.readouterr())
    rows, scores = rows_of(out), run.predict(load_dataset("digits").test.images[:5])
    assert [row["label"] for row in rows] == [run.class_names[k] for k in scores.labels]
    # The calibration is of these images too: a last digit of the score decides whether an image counts as above itself.
    assert [float(row["p_value"]) for row in rows] == pytest.approx(scores.p_value.tolist(), abs=1 / 500)
    assert [float(row["log_density"]) for row in rows] == pytest.approx(scores.log_density.tolist(), rel=1e-4)
    assert [row["flagged"] for row in rows] == ["yes" if float(row["p_value"]) <= 0.05 else "no" for row in rows]
    flagged = sum(row["flagged"] == "yes" for row in rows)
    assert err.startswith(f"5 images; {flagged} flagged (p <= 0.05, --alpha); ")
    assert err.rstrip().endswith("images/s")


def test_everything_in_one_table(run, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", images=load_dataset("digits").test.images[:3].numpy())
    (tmp_path / "list.csv").write_text("path\nphotos/0.png\nphotos/gone.png\n")
    words = ["photos", "photos/[12].png", "list.csv", "a.npz", "digits", "photos/3.png"]
    assert main(["predict", str(run.directory), *words, "--out", "out.jsonl", "--fdr", "0.1", "--posterior"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 5 + 2 + 2 + 3 + 500 + 1
    assert [row["path"] for row in rows if row["error"]] == ["photos/gone.png"]
    assert sum(row["posterior_7"] for row in rows if not row["error"]) > 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "512 images" in err
    assert "(false discovery rate 0.1, --fdr); 1 unreadable (see column error); " in err
    assert err.rstrip().endswith("images/s; out.jsonl")


def test_a_folder_with_nothing_but_a_model(run, photos, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(run.directory / name, tmp_path / "model")
    for folder in (tmp_path / "model", run.directory):
        assert main(["predict", str(folder), str(photos), "--out", str(tmp_path / f"{folder.name}.csv")]) == 0
    assert (tmp_path / "model.csv").read_text() == (tmp_path / "digits.csv").read_text()
    torch.testing.assert_close(
        load_trained(tmp_path / "model").predict(str(photos / "0.png")).posterior,
        Run.load(run.directory).predict([photos / "0.png"]).posterior,
    )


def test_refusals_come_before_the_work(run, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pipeline.Predictor, "__init__", lambda *a, **k: pytest.fail("the work has begun"))
    (tmp_path / "there.csv").write_text("before")
    (tmp_path / "nothing").mkdir()
    directory, photos = str(run.directory), str(photos)
    for words, message in {
        (directory,): "got no paths, expected images, folders",
        (directory, photos, "gone.png"): "'gone.png' is neither a known dataset",
        (directory, f"{photos}/*.jpg"): "matches 0 files",
        (str(tmp_path / "nothing"), photos): "neither config.json nor model.json",
        (str(tmp_path / "gone"), photos): "there is no such directory",
        (directory, photos, "--out", f"{tmp_path}/out.xlsx"): "extension .csv, .jsonl, .parquet",
        (directory, photos, "--out", f"{tmp_path}/there.csv"): "the file exists",
        (directory, photos, "--alpha", "0.1", "--fdr", "0.1"): "got both --alpha and --fdr",
        (directory, photos, "--alpha", "0"): "--alpha: got 0.0, expected a number between 0 and 1",
        (directory, photos, "--fdr", "1.5"): "--fdr: got 1.5",
        (directory, photos, "--batch-size", "0"): "--batch-size: got 0, expected at least 1",
        (directory, photos, "--workers", "0"): "--workers: got 0",
    }.items():
        assert main(["predict", *words]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("momatch predict: error: ")
        assert message in err
    assert (tmp_path / "there.csv").read_text() == "before"


def test_a_reader_that_has_seen_enough(run, photos, monkeypatch):
    class Gone(io.BytesIO):
        def write(self, data):
            raise BrokenPipeError(32, "Broken pipe")

    with open(os.devnull, "w") as other:
        stand_in = io.TextIOWrapper(Gone())
        stand_in.fileno = other.fileno
        monkeypatch.setattr("sys.stdout", stand_in)
        assert main(["predict", str(run.directory), str(photos)]) == 0


def test_overwrite(run, photos, tmp_path):
    (tmp_path / "out.csv").write_text("before")
    assert main(["predict", str(run.directory), str(photos), "--out", str(tmp_path / "out.csv"), "--overwrite"]) == 0
    assert len(rows_of((tmp_path / "out.csv").read_text())) == 5


def test_nothing_could_be_read(run, tmp_path, capsysbinary):
    (tmp_path / "a.png").write_text("no image")
    assert main(["predict", str(run.directory), str(tmp_path / "a.png")]) == 1
    out, err = capsysbinary.readouterr()
    (row,) = rows_of(out.decode())
    assert (row["label"], row["error"]) == ("", "not a recognised image format")
    assert b"0 images; 0 flagged" in err
    assert b"1 unreadable" in err


def test_a_level_that_no_p_value_reaches(run, photos, tmp_path, capsys):
    m = run.model.calibration.scores.numel()
    for flag in ("--alpha", "--fdr"):
        assert main(["predict", str(run.directory), str(photos), flag, "0.001", "--out", f"{tmp_path}/{flag}.csv"]) == 0
        err = capsys.readouterr().err
        assert f"warning: nothing can be flagged at {flag} 0.001: with {m} calibration images" in err
        assert "at least 999 are needed" in err
        assert "0 flagged" in err


def test_a_model_without_calibration(run, photos, tmp_path, capsys):
    from momatch.models.model_files import save_model

    (tmp_path / "old").mkdir()
    save_model(tmp_path / "old", run.classifier, run.spec, run.refitted_head)
    assert main(["predict", str(tmp_path / "old"), str(photos), "--out", str(tmp_path / "out.csv")]) == 0
    err = capsys.readouterr().err
    assert "warning: the model has no calibration" in err
    assert "--calibration-fraction" in err
    assert "flagged (" not in err
    assert {(row["p_value"], row["flagged"]) for row in rows_of((tmp_path / "out.csv").read_text())} == {("", "")}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_nothing_behind(run, photos, tmp_path, capsys, monkeypatch, number, code):
    call = pipeline.Predictor.__call__

    def stopped(self, batch):
        os.kill(os.getpid(), number)
        threading.Event().wait(0.2)
        return call(self, batch)

    monkeypatch.setattr(pipeline.Predictor, "__call__", stopped)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["predict", str(run.directory), str(photos), "--out", str(tmp_path / "out.csv")]) == code
    assert f"interrupted; {tmp_path / 'out.csv'} was not written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_lines_of_progress_where_there_is_no_terminal(run, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("momatch.console.progress._INTERVAL", 0.0)
    words = [
        "predict",
        str(run.directory),
        str(photos),
        "--out",
        str(tmp_path / "out.csv"),
        "--overwrite",
        "--batch-size",
        "2",
    ]
    assert main(words) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" images")[0] for line in lines[:3]] == ["predict: 2 of 5", "predict: 4 of 5", "predict: 5 of 5"]
    assert main([*words, "--no-progress"]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1
