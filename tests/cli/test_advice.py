"""Errors about data advise what can be done with the command at hand."""

import numpy as np
import pytest
from PIL import Image

from momatch.cli.main import main


def write_image(path, side=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), len(path.name), np.uint8)).save(path)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of two classes; the working directory is the one that it lies in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    for name in ("cat", "dog"):
        for i in range(20):
            write_image(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def commands(*others):
    words = {
        "data": ["data", "photos", "--no-progress"],
        "train": ["train", "--dataset", "photos", "--no-progress", "--device", "cpu"],
        "embed": ["embed", "photos", "--out", "f.npz", "--backbone", "cnn-tiny", "--untrained", "--no-progress"],
    }
    return {name: [*line, *others] for name, line in words.items()}


def said(capsys, words):
    assert main(words) == 1
    return capsys.readouterr().err


def test_unreadable_files(photos, capsys):
    for i in range(15):
        (photos / "cat" / f"{i}.png").write_bytes(f"broken {i}".encode())
    lines = commands()
    assert "Repair or remove them, or raise --max-skipped" in said(capsys, lines["data"])
    for name in ("train", "embed"):
        text = said(capsys, lines[name])
        assert "Repair or remove them" in text
        assert "max" not in text


def test_a_manifest_with_bad_rows(photos, capsys):
    rows = [f"photos/cat/{i}.png,cat" for i in range(20)] + [f"gone/{i}.png,dog" for i in range(20)]
    (photos.parent / "list.csv").write_text("\n".join(["path,label", *rows]))
    assert "or raise --max-skipped" in said(capsys, ["data", "list.csv", "--no-progress"])
    text = said(capsys, ["train", "--dataset", "list.csv", "--no-progress", "--device", "cpu"])
    assert "Repair or remove them" in text
    assert "max" not in text


def test_mixed_sizes(photos, capsys):
    write_image(photos / "dog/large.png", side=12)
    lines = commands()
    assert ": --size resizes" in said(capsys, lines["data"])
    assert main(lines["embed"]) == 0
    expected = "photos: the images have different sizes and are resized to 32 x 32; choose another size with image_size"
    assert expected in capsys.readouterr().err


@pytest.mark.filterwarnings("always::momatch.data.report.DataWarning")
def test_images_that_are_larger_than_the_network_needs(photos, capsys):
    for name in ("cat", "dog"):
        for i in range(20):
            write_image(photos / name / f"{i}.png", side=72)
    line = [*commands()["train"], "--steps", "2", "--unlabeled-batch-size", "8", "--run-dir", "run"]
    assert main(line) == 0
    (said,) = [text for text in capsys.readouterr().err.splitlines() if "warning" in text]
    assert said.startswith(
        "momatch train: warning: photos: images of 72 x 72 pixels make a step 5 times as long as 32 x 32"
    )
    assert "set a size with image_size (--image-size)" in said
    assert main([*line, "--image-size", "72", "--overwrite"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_test_folder_that_is_none(photos, capsys):
    write_image(photos / "test/0.png")
    lines = commands()
    assert "rename it, or set another name for the test folder with --test-folder" in said(capsys, lines["data"])
    for name in ("train", "embed"):
        text = said(capsys, lines[name])
        assert "if it is a class, rename it" in text
        assert "test-folder" not in text.replace("_", "-")


def test_an_option_without_meaning_has_the_name_that_was_given(photos, capsys):
    np.savez("arrays.npz", images=np.zeros((4, 8, 8), np.uint8), labels=np.arange(4) % 2)
    assert "--test-fraction does not apply" in said(capsys, ["data", "arrays.npz", "--test-fraction", "0.5"])
    text = said(
        capsys, ["train", "--dataset", "arrays.npz", "--test-fraction", "0.5", "--no-progress", "--device", "cpu"]
    )
    assert "arrays.npz: test_fraction (--test-fraction) does not apply to this dataset" in text


def test_no_test_images_of_a_features_file(photos, capsys):
    assert main(commands()["embed"]) == 0
    line = ["train", "--dataset", "f.npz", "--steps", "2", "--run-dir", "run", "--no-progress", "--device", "cpu"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert (
        "no test accuracy: the features file has no test images; give some of its labelled images the split test"
        in shown
    )
    assert "recreate it with momatch embed --test-fraction" in said(capsys, ["evaluate", "run"])


@pytest.mark.parametrize(
    "words",
    [["x.npz"], ["--steps", "5", "x.npz"], ["--no-progress", "x.npz"], ["--steps=5", "x.npz", "--seed", "1"]],
)
def test_train_hints_at_the_flag_of_the_dataset(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", *words])
    assert stopped.value.code == 2
    assert "momatch train: did you mean --dataset x.npz?" in capsys.readouterr().err


def test_a_misspelt_flag_gets_no_such_hint(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--stepps", "5"])
    assert "--dataset" not in capsys.readouterr().err
