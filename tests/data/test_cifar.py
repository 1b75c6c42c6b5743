import os
import pickle

import numpy as np
import pytest
import torch

from momatch.data.load import load_dataset
from momatch.data.report import DataError, DataWarning
from momatch.data.sources.cifar import load_cifar, read_binary, read_python


def make(rng, count, num_classes):
    images = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    return images, rng.integers(0, num_classes, count, dtype=np.uint8)


def write_bin(path, images, labels, coarse=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [labels[:, None] // 5, labels[:, None]] if coarse else [labels[:, None]]
    np.concatenate([*columns, images], axis=1).astype(np.uint8).tofile(path)


def write_py(path, images, labels, key, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = {b"data": images, key: [int(k) for k in labels], b"batch_label": b"batch 1 of 5", b"filenames": [b"a.png"]}
    path.write_bytes(pickle.dumps(batch, protocol=protocol))


MEMBERS = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]


def test_cifar10_layouts_agree(tmp_path, rng, options):
    for member in MEMBERS:
        images, labels = make(rng, 6, 10)
        write_bin(tmp_path / f"bin/cifar-10-batches-bin/{member}.bin", images, labels)
        write_py(tmp_path / f"py/cifar-10-batches-py/{member}", images, labels, b"labels")
    binary, _ = load_cifar("cifar10", tmp_path / "bin", options)
    python, _ = load_cifar("cifar10", tmp_path / "py", options)
    assert binary.train.images.shape == (30, 3, 32, 32)
    assert binary.class_names[0] == "airplane"
    for one, other in ((binary.train, python.train), (binary.test, python.test)):
        assert one is not None
        assert other is not None
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    assert (binary.test.images[-1].flatten().numpy() == images[-1]).all()


def test_cifar100_layouts_agree(tmp_path, rng, options):
    names = [f"class{k}" for k in range(100)]
    (tmp_path / "bin/cifar-100-binary").mkdir(parents=True)
    (tmp_path / "bin/cifar-100-binary/fine_label_names.txt").write_text("\n".join(names) + "\n")
    for member in ("train", "test"):
        images, labels = make(rng, 8, 100)
        write_bin(tmp_path / f"bin/cifar-100-binary/{member}.bin", images, labels, coarse=True)
        write_py(tmp_path / f"py/cifar-100-python/{member}", images, labels, b"fine_labels")
    meta = {b"fine_label_names": [name.encode() for name in names]}
    (tmp_path / "py/cifar-100-python/meta").write_bytes(pickle.dumps(meta, protocol=2))
    binary, _ = load_cifar("cifar100", tmp_path / "bin", options)
    python, _ = load_cifar("cifar100", tmp_path / "py", options)
    assert binary.class_names == python.class_names == tuple(names)
    assert torch.equal(binary.train.images, python.train.images)
    assert binary.train.labels.tolist() == python.train.labels.tolist()


@pytest.mark.parametrize("protocol", range(5))
def test_every_pickle_protocol(tmp_path, rng, protocol):
    images, labels = make(rng, 4, 10)
    write_py(tmp_path / "batch", images, labels, b"labels", protocol)
    assert read_python(tmp_path / "batch", "labels", 10).labels.tolist() == labels.tolist()


class Evil:
    def __reduce__(self):
        return os.system, ("echo ran > evil.txt",)


@pytest.mark.parametrize("content", [Evil(), {b"data": Evil()}, {b"data": np.array([Evil()], object)}])
def test_a_forged_pickle_runs_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batch").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match="cannot be read"):
        read_python(tmp_path / "batch", "labels", 10)
    assert not (tmp_path / "evil.txt").exists()


def test_a_batch_of_something_else_is_refused(tmp_path):
    for content in ([1, 2], {b"data": b"text"}, {b"data": np.zeros((2, 7), np.uint8), b"labels": [1, 2]}):
        (tmp_path / "batch").write_bytes(pickle.dumps(content))
        with pytest.raises(DataError, match="got"):
            read_python(tmp_path / "batch", "labels", 10)


def test_truncated_and_foreign_binaries_are_refused(tmp_path, rng):
    images, labels = make(rng, 4, 10)
    write_bin(tmp_path / "a.bin", images, labels)
    raw = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "a.bin").write_bytes(raw[:-5])
    with pytest.raises(DataError, match="expected a multiple of 3073; the file is incomplete"):
        read_binary(tmp_path / "a.bin", 1, 10)
    write_bin(tmp_path / "b.bin", images, labels + 200)
    with pytest.raises(DataError, match="expected 0 to 9"):
        read_binary(tmp_path / "b.bin", 1, 10)


def test_an_incomplete_folder_names_what_is_missing(tmp_path, rng, options):
    for member in MEMBERS[1:]:
        write_bin(tmp_path / f"cifar-10-batches-bin/{member}.bin", *make(rng, 2, 10))
    with pytest.raises(DataError, match=r"is incomplete(.|\n)*data_batch_1\.bin"):
        load_cifar("cifar10", tmp_path, options)


def test_a_subset_is_said_to_be_one(tmp_path, rng):
    for member in MEMBERS:
        write_bin(tmp_path / f"cifar-10-batches-bin/{member}.bin", *make(rng, 2, 10))
    with pytest.warns(DataWarning, match="got 10 training and 2 test images, the official cifar10 has 50000 and 10000"):
        load_dataset("cifar10", tmp_path, progress=False)
