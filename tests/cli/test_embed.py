"""``momatch embed``, and ``momatch train`` on what it made: messages, exit codes, settings that are taken by themselves."""

import json

import numpy as np
import pytest

from momatch.cli import main as cli
from momatch.config.presets import PRESETS
from tests.embedding.setting import small_options


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory with a small dataset and its features."""
    monkeypatch.chdir(tmp_path)
    small_options(tmp_path)
    backbone = "tests.embedding.setting:corners"
    assert (
        cli.main(["embed", "corners.npz", "--out", "f.npz", "--backbone", backbone, "--flip", "no", "--no-progress"])
        == 0
    )
    return tmp_path


def test_says_what_was_made_and_what_comes_next(folder, capsys):
    again = ["embed", "corners.npz", "--out", "f.npz", "--overwrite", "--no-progress", "--flip", "no"]
    assert cli.main([*again, "--backbone", "tests.embedding.setting:corners"]) == 0
    out = capsys.readouterr().out
    assert "f.npz: 160 training images of corners.npz in 4 views (1 plain, 1 weak, 2 strong), 80 test images" in out
    assert "12 features each, by tests.embedding.setting:corners;" in out
    assert "720 images through the network in" in out
    assert "Next: momatch train --dataset f.npz --trust-code" in out
    assert cli.main(["data", "f.npz", "--contact-sheet", "sheet.png"]) == 0
    assert "features: 4 views of 12, float16" in capsys.readouterr().out
    assert (folder / "sheet.png").exists()


def test_every_label_is_shown_next_where_the_data_have_unlabelled_images(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = np.array([0, 0, 0, 1, 1, -1, -1, -1])
    np.savez("few.npz", images=np.arange(8 * 64, dtype=np.uint8).reshape(8, 8, 8), labels=labels)
    flags = ["--out", "f.npz", "--backbone", "tests.embedding.setting:corners", "--no-progress"]
    assert cli.main(["embed", "few.npz", *flags]) == 0
    (following,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Next: momatch ")]
    assert following.endswith("--dataset f.npz --trust-code")
    small = ["--steps", "2", "--run-dir", "run", "--no-progress", "--device", "cpu", "--graph-neighbors", "2"]
    assert cli.main([*following.removeprefix("Next: momatch ").split(), *small]) == 0


def test_train_takes_the_preset_and_what_the_file_decided(folder, capsys):
    assert cli.main(["train", "--dataset", "f.npz", "--steps", "7", "--print-config"]) == 0
    shown = capsys.readouterr()
    config = json.loads(shown.out)
    assert "f.npz contains features: using the preset 'features'" in shown.err
    expected = {**PRESETS["features"], "steps": 7, "backbone": "tests.embedding.setting:corners", "flip": "no"}
    assert {key: config[key] for key in expected} == expected
    assert cli.main(["train", "--dataset", "f.npz", "--preset", "digits", "--print-config"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["backbone"] == "tests.embedding.setting:corners"
    assert "holds features" not in shown.err


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ["--backbone", "mlp"],
            2,
            "--backbone: got 'mlp', expected 'tests.embedding.setting:corners', as in f.npz",
        ),
        (["--preset", "cifar10-cpu"], 1, "preset 'cifar10-cpu': image_size: got 24, expected it not to be set"),
        (["--flip", "yes"], 2, "--flip: got 'yes', expected 'no'"),
        (["--image-size", "16"], 2, "--image-size: got 16, expected it not to be set"),
    ],
)
def test_train_refuses_what_the_file_has_decided(folder, capsys, flags, code, message):
    assert cli.main(["train", "--dataset", "f.npz", *flags]) == code
    assert message in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_train_and_go_on(folder, capsys):
    # The digits' own settings: what is tested is the way from flags to a report, in a few steps.
    small = ["--dataset", "f.npz", "--run-dir", "run", "--no-progress", "--device", "cpu", "--eval-interval", "0"]
    assert cli.main(["train", *small, "--steps", "6", "--unlabeled-batch-size", "32", "--trust-code"]) == 0
    out = capsys.readouterr().out
    assert "tests.embedding.setting:corners backbone" in out
    assert "report: run/report.html" in out
    assert (
        cli.main(["train", "--resume", "--run-dir", "run", "--dataset", "f.npz", "--no-progress", "--trust-code"]) == 0
    )
    assert cli.main(["evaluate", "run", "--trust-code"]) == 0
    assert "run on f.npz: 80 test images" in capsys.readouterr().out
    assert cli.main(["predict", "run", "f.npz", "--trust-code"]) == 1
    assert (
        "f.npz: got cached features of corners.npz, expected images: the model includes its backbone"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nowhere", "--out", "g.npz"], "'nowhere' is neither a known dataset"),
        (
            ["corners.npz", "--out", "f.npz", "--flip", "no"],
            "out: f.npz holds features with --backbone tests.embedding.setting:corners, got --backbone efficientnet-lite0; u",
        ),
        (["corners.npz", "--out", "g.npy"], "out: got g.npy, expected a .npz file in an existing directory"),
        (["corners.npz", "--out", "no/g.npz"], "in an existing directory"),
        (["f.npz", "--out", "g.npz", "--backbone", "mlp", "--untrained"], "expected images, not features"),
    ],
)
def test_what_cannot_be_embedded_is_refused(folder, capsys, flags, message):
    assert cli.main(["embed", *flags, "--no-progress"]) == 1
    assert message in capsys.readouterr().err
    assert not list(folder.glob("g.*"))
