"""Labels of embedded images, read where they are: what follows them, what is missing, and what is refused."""

import shutil
import zipfile
from dataclasses import replace

import pytest
import torch

from momatch.data import content
from momatch.data.feature_spec import MARKER
from momatch.data.features import write_archive
from momatch.data.labeling import label_record
from momatch.data.load import load_dataset
from momatch.data.report import DataError
from momatch.embedding import embed
from tests.embedding.folders import folder_options, write_image


@pytest.fixture
def options(tmp_path):
    options = folder_options(tmp_path)
    embed(options)
    return options


def by_file(split, class_names):
    names = (*class_names, None)
    return {file: names[label] for file, label in zip(split.files, split.labels.tolist(), strict=True)}


def test_labels_follow_the_folder_and_no_file_is_read(tmp_path, options, monkeypatch):
    stored = load_dataset(options.out)
    assert stored.labeling.source == str(tmp_path / "pets")
    assert (stored.labeling.changed, stored.labeling.missing, stored.labeling.dropped) == (0, 0, 0)
    pets = tmp_path / "pets"
    (pets / "unlabeled/cat0.png").rename(pets / "cat/named.png")
    (pets / "unlabeled/dog0.png").rename(pets / "unlabeled/gnu.png")
    (pets / "gnu").mkdir()
    (pets / "unlabeled/gnu.png").rename(pets / "gnu/gnu.png")
    (pets / "emu/0.png").unlink()
    monkeypatch.setattr(content, "_of_file", lambda path: pytest.fail(f"{path} was read again"))
    now = load_dataset(options.out)
    assert now.class_names == ("cat", "dog", "emu", "gnu")
    labels = by_file(now.train, now.class_names)
    assert labels["cat/named.png"] == "cat"
    assert labels["gnu/gnu.png"] == "gnu"
    assert "emu/0.png" not in labels
    assert (now.labeling.changed, now.labeling.dropped) == (2, 1)
    # Each image keeps its own features.
    where = stored.train.files.index("unlabeled/cat0.png")
    here = now.train.files.index("cat/named.png")
    every = torch.arange(len(now.train))
    assert torch.equal(now.train.rows.gather(every)[here], stored.train.features[where])
    assert torch.equal(now.train.rows.stages_at(every)[here], stored.train.rows.stages_at(torch.tensor([where]))[0])


def test_reading_labels_and_embedding_again_are_the_same(tmp_path, options):
    pets = tmp_path / "pets"
    (pets / "unlabeled/cat0.png").rename(pets / "cat/named.png")
    (pets / "dog/0.png").rename(pets / "unlabeled/dog.png")
    (pets / "emu/1.png").rename(pets / "test/emu/was.png")
    read = load_dataset(options.out)
    embed(options)
    again = load_dataset(options.out)
    assert read.digest() == again.digest()
    assert (read.train.files, read.test.files) == (again.train.files, again.test.files)
    assert again.labeling.changed == 0


def test_new_images_are_counted_with_the_command_that_embeds_them(tmp_path, options):
    write_image(tmp_path / "pets/cat/new.png", 1000, 0)
    (tmp_path / "pets/test/cat/0.png").rename(tmp_path / "pets/cat/was.png")
    labeling = load_dataset(options.out).labeling
    # What was embedded for testing has no views to train on.
    assert (labeling.missing, labeling.dropped) == (2, 1)
    notes = labeling.notes()
    assert notes[0] == f"labels are read from {tmp_path / 'pets'}: as at the embedding"
    assert notes[2].startswith("not used: 2 images of ")
    assert f"run: momatch embed {tmp_path / 'pets'} --out {options.out} --backbone tests.embedding" in notes[2]
    assert "--weak-views 2 --flip no --seed 3" in notes[2]


def test_without_the_folder_the_stored_labels_are_used(tmp_path, options):
    stored = load_dataset(options.out, labels="stored")
    assert (stored.labeling.source, stored.labeling.notes()) == (None, [])
    (tmp_path / "pets").rename(tmp_path / "gone")
    alone = load_dataset(options.out)
    assert alone.digest() == stored.digest()
    assert alone.labeling.notes() == [f"labels are those stored with the features: {tmp_path / 'pets'} is not there"]
    # Another folder in its place.
    write_image(tmp_path / "pets/cat/0.png", 5000, 0)
    other = load_dataset(options.out)
    assert other.digest() == stored.digest()
    assert other.labeling.notes()[0].endswith("pets has none of these images")
    with pytest.raises(
        DataError, match=r"pets has none of the images of .*features.npz, expected a folder or manifest"
    ):
        load_dataset(options.out, labels=tmp_path / "pets")


def test_folder_and_file_that_were_moved_together_are_found(tmp_path, options, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    shutil.move(tmp_path / "pets", home / "pets")
    shutil.move(options.out, home / "features.npz")
    assert load_dataset(home / "features.npz").labeling.source == str(home / "pets")
    monkeypatch.chdir(home)
    assert load_dataset("features.npz").labeling.source is not None


def test_manifest_labels_by_file_name(tmp_path, options):
    path = tmp_path / "labels.csv"
    rows = [
        "path,label,split",
        "unlabeled/cat0.png,cat,",
        f"{tmp_path}/elsewhere/unlabeled/dog0.png,dog,train",
        "emu3.png,fox,",
        "cat/0.png,,",
        "dog/0.png,dog,test",
        "nowhere.png,dog,",
        "test/cat/0.png,dog,train",
    ]
    path.write_text("\n".join(rows) + "\n")
    shutil.rmtree(tmp_path / "pets")
    dataset = load_dataset(options.out, labels=path)
    labels = by_file(dataset.train, dataset.class_names)
    listed = {("cat", 0), ("dog", 0)}
    assert {file: name for file, name in labels.items() if name} == {
        "unlabeled/cat0.png": "cat",
        "unlabeled/dog0.png": "dog",
        "unlabeled/emu3.png": "fox",
        # The folder is gone; what it said at the embedding still holds for images that are not listed.
        **{f"{name}/{i}.png": name for name in ("cat", "dog", "emu") for i in range(4) if (name, i) not in listed},
    }
    assert len(dataset.train) == 41
    # Test images that are not listed keep their labels.
    tested = by_file(dataset.test, dataset.class_names)
    assert len(tested) == 10
    assert (tested["dog/0.png"], tested["test/emu/1.png"], tested["test/cat/0.png"]) == ("dog", "emu", "dog")
    assert dataset.class_names == ("cat", "dog", "emu", "fox")
    assert (dataset.labeling.missing, dataset.labeling.gone) == (0, 1)
    assert "3 labels from" in dataset.labeling.notes()[1]
    assert "10 from the folder, as at the embedding" in dataset.labeling.notes()[1]


def test_a_manifest_adds_to_what_the_folder_says(tmp_path, options):
    pets, path = tmp_path / "pets", tmp_path / "to_label.csv"
    path.write_text(
        "path,label,status\nunlabeled/cat0.png,cat,\nunlabeled/dog0.png,,\ncat/0.png,dog,\ncat/1.png,,none\n"
        "unlabeled/dog1.png,,\nunlabeled/emu0.png,emu,\n"
    )
    (pets / "unlabeled/dog1.png").rename(pets / "dog/moved.png")
    (pets / "unlabeled/emu0.png").unlink()
    now = load_dataset(options.out, labels=path)
    labels = by_file(now.train, now.class_names)
    assert (labels["unlabeled/cat0.png"], labels["cat/0.png"], labels["cat/2.png"]) == ("cat", "dog", "cat")
    assert labels["dog/moved.png"] == "dog", "an empty label of the place where it was says nothing"
    assert now.no_class.files == ("cat/1.png",)
    assert "unlabeled/emu0.png" not in labels
    assert (now.labeling.listed, now.labeling.from_folder, now.labeling.gone, now.labeling.dropped) == (2, 11, 1, 1)
    notes = now.labeling.notes()
    assert f"2 labels from {path}, 11 from {pets}" in notes
    assert f"not used: 1 row of {path} without an image file" in notes
    assert f"not used: 1 embedded image no longer in {pets}" in notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n0.png,cat\n", r"line 2: got 0.png, which fits 6 embedded images, expected more of its path"),
        ("path,label\nother.png,cat\n", r"got none of the images of .*, expected names such as cat/0.png"),
        ("path\ncat/0.png\n", r"got the columns path, expected path and label"),
        ("path,label\ncat/0.png,cat\ncat/0.png,dog\n", r"different labels"),
    ],
)
def test_manifests_that_cannot_be_used_are_refused(tmp_path, options, text, message):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_dataset(options.out, labels=path)


def test_labels_that_are_not_there_or_do_not_apply_are_refused(tmp_path, options):
    with pytest.raises(DataError, match=r"labels: got .*none.csv, which does not exist, expected a manifest or folder"):
        load_dataset(options.out, labels=tmp_path / "none.csv")
    with pytest.raises(DataError, match="labels does not apply to this dataset"):
        load_dataset("digits", labels=tmp_path)
    (tmp_path / "pets/val").mkdir()
    with pytest.raises(
        DataError, match=r"got the folders test and val.*or train with the labels stored in .*--labels stored"
    ):
        load_dataset(options.out)


def test_held_out_images_stay_held_out_when_others_are_labelled(tmp_path):
    options = folder_options(tmp_path)
    shutil.rmtree(tmp_path / "pets/test")
    options = replace(options, test_fraction=0.5)
    assert embed(options).test == 6
    before = set(load_dataset(options.out).test.files)
    (tmp_path / "pets/unlabeled/cat0.png").rename(tmp_path / "pets/cat/cat0.png")
    now = load_dataset(options.out)
    assert len(before - set(now.test.files)) <= 1
    assert now.labeling.missing <= 1


def test_record_of_labels_finds_the_same_images_again(tmp_path, options):
    pets = tmp_path / "pets"
    (pets / "fox").mkdir()
    then = load_dataset(options.out)
    path = tmp_path / "record.csv"
    splits = {name: (split.labels.tolist(), split.files, split.digests) for name, split in then.splits.items()}
    path.write_bytes(label_record(splits, then.class_names))
    (pets / "unlabeled/cat0.png").rename(pets / "cat/named.png")
    assert load_dataset(options.out).digest() != then.digest()
    assert load_dataset(options.out, labels=path).digest() == then.digest()
    embed(options)
    assert load_dataset(options.out, labels=path).digest() == then.digest()
    (pets / "emu/0.png").unlink()
    embed(options)
    with pytest.raises(DataError, match=r"1 of its images are not in .*features.npz, expected all"):
        load_dataset(options.out, labels=path)
    path.write_text("path,label,split,digest\nx,y,train,zz\n")
    with pytest.raises(DataError, match="line 2 cannot be read; the file is damaged"):
        load_dataset(options.out, labels=path)


def test_files_of_the_older_format_are_read_with_their_labels(tmp_path, options):
    import json

    with zipfile.ZipFile(options.out) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if "digests" not in name}
    facts = json.loads(members[MARKER])
    for key in ("source", "source_near", "options"):
        del facts[key]
    members[MARKER] = json.dumps(facts | {"version": 2}).encode()
    old = tmp_path / "old.npz"
    write_archive(old, members)
    dataset = load_dataset(old)
    assert dataset.train.digests is None
    assert dataset.labeling.source is None
    assert dataset.digest() == load_dataset(options.out, labels="stored").digest()
    with pytest.raises(ValueError, match=r"old.npz was made by momatch .*, which did not record its images"):
        embed(replace(options, out=old))


def test_images_of_no_class_are_known_but_not_used(tmp_path, options):
    manifest = tmp_path / "pets/labels.csv"
    manifest.write_text(
        "path,label,status\ncat/0.png,cat,\ndog/0.png,dog,none\nunlabeled/cat0.png,,none\nunlabeled/dog0.png,,skipped\n"
        "test/cat/0.png,,none\n"
    )
    stored = load_dataset(options.out, labels="stored")
    now = load_dataset(options.out, labels=manifest)
    assert len(now.train) == len(stored.train) - 1
    assert len(now.test) == len(stored.test) - 1
    assert not {"unlabeled/cat0.png", "test/cat/0.png"} & {*now.train.files, *now.test.files}
    assert by_file(now.train, now.class_names)["dog/0.png"] == "dog"
    assert now.no_class.files == ("unlabeled/cat0.png",)
    assert now.no_class.labels.tolist() == [-2]
    where = stored.train.files.index("unlabeled/cat0.png")
    assert torch.equal(now.no_class.features[0], stored.train.features[where])
    assert len(now.train.features) == len(now.train), "the features of the images in use"
    assert now.labeling.dropped == 0
    assert now.no_class_notes()[0].startswith("left out: 1 image of no class")


def test_a_manifest_that_was_embedded_says_later_what_is_of_no_class(tmp_path, options):
    manifest = tmp_path / "pets/own.csv"
    rows = ["cat/0.png,cat", "cat/1.png,cat", "dog/0.png,dog", "unlabeled/cat0.png,", "unlabeled/dog0.png,"]
    manifest.write_text("path,label\n" + "".join(f"{row}\n" for row in rows))
    own = replace(options, dataset=str(manifest), out=tmp_path / "own.npz")
    embed(own)
    manifest.write_text(
        "path,label,status\n" + "".join(f"{row},\n" for row in rows[:-1]) + "unlabeled/dog0.png,,none\n"
    )
    now = load_dataset(own.out)
    assert (len(now.train), now.no_class.files, now.labeling.dropped) == (4, ("unlabeled/dog0.png",), 0)
    # Embedding again leaves it out; nobody misses it.
    assert embed(own).train == 4
    again = load_dataset(own.out)
    assert (len(again.train), again.no_class, again.labeling.missing) == (4, None, 0)
