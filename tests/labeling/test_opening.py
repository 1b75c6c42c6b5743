"""From a folder to a session: what is embedded, and who may open it."""

import shutil

import pytest

from momatch.cli.main import main
from momatch.data.load import load_dataset
from momatch.data.report import DataWarning
from momatch.labeling.answers import Answer
from momatch.labeling.opening import LabelOptions, open_session
from momatch.labeling.server import LabelServer
from tests.labeling.setting import EACH, write_photographs


def options(folder, **changes) -> LabelOptions:
    small = {
        "images": folder,
        "labels": folder / "labels.csv",
        "features": folder / "features.npz",
        "backbone": "cnn-tiny",
        "untrained": True,
        "image_size": 16,
        "device": "cpu",
        "progress": False,
    }
    return LabelOptions(**{**small, **changes})


def test_a_folder_is_embedded_and_a_file_that_is_no_image_is_left_out(tmp_path):
    folder = write_photographs(tmp_path / "photos")
    (folder / "unlabeled" / "damaged.png").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="damaged"), open_session(options(folder)) as session:
        assert session.state()["images"] == 4 + 2 * EACH
    assert "damaged" not in (folder / "labels.csv").read_text()


def test_what_is_left_out_is_said_before_the_page_opens(photos, monkeypatch, capsys):
    (photos / "unlabeled" / "damaged.png").write_bytes(b"damaged")
    said = []
    monkeypatch.setattr(LabelServer, "run", lambda _: said.append(capsys.readouterr().err))
    assert main(["label", str(photos), "--no-browser", "--no-progress"]) == 0
    assert "momatch label: warning: " in said[0]
    assert "damaged.png" in said[0]
    assert "damaged.png" not in capsys.readouterr().err


def test_one_session_a_manifest(photos):
    with (
        open_session(options(photos)),
        pytest.raises(ValueError, match="another momatch label is open"),
        open_session(options(photos)),
    ):
        pass
    with open_session(options(photos)) as session:
        assert session.state()["images"]


def test_classes_that_differ_only_in_case_are_named(photos):
    (photos / "labels.csv").write_text("path,label\nunlabeled/red5.png,Red\n")
    with pytest.warns(DataWarning, match="the classes Red and red differ only"), open_session(options(photos)):
        pass


def test_random_weights_are_used_on_request_only(tmp_path, capsys):
    folder = write_photographs(tmp_path / "photos", each=1)
    assert main(["label", str(folder), "--backbone", "cnn-tiny", "--no-browser"]) == 1
    assert "for random weights set --untrained" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["blue", "red", "unlabeled"]


def test_the_manifest_may_lie_elsewhere(photos, tmp_path):
    labels = tmp_path / "mine.csv"
    with open_session(options(photos, labels=labels)) as session:
        assert session.image_path(0).exists()
    assert "photos/" in labels.read_text()
    assert (tmp_path / "mine.classes.txt").read_text().split() == ["blue", "red"]


def test_the_manifest_may_lie_behind_a_symbolic_link(photos, tmp_path):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    labels = tmp_path / "link" / "mine.csv"
    with open_session(options(photos, labels=labels)) as session:
        assert session.image_path(0).exists()
    assert load_dataset(labels).num_classes == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "expected a folder of images"),
        (["{photos}", "--labels", "labels.txt"], "expected a .csv file"),
        (["{photos}", "--classes", "none,cat"], "expected another name"),
        (["{photos}", "--features", "{photos}/labels.csv"], "expected a .npz file"),
        (["{photos}", "--backbone", "efficientnet-lite0"], "--backbone cnn-tiny, got --backbone efficientnet-lite0"),
        (["{photos}", "--fast"], "fast and image_size: got both"),
        (["{photos}", "--seed", "3"], "--seed 0, got --seed 3"),
        (["{photos}", "--weights", "mine.safetensors"], "weights and untrained: got both"),
    ],
)
def test_bad_arguments_end_without_a_traceback(photos, capsys, arguments, message):
    given = [argument.format(photos=photos) for argument in arguments]
    assert main(["label", "--no-browser", *given]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "70000"])
def test_a_port_that_cannot_be_is_found_before_embedding(tmp_path, capsys, port):
    folder = write_photographs(tmp_path / "photos", each=1)
    assert main(["label", str(folder), "--port", port, "--no-browser"]) == 1
    assert f"port: got {port}, expected 0 (a free one) to 65535" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["blue", "red", "unlabeled"]


def test_a_folder_without_images_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["label", str(tmp_path / "empty"), "--no-browser"]) == 1
    assert "got no images" in capsys.readouterr().err
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("where", ["flag", "folder", "kept", "manifest"])
def test_classes_that_cannot_be_named_so_are_found_before_embedding(tmp_path, where):
    folder = write_photographs(tmp_path / "photos", each=1)
    if where == "folder":
        (folder / "red").rename(folder / "None")
    elif where == "kept":
        (folder / "labels.classes.txt").write_text("none\n")
    elif where == "manifest":
        (folder / "labels.csv").write_text("path,label\nunlabeled/red2.png,none\n")
    given = options(folder, classes=("none",) if where == "flag" else ())
    with pytest.raises(ValueError, match="expected another name"), open_session(given):
        pass
    assert not (folder / "features.npz").exists()


def test_files_that_a_manifest_cannot_name_are_left_out(tmp_path):
    folder = write_photographs(tmp_path / "photos")
    shutil.copy(folder / "unlabeled" / "red5.png", folder / "unlabeled" / "two\nlines.png")
    with pytest.warns(DataWarning, match="1 of 29 image files.*left out"), open_session(options(folder)) as session:
        names = [session.image_path(row).name for row in range(session.state()["images"])]
    assert len(names) == 4 + 2 * EACH
    assert set(names) == {file.name for file in folder.rglob("*.png")} - {"two\nlines.png"}
    assert "lines" not in (folder / "labels.csv").read_text()


def test_a_folder_of_files_that_a_manifest_cannot_name_is_refused_before_embedding(tmp_path):
    folder = write_photographs(tmp_path / "two\nlines", each=1)
    given = options(folder, labels=tmp_path / "labels.csv")
    with pytest.raises(ValueError, match="6 of 6 image files"), open_session(given):
        pass
    assert not (folder / "features.npz").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fast": True}, "fast and image_size: got both"),
        ({"weights": "mine.safetensors"}, "weights and untrained: got both"),
        ({"backbone": "wrn-10-1"}, "--backbone cnn-tiny, got --backbone wrn-10-1"),
    ],
)
def test_settings_other_than_those_of_the_features_are_refused(photos, changes, message):
    with pytest.raises(ValueError, match=message), open_session(options(photos, **changes)):
        pass


def test_features_of_other_images_are_refused(photos, tmp_path, capsys):
    assert (
        main(
            [
                "embed",
                "digits",
                "--limit",
                "20",
                "--backbone",
                "cnn-tiny",
                "--untrained",
                "--out",
                str(tmp_path / "d.npz"),
            ]
        )
        == 0
    )
    assert main(["label", str(photos), "--features", str(tmp_path / "d.npz"), "--no-browser"]) == 1
    assert "embed everything again" in capsys.readouterr().err


def test_a_folder_without_any_label_and_images_that_come_later(tmp_path):
    folder, source = tmp_path / "flat", write_photographs(tmp_path / "photos")
    folder.mkdir()
    files = sorted(source.rglob("*.png"))
    for file in files[:-3]:
        shutil.copy(file, folder)
    with open_session(options(folder, classes=("red", "blue"))) as session:
        assert session.state()["images"] == len(files) - 3
        assert [one["labels"] for one in session.state()["classes"]] == [0, 0]
        session.answer({0: Answer("red", "labelled"), 1: Answer("blue", "labelled")})
    for file in files[-3:]:
        shutil.copy(file, folder)
    # The settings of the features file are those it was made with.
    with open_session(
        LabelOptions(images=folder, labels=folder / "labels.csv", features=folder / "features.npz", progress=False)
    ) as session:
        assert session.state()["images"] == len(files)
        assert [one["labels"] for one in session.state()["classes"]] == [1, 1]
    assert main(["suggest", str(folder / "features.npz"), "--labels", str(folder / "labels.csv"), "--n", "2"]) == 0
