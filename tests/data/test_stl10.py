from dataclasses import replace

import numpy as np
import pytest
import torch

from momatch.data.report import DataError
from momatch.data.sources.stl10 import load_stl10, map_binary
from tests.data.test_near_duplicates import pictures


def write(folder, name, images):
    folder.mkdir(parents=True, exist_ok=True)
    images.numpy().transpose(0, 1, 3, 2).tofile(folder / f"{name}_X.bin")


@pytest.fixture
def stl10(tmp_path):
    folder = tmp_path / "stl10_binary"
    train, test = pictures(20, seed=1), pictures(10, seed=2)
    unlabeled = torch.cat(
        [pictures(12, seed=3), (test[:4].int() + 10).clamp(0, 255).to(torch.uint8), test[4:5].flip(-1)]
    )
    for name, images in (("train", train), ("test", test), ("unlabeled", unlabeled)):
        write(folder, name, images)
    (np.arange(20, dtype=np.uint8) % 10 + 1).tofile(folder / "train_y.bin")
    (np.arange(10, dtype=np.uint8) + 1).tofile(folder / "test_y.bin")
    return tmp_path, train, unlabeled, test


def test_columns_and_rows_are_set_right_and_the_unlabelled_follow(stl10, options):
    data_dir, train, unlabeled, test = stl10
    dataset, report = load_stl10("stl10", data_dir, options)
    assert torch.equal(dataset.train.images, torch.cat([train, unlabeled]))
    assert torch.equal(dataset.test.images, test)
    assert dataset.train.labels.tolist() == [k % 10 for k in range(20)] + [-1] * 17
    assert dataset.test.labels.tolist() == list(range(10))
    assert report.cache is not None


def test_near_duplicates_of_test_images_are_dropped_and_counted(stl10, options):
    data_dir, train, unlabeled, _ = stl10
    dataset, report = load_stl10("stl10", data_dir, replace(options, drop_test_duplicates=True))
    assert torch.equal(dataset.train.images, torch.cat([train, unlabeled[:12]]))
    assert report.notes == ["dropped 5 of 17 unlabelled images: near-duplicates of test images"]
    # The whole set has a cache of its own.
    assert len(load_stl10("stl10", data_dir, options)[0].train) == 37


def test_broken_files_are_refused(stl10, options):
    data_dir, *_ = stl10
    folder = data_dir / "stl10_binary"
    np.zeros(3, np.uint8).tofile(folder / "test_y.bin")
    with pytest.raises(DataError, match="got 3 labels, expected 10"):
        load_stl10("stl10", data_dir, options)
    np.zeros(10, np.uint8).tofile(folder / "test_y.bin")
    with pytest.raises(DataError, match="expected 1 to 10"):
        load_stl10("stl10", data_dir, options)
    (folder / "unlabeled_X.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="expected a multiple of 27648"):
        map_binary(folder / "unlabeled_X.bin")
