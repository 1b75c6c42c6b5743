"""Label a few more, train again: what a run on features sees of labels that are kept in a folder."""

import shutil
from dataclasses import replace

import pytest

from momatch.cli import main as cli
from momatch.config import TrainConfig
from momatch.data.labeling import STORED
from momatch.data.load import load_dataset
from momatch.embedding import embed
from momatch.inference.evaluate import evaluate_run
from momatch.report.collect import collect
from momatch.storage.data_record import read_data_record
from momatch.training.data import load_run_data
from momatch.training.fit import fit
from momatch.training.run import Run
from tests.embedding.folders import folder_options, write_image
from tests.embedding.test_training import small_config
from tests.training.test_fit import assert_same_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    embed(folder_options(tmp_path))
    return tmp_path


def label_two(folder):
    pets = folder / "pets"
    (pets / "unlabeled/cat0.png").rename(pets / "cat/more.png")
    (pets / "unlabeled/dog0.png").rename(pets / "dog/more.png")


def trained(folder, name, **settings):
    small = {"steps": 6, "checkpoint_interval": 2, "run_dir": str(folder / name), "labels_per_class": None}
    config = small_config(folder, **small, **settings)
    return fit(config, trust_code=True)


def test_all_labels_of_the_folder_are_used_as_they_are_now(folder):
    assert trained(folder, "first").result["labeled_images"] == 12
    label_two(folder)
    write_image(folder / "pets/emu/new.png", 1000, 2)
    run = trained(folder, "second")
    assert run.result["labeled_images"] == 14
    notes = read_data_record(run.directory).notes
    assert notes[0] == f"labels are read from {folder / 'pets'}: 2 changed since the embedding"
    assert notes[1].startswith("not used: 1 image of ")
    assert "2 changed since" in (run.directory / "run.log").read_text()
    record = read_data_record(run.directory)
    assert (record.labels, record.labeled) == (str(folder / "pets"), 14)
    lines = (run.directory / "labels.csv").read_text().splitlines()
    assert lines[0] == "path,label,split,digest"
    assert sum(line.startswith("cat/more.png,cat,train,") for line in lines) == 1
    assert trained(folder, "third", labels=STORED).result["labeled_images"] == 12
    assert not (folder / "third/labels.csv").exists()
    emus = "".join(f"emu/{i}.png,\n" for i in range(4))
    (folder / "few.csv").write_text(f"path,label\nunlabeled/cat5.png,cat\nunlabeled/dog5.png,dog\n{emus}")
    fourth = trained(folder, "fourth", labels=str(folder / "few.csv"))
    assert fourth.result["labeled_images"] == 14 + 2 - 4
    assert any(note.startswith("2 labels from ") for note in read_data_record(fourth.directory).notes)
    assert read_data_record(fourth.directory).notes[-1].startswith("the class emu has no label yet")


def test_an_old_run_stays_what_it_was(folder):
    run = trained(folder, "run")
    label_two(folder)
    assert load_run_data(run.directory).digest() == read_data_record(run.directory).digest
    assert evaluate_run(run)["accuracy"] == run.result["test_accuracy"]
    assert not collect(run.directory, trust_code=True, most_points=20).problems
    embed(folder_options(folder))
    assert evaluate_run(run)["accuracy"] == run.result["test_accuracy"]
    shutil.rmtree(folder / "pets")
    assert evaluate_run(Run.load(run.directory, trust_code=True))["accuracy"] == run.result["test_accuracy"]


def test_resumed_run_keeps_its_labels_and_says_that_there_are_others(folder, monkeypatch):
    from momatch.training.step import TrainStep

    whole = trained(folder, "whole")
    step = TrainStep.__call__

    def dying(self, batch, **options):
        if batch.step == 4:
            raise KeyboardInterrupt
        step(self, batch, **options)

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            trained(folder, "resumed")
    label_two(folder)
    trained(folder, "resumed", resume=True)
    assert_same_run(whole.directory, folder / "resumed")
    log = (folder / "resumed/run.log").read_text()
    assert "images or labels have changed since the run was started: it goes on with the 12 labels in" in log
    assert "there are 14 now: start a new run to use them" in log


def test_a_class_without_a_label_is_left_out_and_reported(folder, capsys, monkeypatch):
    pets = folder / "pets"
    for path in (pets / "emu").iterdir():
        path.rename(pets / "unlabeled" / f"was{path.name}")
    run = trained(folder, "run")
    assert run.class_names == ("cat", "dog")
    assert run.result["test_images"] == 6
    assert read_data_record(run.directory).notes[-1] == (
        "the class emu has no label yet and cannot be predicted; 3 test images of it are not counted in the accuracy"
    )
    # They are unknown to the model, so they serve as outliers.
    assert evaluate_run(run)["outliers"]["held-out classes"]["n"] == 3
    for path in (pets / "dog").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"got labels of 1 classes \(cat\), expected at least two; label a few images"):
        trained(folder, "none")


def test_commands_from_a_folder_without_labels_to_a_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    for i in range(24):
        write_image(tmp_path / f"photos/{i}.png", i, i % 2)
    words = ["embed", "photos", "--out", "f.npz", "--backbone", "tests.embedding.setting:corners", "--no-progress"]
    assert cli.main(words) == 0
    assert "Label a few images of two classes or more" in capsys.readouterr().out
    train = ["train", "--dataset", "f.npz", "--steps", "2", "--device", "cpu", "--no-progress", "--trust-code"]
    small = [*train, "--graph-neighbors", "2", "--run-dir", "run"]
    assert cli.main(small) == 1
    assert "got labels of 0 classes (none), expected at least two" in capsys.readouterr().err
    for i in range(8):
        name = tmp_path / ("left" if i % 2 else "right")
        (tmp_path / "photos" / name.name).mkdir(exist_ok=True)
        (tmp_path / f"photos/{i}.png").rename(tmp_path / "photos" / name.name / f"{i}.png")
    assert cli.main(small) == 0
    assert "labels are read from photos: 8 changed since the embedding" in capsys.readouterr().out
    assert cli.main(words) == 0
    assert "kept the features of 24 images, added 0, dropped 0 that are gone" in capsys.readouterr().out


def test_default_of_labels_per_class_is_for_built_in_data():
    assert TrainConfig(dataset="cifar10").resolved().labels_per_class == 4
    assert TrainConfig(dataset="photos").resolved().labels_per_class == 0
    assert replace(TrainConfig(dataset="photos"), labels_per_class=3).resolved().labels_per_class == 3


def test_images_of_no_class_are_neither_labelled_nor_in_the_pool(folder):
    listed = [file.relative_to(folder / "pets") for file in sorted((folder / "pets").glob("[cde]*/*.png"))]
    text = "path,label,status\n" + "".join(f"{file},{file.parent},\n" for file in listed)
    (folder / "pets/labels.csv").write_text(text)
    whole = trained(folder, "whole", labels=str(folder / "pets/labels.csv"))
    (folder / "pets/labels.csv").write_text(text + "unlabeled/cat0.png,,none\nunlabeled/cat1.png,,none\n")
    run = trained(folder, "less", labels=str(folder / "pets/labels.csv"))
    before, after = (read_data_record(each.directory) for each in (whole, run))
    assert (before.train - after.train, before.labeled - after.labeled) == (2, 0)
    assert any(note.startswith("left out: 2 images of no class") for note in after.notes)
    # The run knows them again, and so does whoever takes its labels for a manifest.
    for dataset in (
        load_run_data(run.directory),
        load_dataset(folder / "features.npz", labels=run.directory / "labels.csv"),
    ):
        assert sorted(dataset.no_class.files) == ["unlabeled/cat0.png", "unlabeled/cat1.png"]
        assert not set(dataset.no_class.files) & set(dataset.train.files)
    assert "status" not in (whole.directory / "labels.csv").read_text()
    assert 0 <= evaluate_run(run)["accuracy"] <= 1
