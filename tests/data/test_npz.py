from dataclasses import replace

import numpy as np
import pytest
import torch

from momatch.data.load import load_dataset
from momatch.data.report import DataError, DataWarning
from momatch.data.sources import npz
from momatch.data.sources.npz import load_npz


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (12, 3, 6, 5), dtype=np.uint8)


LABELS = np.arange(12) % 3


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_layouts_give_the_same(tmp_path, images, options, layout, save):
    stored = images if layout == "nchw" else np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    save(tmp_path / "a.npz", images=stored, labels=LABELS)
    dataset, report = load_npz("a.npz", tmp_path / "a.npz", options)
    assert (dataset.train.images.numpy() == images).all()
    assert dataset.train.labels.tolist() == LABELS.tolist()
    assert dataset.class_names == ("0", "1", "2")
    assert report.cache is None


def test_gray_without_channels_and_foreign_spellings(tmp_path, images, options):
    gray = images[:, 0]
    np.savez(tmp_path / "a.npz", x_train=gray[:8], y_train=LABELS[:8, None], x_test=gray[8:], y_test=LABELS[8:, None])
    dataset, _ = load_npz("a", tmp_path / "a.npz", options)
    assert dataset.train.images.shape == (8, 1, 6, 5)
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == LABELS[8:].tolist()
    assert (dataset.test.images[:, 0].numpy() == gray[8:]).all()


def test_unlabelled_names_and_unused_arrays(tmp_path, images):
    path = tmp_path / "a.npz"
    names = np.array(["x", "y", "z"])
    np.savez(
        path, images=images[:6], labels=LABELS[:6], unlabeled_images=images[6:], class_names=names, val_images=images
    )
    with pytest.warns(DataWarning, match="not used: val_images"):
        dataset = load_dataset(path, progress=False)
    assert dataset.class_names == ("x", "y", "z")
    assert dataset.train.labels[6:].tolist() == [-1] * 6
    assert (dataset.train.images.numpy() == images).all()


def test_large_arrays_are_streamed_into_the_cache(tmp_path, images, options, monkeypatch):
    monkeypatch.setattr(npz, "_IN_MEMORY", 100)
    monkeypatch.setattr(npz, "_BLOCK_BYTES", 250)
    stored = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    np.savez_compressed(
        tmp_path / "a.npz", images=stored, labels=LABELS, test_images=stored[:3], test_labels=LABELS[:3]
    )
    for _ in range(2):
        dataset, report = load_npz("a", tmp_path / "a.npz", options)
        assert report.cache is not None
        assert (dataset.train.images.numpy() == images).all()
        assert torch.equal(dataset.test.images, dataset.train.images[:3])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((4, 3, 6, 5), np.float32)}, "got dtype float32, expected uint8"),
        ({"images": np.zeros((4, 3, 6, 3), np.uint8)}, "with C = 1 or 3 in one place"),
        ({"images": np.zeros((4, 7, 6, 5), np.uint8)}, "with C = 1 or 3 in one place"),
        ({"images": np.zeros((4, 5), np.uint8)}, "with C = 1 or 3 in one place"),
        ({"images": np.asfortranarray(np.zeros((4, 6, 5), np.uint8))}, "Fortran order"),
        ({"labels": np.zeros(3, int)}, r"expected integers of shape \(4,\)"),
        ({"labels": np.zeros(4)}, "dtype float64"),
        ({"labels": np.array([0, 1, "x", None], object)}, "pickle"),
        ({"labels": np.zeros(4, int)}, "got 1 class"),
        ({"labels": np.array([0, 1, -2, 0])}, "got labels from -2"),
        ({"labels": np.full(4, -1)}, "no labelled images"),
        ({"test_images": np.zeros((2, 6, 5), np.uint8)}, "test_images without test_labels"),
        ({"test_images": np.zeros((1, 7, 5), np.uint8), "test_labels": np.zeros(1, int)}, "expected the same"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, options, arrays, message):
    good = {"images": np.zeros((4, 6, 5), np.uint8), "labels": np.array([0, 1, 0, 1])}
    np.savez(tmp_path / "a.npz", **(good | arrays))
    with pytest.raises(DataError, match=message):
        load_npz("a", tmp_path / "a.npz", options)


def test_missing_arrays_and_broken_files_are_refused(tmp_path, images, options):
    path = tmp_path / "a.npz"
    np.savez(path, pictures=images)
    with pytest.raises(DataError, match="got the arrays pictures, expected at least images and labels"):
        load_npz("a", path, options)
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError, match=r"cannot be read as \.npz"):
        load_npz("a", path, options)
    with pytest.raises(DataError, match="strict does not apply"):
        replace(options, strict=True).refuse_unused("a", frozenset())
