"""``momatch export`` on a run that was really trained, if only for two steps: files, folders, messages."""

import re
import sys

import numpy as np
import pytest
import torch

from momatch import SavedModel
from momatch.cli.export import Arguments
from momatch.cli.main import main
from momatch.config import TrainConfig
from momatch.data.load import load_dataset
from momatch.inference.export import export
from momatch.inference.export.graph import OUTPUTS, Graph
from momatch.training.fit import fit
from momatch.training.run import Run

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    small = {"steps": 2, "labeled_batch_size": 4, "unlabeled_batch_size": 4, "progress": False, "device": "cpu"}
    return fit(TrainConfig(**small, run_dir=str(path)))


def test_training_leaves_a_model_folder(run):
    """With settings, figures and card."""
    loaded = SavedModel.from_pretrained(run.directory)
    assert loaded.settings["steps"] == 2
    assert loaded.settings["dataset"] == "digits"
    assert loaded.result == run.result
    card = (run.directory / "README.md").read_text("utf-8")
    assert f"| test accuracy | {run.result['test_accuracy']:.2%} |" in card
    assert "| outlier p-values | calibrated on 500 scores (judge) of 500 test images |" in card
    assert str(run.directory) not in card + (run.directory / "model.json").read_text("utf-8")


@pytest.mark.slow
def test_onnx_beside_the_run(run, capsys):
    assert main(["export", str(run.directory)]) == 0
    path = run.directory / "model.onnx"
    out, err = capsys.readouterr()
    assert err == ""
    assert re.match(rf"{re.escape(str(path))}: \d\.\d MB, takes uint8 images \(n, 1, 16, 16\)\n", out)
    assert re.search(r"on \d+ images of digits and synthetic images\n  \d+ images, 1, 2, 7", out)
    images = load_dataset("digits", size=16).test.images[:9]
    session = onnxruntime.InferenceSession(path)
    label, p_value = session.run(["label", "p_value"], {"images": images.numpy()})
    scores = Run.load(run.directory).predict(images)
    np.testing.assert_array_equal(label, scores.labels)
    # They are those of the calibration: where a score meets itself, its rank is a matter of rounding.
    np.testing.assert_allclose(p_value, scores.p_value, atol=1.01 / 501)
    before = path.read_bytes()
    assert main(["export", str(run.directory)]) == 1
    assert "model.onnx: the file exists; choose another name, or pass --overwrite" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_folder_and_from_there_torch(run, tmp_path, capsys):
    assert main(["export", str(run.directory), "--to", "folder", "--out", str(tmp_path / "model")]) == 0
    assert f'SavedModel.from_pretrained("{tmp_path / "model"}")' in capsys.readouterr().out
    assert main(["export", str(tmp_path / "model"), "--to", "folder", "--out", str(tmp_path / "model")]) == 1
    assert "a model already exists here; pass --overwrite to replace it" in capsys.readouterr().err
    (tmp_path / "model" / "README.md").write_text("mine")
    again = ["export", str(run.directory), "--to", "folder", "--out", str(tmp_path / "model"), "--overwrite"]
    assert main(again) == 0
    assert "README.md was edited or written by someone else; kept" in capsys.readouterr().out
    assert (tmp_path / "model" / "README.md").read_text() == "mine"
    assert main(["export", str(tmp_path / "model"), "--to", "torch", "--out", str(tmp_path / "a.pt2")]) == 0
    assert "by torch" in (out := capsys.readouterr().out)
    assert "on synthetic images" in out
    graph = torch.export.load(tmp_path / "a.pt2").module()
    assert graph(torch.zeros(2, 1, 16, 16, dtype=torch.uint8))[0].shape == (2,)


@pytest.fixture
def quick(monkeypatch):
    """A format that is made at once; the factor is what its p-values are wrong by."""

    def use(factor):
        def encode(model, opset):
            def graph(images):
                with torch.no_grad():
                    got = dict(zip(OUTPUTS, Graph(model)(images), strict=True))
                return got | {"p_value": got["p_value"] * factor}

            return b"a file", graph, "nothing"

        monkeypatch.setattr(export, "FORMATS", {"torch": (".pt2", encode)})

    return use


def test_a_graph_that_differs_leaves_no_file(run, tmp_path, capsys, quick):
    for factor, code in ((0.5, 1), (1.0, 0)):
        quick(factor)
        assert main(["export", str(run.directory), "--to", "torch", "--out", str(tmp_path / "a.pt2")]) == code
        out, err = capsys.readouterr()
        assert bool(out) == (code == 0)
        assert ("momatch export: error: p_value: the graph and the model differ" in err) == (code == 1)
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"a file"] * (code == 0)


def test_a_full_disk_leaves_nothing(run, tmp_path, capsys, monkeypatch, quick):
    def full(source, target):
        raise OSError(28, "No space left on device")

    quick(1.0)
    monkeypatch.setattr("momatch.storage.durable.os.replace", full)
    for words in (
        ["--to", "torch", "--out", str(tmp_path / "a.pt2")],
        ["--to", "folder", "--out", str(tmp_path / "b")],
    ):
        assert main(["export", str(run.directory), *words]) == 1
        assert "No space left on device" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such directory, expected a run directory or a model folder"),
        (["EMPTY"], "model.json: there is no such file"),
        (
            ["RUN", "--out", "no/such/a.onnx"],
            "no/such/a.onnx: expected a file, not a directory, in a directory that exists",
        ),
        (["RUN", "--out", "EMPTY"], "expected a file, not a directory"),
        (["RUN", "--out", "a.onnx", "--opset", "9"], "opset: got 9, expected 18 to"),
        (["RUN", "--to", "torch", "--opset", "18"], "--opset: got 18 with --to torch"),
        (["RUN", "--to", "folder"], "--out: got none, expected the folder to write"),
        (["RUN", "--to", "folder", "--out", "RUN"], "got a run directory"),
    ],
)
def test_bad_input_is_a_message_and_an_exit_code(arguments, message, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    words = {"RUN": str(run.directory), "EMPTY": str(tmp_path / "empty")}
    assert main(["export", *(words.get(word, word) for word in arguments)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("momatch export: error: ")
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_missing_package(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(run.directory), "--out", str(tmp_path / "a.onnx")]) == 1
    assert "pip install 'momatch[onnx]'" in capsys.readouterr().err


def test_an_unfinished_run_says_how_to_go_on(tmp_path, capsys):
    from momatch.storage.run_directory import RunDirectory

    RunDirectory.create(tmp_path / "run", TrainConfig().resolved()).close()
    assert main(["export", str(tmp_path / "run")]) == 1
    assert "not finished" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", "--to", "torchscript"], ["a", "--opset", "x"]])
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["export", *arguments])
    assert capsys.readouterr().out == ""


def test_what_is_to_be_had_is_what_there_is():
    assert set(export.FORMATS) | {"folder"} == set(Arguments.__annotations__["to"].__args__)
