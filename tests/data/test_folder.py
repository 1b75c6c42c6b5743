import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from momatch.data.load import load_dataset
from momatch.data.report import DataError, DataWarning
from momatch.data.sources.folder import load_folder, scan_folder


def levels(split):
    return split.images[:, 0, 0, 0].tolist()


def break_file(path):
    path.write_bytes(path.read_bytes()[:-30])


def test_classes_in_order_and_unlabelled_last(folder, options):
    dataset, report = load_folder("pets", folder, options)
    assert dataset.class_names == ("cat", "dog", "emu")
    assert dataset.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [-1] * 2
    assert levels(dataset.train) == list(range(10, 80, 5))
    assert len(dataset.train.files) == len(dataset.train)
    assert all((folder / file).is_file() for file in dataset.train.files)
    assert dataset.test is None
    assert report.skipped == []
    assert report.conversions == {}


def test_numbered_classes_are_ordered_by_value(tmp_path, save_image, options):
    for k in (0, 1, 2, 10):
        save_image(tmp_path / f"d/{k}/a.png", value=k)
    dataset, _ = load_folder("d", tmp_path / "d", options)
    assert dataset.class_names == ("0", "1", "2", "10")
    assert levels(dataset.train) == [0, 1, 2, 10]


def test_test_folder(folder, save_image, options):
    save_image(folder / "test/emu/a.png", value=222)
    dataset, _ = load_folder("pets", folder, options)
    assert dataset.test is not None
    assert (levels(dataset.test), dataset.test.labels.tolist()) == ([222], [2])
    assert len(dataset.train) == 14


def test_train_folder_beside_test(folder, save_image, options):
    plain, _ = load_folder("pets", folder, options)
    (folder / "train").mkdir()
    for name in ("cat", "dog", "emu", "unlabeled"):
        (folder / name).rename(folder / "train" / name)
    save_image(folder / "test/cat/a.png")
    nested, _ = load_folder("pets", folder, options)
    assert torch.equal(plain.train.images, nested.train.images)
    assert nested.test is not None
    (folder / "more").mkdir()
    with pytest.raises(DataError, match="got the folders more next to train/"):
        load_folder("pets", folder, options)


def test_a_class_may_be_called_train(folder, save_image, options):
    save_image(folder / "train/a.png")
    assert scan_folder(folder, options).class_names == ("cat", "dog", "emu", "train")


def test_other_names_for_the_special_folders(folder, options):
    (folder / "unlabeled").rename(folder / "pool")
    (folder / "pool" / "inner").mkdir()
    changed = replace(options, unlabeled_folders=("pool",))
    dataset, _ = load_folder("pets", folder, changed)
    assert int((dataset.train.labels == -1).sum()) == 2


def test_held_out_fraction_is_seeded_and_stratified(folder, options):
    held = [
        load_folder("pets", folder, replace(options, test_fraction=0.25, test_seed=seed))[0] for seed in (0, 0, 1, 2)
    ]
    for dataset in held:
        assert dataset.test is not None
        assert dataset.test.labels.tolist() == [0, 1, 2]
        assert sorted(levels(dataset.train) + levels(dataset.test)) == list(range(10, 80, 5))
        assert dataset.train.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [-1] * 2
    chosen = [levels(dataset.test) for dataset in held]
    assert chosen[0] == chosen[1]
    assert chosen[0] != chosen[2] or chosen[0] != chosen[3]


def test_held_out_images_stay_so_when_others_are_labelled(folder, save_image, options):
    held = replace(options, test_fraction=0.5)
    before = set(scan_folder(folder, held).paths[-6:])
    assert len(before) == 6
    # Neither a new label nor a class with a single one takes back what was held out.
    (folder / "unlabeled/0.png").rename(folder / "cat/9.png")
    save_image(folder / "gnu/a.png")
    files = scan_folder(folder, held)
    after = set(files.paths[files.num_train :])
    assert len(before - after) <= 1
    assert "gnu/a.png" not in after


def test_held_out_fraction_must_leave_something(folder, save_image, options):
    with pytest.raises(DataError, match="of 12 labelled images in 3 classes is less than one image of each"):
        load_folder("pets", folder, replace(options, test_fraction=0.01))
    save_image(folder / "test/cat/a.png")
    with pytest.raises(DataError, match="got both test images and test_fraction"):
        load_folder("pets", folder, replace(options, test_fraction=0.5))


def test_corrupt_files_are_named_counted_and_skipped(folder, tmp_path):
    break_file(folder / "dog/1.png")
    (folder / "cat/3.png").write_bytes(b"no image at all")
    (folder / "emu/0.png").write_bytes(b"")
    for _ in range(2):
        with pytest.warns(DataWarning, match=r"skipped: 3 files(.|\n)*cat/3\.png(.|\n)*dog/1\.png(.|\n)*emu/0\.png"):
            dataset = load_dataset(folder, progress=False)
        assert dataset.train.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [-1] * 2
        assert levels(dataset.train) == [10, 15, 20, 30, 40, 45, 55, 60, 65, 70, 75]


def test_strict_and_the_limit_refuse_corrupt_files(folder, options):
    break_file(folder / "dog/1.png")
    with pytest.raises(DataError, match=r"expected at most 0 of 14:\n  dog/1.png[^\n]*\nRepair or remove them$"):
        load_folder("pets", folder, replace(options, strict=True))
    with pytest.raises(DataError, match=r"(?s)expected at most 0 of 14:.*Repair or remove them, or raise max_skipped$"):
        load_folder("pets", folder, replace(options, max_skipped=0))
    _, report = load_folder("pets", folder, options)
    assert [item.name for item in report.skipped] == ["dog/1.png"]
    # A cache from a lax time does not pass a strict one.
    with pytest.raises(DataError, match="expected at most 0"):
        load_folder("pets", folder, replace(options, strict=True))


def test_a_class_without_a_readable_image_is_kept(folder, options):
    for path in (folder / "dog").iterdir():
        break_file(path)
    dataset, report = load_folder("pets", folder, options)
    assert dataset.class_names == ("cat", "dog", "emu")
    assert 1 not in dataset.train.labels
    assert len(report.skipped) == 4


def test_nothing_readable_is_refused(folder, options):
    for path in folder.rglob("*.png"):
        break_file(path)
    with pytest.raises(DataError, match="cannot be read"):
        load_folder("pets", folder, options)
    with pytest.raises(DataError, match="none of the 14 files can be read"):
        load_folder("pets", folder, replace(options, max_skipped=100))


def test_a_link_to_nothing_is_named(folder, options):
    (folder / "cat/9.png").symlink_to(folder / "gone.png")
    _, report = load_folder("pets", folder, options)
    assert report.skipped[0].name == "cat/9.png"


def test_links_in_circles_end(folder, options):
    (folder / "cat/again").symlink_to(folder / "cat")
    dataset, _ = load_folder("pets", folder, options)
    assert len(dataset.train) == 14


def test_mixed_sizes_need_size(folder, save_image, options):
    save_image(folder / "dog/9.png", size=(10, 12))
    expected = r"mixed sizes: dog/9\.png: got 10x12 pixels, expected 8x8 like cat/0\.png\. Convert .*: size resizes"
    with pytest.raises(DataError, match=expected):
        load_folder("pets", folder, options)
    dataset, _ = load_folder("pets", folder, replace(options, size=6))
    assert dataset.train.images.shape == (15, 3, 6, 6)


def test_conversions_are_counted(folder, save_image, options):
    Image.fromarray(np.full((8, 8), 65535, np.uint16)).save(folder / "cat/sixteen.png")
    save_image(folder / "cat/alpha.png", mode="RGBA")
    save_image(folder / "cat/palette.png", mode="P", value=0)
    save_image(folder / "dog/gray.png", mode="L")
    dataset, report = load_folder("pets", folder, options)
    assert len(dataset.train) == 18
    assert report.conversions == {
        "16-bit to 8-bit": 1,
        "gray to three channels": 2,
        "transparency laid over white": 1,
        "palette to RGB": 1,
    }


def test_gray_folders_stay_gray_and_one_colour_image_makes_all_colour(tmp_path, save_image, options):
    for name in ("a", "b"):
        for i in range(3):
            save_image(tmp_path / f"d/{name}/{i}.png", mode="L")
    assert load_folder("d", tmp_path / "d", options)[0].train.images.shape == (6, 1, 8, 8)
    save_image(tmp_path / "d/b/9.png")
    dataset, report = load_folder("d", tmp_path / "d", options)
    assert dataset.train.images.shape == (7, 3, 8, 8)
    assert report.conversions == {"gray to three channels": 6}


def test_other_files_are_ignored_and_counted(folder, options):
    (folder / "cat/notes.txt").write_text("hello")
    (folder / "cat/.hidden.png").write_text("hello")
    names = load_folder("pets", folder, options)[0].class_names
    (folder / "__MACOSX/cat").mkdir(parents=True)
    (folder / "__MACOSX/cat/._0.png").write_text("hello")
    (folder / "__MACOSX/0.png").write_text("hello")
    dataset, report = load_folder("pets", folder, options)
    assert report.ignored == 1
    assert dataset.class_names == names


def test_nothing_is_refused(tmp_path, options):
    (tmp_path / "d/cat").mkdir(parents=True)
    with pytest.raises(
        DataError, match="got no images, expected one subfolder of images per class, or unlabelled images"
    ):
        load_folder("d", tmp_path / "d", options)


def test_loose_images_are_unlabelled_and_classes_may_be_empty(tmp_path, save_image, options):
    save_image(tmp_path / "d/a.png", value=3)
    dataset, _ = load_folder("d", tmp_path / "d", options)
    assert (dataset.class_names, dataset.train.labels.tolist(), dataset.train.files) == ((), [-1], ("a.png",))
    save_image(tmp_path / "d/cat/a.png")
    (tmp_path / "d/dog").mkdir()
    save_image(tmp_path / "d/test/emu/a.png")
    dataset, _ = load_folder("d", tmp_path / "d", options)
    assert dataset.class_names == ("cat", "dog", "emu")
    assert dataset.train.labels.tolist() == [0, -1]
    assert dataset.test.labels.tolist() == [2]


@pytest.mark.parametrize(
    "name",
    [
        *("Unlabelled", "unlabeled-2", "UNLABELLED images", "not_labeled", "no labels", "unannotated", "to label"),
        *("to_label", "To be labelled", "unsorted", "Unsorted 2", "to-sort", "unclassified", "uncategorised"),
    ],
)
def test_unlabelled_in_any_spelling(folder, options, name):
    (folder / "unlabeled").rename(folder / name)
    dataset, _ = load_folder("pets", folder, options)
    assert dataset.class_names == ("cat", "dog", "emu")
    assert dataset.train.labels.tolist()[-2:] == [-1, -1]


@pytest.mark.parametrize(
    "name", ["val", "Validation", "validation_set", "valid", "dev", "eval", "testing", "Test", "hold-out"]
)
def test_images_to_measure_with_in_any_spelling(folder, save_image, options, name):
    save_image(folder / name / "cat/a.png", value=222)
    dataset, _ = load_folder("pets", folder, options)
    assert dataset.class_names == ("cat", "dog", "emu")
    assert levels(dataset.test) == [222]
    if name.lower() != "test":
        save_image(folder / "test/cat/a.png")
        with pytest.raises(DataError, match=f"got the folders test and {name}, expected one folder of test images"):
            load_folder("pets", folder, options)
        (folder / "test/cat/a.png").unlink()
        (folder / "test/cat").rmdir()
        (folder / "test").rmdir()
    save_image(folder / name / "a.png")
    with pytest.raises(
        DataError, match="if it is a class, rename it, or set another name for the test folder with test_folder"
    ):
        load_folder("pets", folder, options)


def test_training_folder_in_another_spelling(folder, options):
    (folder / "Training-Set").mkdir()
    for name in ("cat", "dog", "emu", "unlabeled"):
        (folder / name).rename(folder / "Training-Set" / name)
    assert scan_folder(folder, options).class_names == ("cat", "dog", "emu")


def test_a_changed_file_is_read_again(folder, save_image, options):
    first, _ = load_folder("pets", folder, options)
    save_image(folder / "cat/0.png", value=250)
    os.utime(folder / "cat/0.png", ns=(1, 1))
    second, _ = load_folder("pets", folder, options)
    assert levels(first.train)[0] == 10
    assert levels(second.train)[0] == 250


def test_names_of_any_bytes(folder, save_image, options):
    odd = os.fsdecode(b"caf\xe9.png")
    (folder / "cat/0.png").rename(folder / "cat" / odd)
    dataset, _ = load_folder("pets", folder, options)
    assert len(dataset.train) == 14
