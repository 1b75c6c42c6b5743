import gzip
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momatch.data.report import DataError
from momatch.data.sources.idx import load_idx, read_idx
from tests.data.conftest import idx_bytes, write_idx


@pytest.fixture(params=["", ".gz"])
def mnist_dir(request, tmp_path, rng):
    for split, count in (("train", 20), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(tmp_path / f"mnist/{split}-images-idx3-ubyte{request.param}", images)
        write_idx(tmp_path / f"mnist/{split}-labels-idx1-ubyte{request.param}", np.arange(count, dtype=np.uint8) % 10)
    return tmp_path


def test_loads_plain_and_gzipped(mnist_dir, options):
    dataset, _ = load_idx("mnist", mnist_dir, options)
    assert dataset.train.images.shape == (20, 1, 28, 28)
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == list(range(10))
    assert dataset.class_names == tuple("0123456789")


def test_pixels_and_order_are_kept(tmp_path, rng):
    images = rng.integers(0, 256, (5, 3, 4), dtype=np.uint8)
    write_idx(tmp_path / "a.gz", images)
    assert (read_idx(tmp_path / "a.gz", 3) == images).all()


def test_data_dir_may_be_the_folder_itself_or_torchvisions(mnist_dir, options):
    direct, _ = load_idx("mnist", mnist_dir / "mnist", options)
    (mnist_dir / "MNIST").mkdir()
    (mnist_dir / "mnist").rename(mnist_dir / "MNIST/raw")
    torchvision, _ = load_idx("mnist", mnist_dir, options)
    assert torch.equal(direct.train.images, torchvision.train.images)


def test_wrong_magic_is_refused(tmp_path):
    path = tmp_path / "labels"
    write_idx(path, np.zeros(4, np.uint8))
    with pytest.raises(DataError, match="got the first bytes 00 00 08 01, expected 00 00 08 03"):
        read_idx(path, 3)


def test_wrong_length_is_refused(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(np.zeros((4, 2, 2), np.uint8))[:-1])
    with pytest.raises(DataError, match="got 31 bytes, expected 32"):
        read_idx(path, 3)


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_truncated_gzip_is_refused(tmp_path, rng, cut):
    path = tmp_path / "images.gz"
    raw = gzip.compress(idx_bytes(rng.integers(0, 256, (40, 5, 5), dtype=np.uint8)))
    path.write_bytes(raw[:-cut])
    with pytest.raises(DataError, match="not a complete gzip file"):
        read_idx(path, 3)


def test_as_many_labels_as_images(mnist_dir, options):
    for suffix in ("", ".gz"):
        path = mnist_dir / f"mnist/train-labels-idx1-ubyte{suffix}"
        if path.exists():
            write_idx(path, np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"20 images in .* but 3 labels"):
        load_idx("mnist", mnist_dir, options)


@given(st.binary(max_size=64))
def test_any_bytes_give_an_array_or_a_data_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(raw)
    with suppress(DataError):
        assert read_idx(path, 1).ndim == 1
