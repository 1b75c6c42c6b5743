"""No file that a command reads runs code by itself: models, runs, checkpoints and features whose backbone is a payload."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import momatch
from momatch import Run, SavedModel, TrainConfig, evaluate_run, fit, report_run
from momatch.cli import main as cli
from momatch.embedding import EmbedOptions, embed
from momatch.models.backbones import UntrustedCodeError
from tests.embedding.setting import small_options

SOURCES = Path(momatch.__file__).parents[1]
BACKBONE = "payload:build"
#: Writes a file when it is imported, and is a network that works.
PAYLOAD = """
from pathlib import Path
from torch import nn

Path(__file__).with_name("executed").touch()

def build(in_channels):
    return nn.Sequential(nn.Conv2d(in_channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""
SMALL = {"steps": 2, "labeled_batch_size": 8, "unlabeled_batch_size": 8, "progress": False, "device": "cpu"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with payload.py and, all with its network: a finished run, one under way, a model and features."""
    folder = tmp_path_factory.mktemp("downloaded")
    (folder / "payload.py").write_text(PAYLOAD)
    options = small_options(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        config = TrainConfig(
            dataset=str(folder / "corners.npz"), backbone=BACKBONE, run_dir=str(folder / "run"), **SMALL
        )
        run = fit(config, trust_code=True)
        run.model.save_pretrained(folder / "model")
        embed(
            EmbedOptions(dataset=options.dataset, out=folder / "f.npz", backbone=BACKBONE, device="cpu", progress=False)
        )
    shutil.copytree(folder / "run", folder / "unfinished")
    for name in ("result.json", "model.json", "model.safetensors"):
        (folder / "unfinished" / name).unlink()
    (folder / "executed").unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy, on the import path, in which nothing has been executed."""
    folder = tmp_path / "downloaded"
    shutil.copytree(made, folder)
    for config in folder.glob("*/config.json"):
        content = json.loads(config.read_text())
        content["config"] |= {"dataset": str(folder / "corners.npz"), "run_dir": str(config.parent)}
        config.write_text(json.dumps(content))
    monkeypatch.delitem(sys.modules, "payload", raising=False)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("payload", None)


def command(folder, *arguments):
    """Run ``python -m momatch`` in the folder."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "momatch", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


COMMANDS = {
    "predict, a model": ("predict", "model", "corners.npz"),
    "predict, a run": ("predict", "run", "corners.npz"),
    "evaluate": ("evaluate", "run"),
    "report": ("report", "run"),
    "report, a checkpoint": ("report", "unfinished"),
    "export, a model": ("export", "model", "--to", "folder", "--out", "copy"),
    "export, a run": ("export", "run", "--to", "folder", "--out", "copy"),
    "resume": ("train", "--resume", "--run-dir", "unfinished", "--no-progress"),
    "train on features": ("train", "--dataset", "f.npz", "--steps", "2", "--run-dir", "new", "--no-progress"),
    "train from a config": ("train", "--config", "run/config.json", "--run-dir", "new", "--no-progress"),
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
def test_commands_run_a_payload_only_with_permission(folder, arguments, monkeypatch, capsys):
    # The module can be imported; only the permission is missing.
    monkeypatch.chdir(folder)
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert not (folder / "executed").exists()
    assert "names the backbone 'payload:build': loading it would import the module 'payload'" in error
    assert "--trust-code" in error
    assert not (folder / "new").exists()
    assert cli.main([*arguments, "--trust-code"]) == 0
    assert (folder / "executed").exists()


@pytest.mark.parametrize("named", ["cnn-tiny", "other:build"])
def test_naming_a_backbone_permits_that_one_alone(folder, named, monkeypatch, capsys):
    # The settings agree with the command line, the saved model names the payload.
    monkeypatch.chdir(folder)
    config = folder / "run" / "config.json"
    config.write_text(config.read_text().replace(BACKBONE, named))
    cli.main(["train", "--resume", "--run-dir", "run", "--backbone", named, "--no-progress"])
    assert not (folder / "executed").exists()
    assert "names the backbone 'payload:build'" in capsys.readouterr().err


def test_the_current_directory_is_not_on_the_import_path(folder):
    done = command(folder, "predict", "model", "corners.npz", "--trust-code")
    assert done.returncode == 1
    assert "there is no module 'payload'" in done.stderr
    assert "PYTHONPATH=." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "executed").exists()
    # Nor does a file there stand in for a module of ours.
    (folder / "tyro.py").write_text(PAYLOAD)
    assert command(folder, "predict", "--help").returncode == 0
    assert not (folder / "executed").exists()


def test_a_backbone_named_on_the_command_line_needs_no_further_permission(folder, monkeypatch):
    monkeypatch.chdir(folder)
    flags = ["--dataset", "corners.npz", "--backbone", BACKBONE, "--steps", "2", "--run-dir", "new", "--no-progress"]
    assert cli.main(["train", *flags]) == 0
    assert (folder / "executed").exists()
    assert (folder / "new" / "report.html").exists()


def images():
    return torch.zeros(2, 1, 8, 8, dtype=torch.uint8)


ENTRIES = {
    "SavedModel.from_pretrained": lambda folder, **trust: SavedModel.from_pretrained(folder / "model", **trust),
    "Run.predict": lambda folder, **trust: Run.load(folder / "run", **trust).predict(images()),
    "evaluate_run": lambda folder, **trust: evaluate_run(Run.load(folder / "run", **trust)),
    "report_run": lambda folder, **trust: report_run(Run.load(folder / "run", **trust)),
    "report_run, a checkpoint": lambda folder, **trust: report_run(Run.load(folder / "unfinished", **trust)),
    "fit, resumed": lambda folder, **trust: fit(replace(Run.load(folder / "unfinished").config, resume=True), **trust),
    "fit, a run's config": lambda folder, **trust: fit(
        replace(Run.load(folder / "run").config, overwrite=True), **trust
    ),
    "fit on features": lambda folder, **trust: fit(
        TrainConfig(dataset=str(folder / "f.npz"), run_dir=str(folder / "new"), **SMALL), **trust
    ),
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())
def test_python_runs_a_payload_only_with_permission(folder, entry):
    with pytest.raises(UntrustedCodeError, match=r"would import the module 'payload'.*trust_code=True"):
        entry(folder)
    assert not (folder / "executed").exists()
    assert "payload" not in sys.modules
    entry(folder, trust_code=True)
    assert (folder / "executed").exists()


def test_no_file_can_give_the_permission(folder):
    for name in ("model/model.json", "run/config.json"):
        content = json.loads((folder / name).read_text())
        content["trust_code"] = True
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="the checksum does not match"):
        SavedModel.from_pretrained(folder / "model")
    with pytest.raises(UntrustedCodeError):
        _ = Run.load(folder / "run").classifier
    assert not (folder / "executed").exists()
