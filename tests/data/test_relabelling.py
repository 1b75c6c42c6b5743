"""Never a silent relabelling: data that could be taken for something else is refused, or read as it was meant."""

import gzip

import numpy as np
import pytest
import torch

from momatch import load_dataset
from momatch.data.load import load_with_report
from momatch.data.locate import find
from momatch.data.report import DataError, DataWarning, LoadOptions
from momatch.data.sources.torch_dataset import from_torch_dataset
from momatch.data.statistics import normalization


@pytest.fixture
def pictures(tmp_path, save_image):
    """Four images that a manifest can name."""
    for i in range(4):
        save_image(tmp_path / f"{i}.png", value=20 * i)
    return tmp_path


def manifest(folder, *rows, header="path,label"):
    path = folder / "table.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_minus_one_in_a_manifest_is_unlabelled(pictures):
    dataset = load_dataset(manifest(pictures, "0.png,0", "1.png,1", "2.png,-1", "3.png,"), progress=False)
    assert dataset.class_names == ("0", "1")
    assert dataset.train.labels.tolist() == [0, 1, -1, -1]


def test_missing_values_in_a_manifest_are_no_class(pictures):
    table = manifest(pictures, "0.png,a", "1.png,b", "2.png,nan", "3.png,NA")
    with pytest.warns(DataWarning, match=r"line 4: 2\.png: got the label 'nan'"):
        dataset = load_dataset(table, progress=False)
    assert dataset.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (["0.png,1", "1.png,01"], "path,label", "expected each number in one spelling"),
        (["0.png,0", "./0.png,1", "1.png,1"], "path,label", "lines 2 and 3 give"),
        (["0.png,0,train", "./0.png,0,test", "1.png,1,train"], "path,label,split", "lines 2 and 3 give"),
        (["0.png,0,1", "1.png,1,0"], "path,label,label", "column label more than once"),
    ],
)
def test_ambiguous_manifests_are_refused(pictures, rows, header, message):
    with pytest.raises(DataError, match=message):
        load_dataset(manifest(pictures, *rows, header=header), progress=False)


def test_split_names_may_be_capitalised(pictures):
    table = manifest(pictures, "0.png,0,Train", "1.png,1,Train", "2.png,0,Test", header="path,label,split")
    assert len(load_dataset(table, progress=False).test) == 1


def test_bytes_in_parquet_are_refused(pictures):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"path": ["0.png", "1.png"], "label": [b"cat", b"dog"]}), pictures / "t.parquet")
    with pytest.raises(DataError, match="save the column as strings"):
        load_dataset(pictures / "t.parquet", progress=False)


def test_files_that_several_datasets_share_need_their_folder(tmp_path):
    names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    clothes = tmp_path / "fashion-mnist"
    clothes.mkdir()
    for name in names:
        (clothes / f"{name}.gz").write_bytes(gzip.compress(b"x"))
    assert find("fashion-mnist", tmp_path) is not None
    assert find("fashion-mnist", clothes) is not None
    assert find("mnist", clothes) is None
    assert find("kmnist", clothes) is None


@pytest.mark.parametrize(
    ("train", "test", "unlabeled"), [("Train", "Test", "Unlabeled"), ("train", "TEST", "UNLABELLED")]
)
def test_special_folders_in_any_case(tmp_path, save_image, train, test, unlabeled):
    for k, name in enumerate(("cat", "dog")):
        save_image(tmp_path / f"d/{train}/{name}/a.png", value=k)
        save_image(tmp_path / f"d/{test}/{name}/b.png", value=k)
    save_image(tmp_path / f"d/{unlabeled}/c.png", value=9)
    dataset = load_dataset(tmp_path / "d", progress=False)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 1, -1]
    assert dataset.test.labels.tolist() == [0, 1]


def test_splits_are_not_taken_for_classes(tmp_path, save_image):
    for part in ("first", "second"):
        for name in ("cat", "dog"):
            save_image(tmp_path / f"d/{part}/{name}/a.png", value=1)
    with pytest.raises(DataError, match="got first, second with the same subfolders cat, dog"):
        load_dataset(tmp_path / "d", progress=False)
    (tmp_path / "d/first").rename(tmp_path / "d/training")
    (tmp_path / "d/second").rename(tmp_path / "d/testing")
    dataset = load_dataset(tmp_path / "d", progress=False)
    assert (dataset.class_names, len(dataset.train), len(dataset.test)) == (("cat", "dog"), 2, 2)


@pytest.mark.parametrize("empty", ["test/cat", "test", "unlabeled"])
def test_empty_special_folders_are_as_if_they_were_not_there(tmp_path, save_image, empty):
    for name in ("cat", "dog"):
        save_image(tmp_path / f"d/{name}/a.png", value=1)
    (tmp_path / "d" / empty).mkdir(parents=True)
    dataset = load_dataset(tmp_path / "d", progress=False)
    assert (dataset.class_names, len(dataset.train), dataset.test) == (("cat", "dog"), 2, None)


@pytest.mark.usefixtures("unchecked")
def test_options_are_checked(tmp_path):
    with pytest.raises(DataError, match="unlabeled_folders: got 'Unlabeled', expected a tuple"):
        load_dataset(tmp_path, unlabeled_folders="Unlabeled")
    with pytest.raises(DataError, match=r"options: got 'sise', .* did you mean 'size'"):
        load_dataset("digits", sise=3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": [0, 0, 0]}, r"got 1 class \(0\), expected at least two"),
        ({"labels": [0, 5, 0]}, "labels: got none of class 1, 2, 3, 4"),
        ({"labels": [0, 1, 0], "class_names": "ab"}, r"class_names: got shape \(\)"),
        ({"labels": [0, 1, 0], "class_names": ["a", "a"]}, "expected no repeats"),
        ({"labels": [0, 1, 0], "test_labels": [0]}, "test_labels without test_images"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, arrays, message):
    images = np.zeros((3, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, **{key: np.array(value) for key, value in arrays.items()})
    with pytest.raises(DataError, match=message):
        load_dataset(tmp_path / "a.npz")


def test_an_empty_archive_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((0, 4, 4), np.uint8), labels=np.zeros(0, np.int64))
    with pytest.raises(DataError, match="images: got none"):
        load_dataset(tmp_path / "a.npz")


def test_classes_without_a_label_must_be_named(tmp_path):
    samples = torch.utils.data.TensorDataset(
        torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    )
    with pytest.raises(DataError, match=r"got 1 class \(0\), expected at least two"):
        from_torch_dataset(samples, progress=False)
    assert from_torch_dataset(samples, class_names=["a", "b"], progress=False).class_names == ("a", "b")
    with pytest.raises(DataError, match="expected no repeats"):
        from_torch_dataset(samples, class_names=["a", "a"], progress=False)
    images = np.zeros((3, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.zeros(3, np.int64), class_names=np.array(["a", "b"]))
    assert load_dataset(tmp_path / "a.npz").class_names == ("a", "b")


def test_a_cached_torch_dataset_is_not_given_for_a_longer_one(tmp_path):
    def dataset(count):
        images = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
        return torch.utils.data.TensorDataset(images, torch.arange(count) % 2)

    options = {"cache_key": "k", "cache_dir": tmp_path, "progress": False}
    assert len(from_torch_dataset(dataset(4), **options).train) == 4
    assert len(from_torch_dataset(dataset(6), **options).train) == 6


def test_a_folder_called_like_a_known_dataset_has_its_own_statistics(tmp_path, save_image):
    for k, name in enumerate(("cat", "dog")):
        save_image(tmp_path / f"cifar10/{name}/a.png", value=100 * k)
    dataset, _ = load_with_report(tmp_path / "cifar10", None, LoadOptions(progress=False))
    from momatch.data.rows import PixelRows

    mean, _ = normalization(dataset.name, PixelRows([dataset.train.images]))
    assert mean[0] == pytest.approx(50 / 255)
