import numpy as np
import pytest
from scipy.io import savemat

from momatch.data.report import DataError, LoadOptions
from momatch.data.sources.svhn import load_svhn, read_mat


def write(path, rng, count, labels=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    labels = np.arange(count) % 10 + 1 if labels is None else labels
    savemat(path, {"X": images, "y": labels[:, None].astype(np.uint8)}, do_compression=True)
    return images


def test_ten_is_zero_and_images_stand_upright(tmp_path, rng, options):
    images = write(tmp_path / "svhn/train_32x32.mat", rng, 20)
    write(tmp_path / "svhn/test_32x32.mat", rng, 10)
    dataset, _ = load_svhn("svhn", tmp_path, options)
    assert dataset.train.labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert (dataset.train.images[7].numpy() == images[..., 7].transpose(2, 0, 1)).all()


def test_extra_images_follow_and_are_cached(tmp_path, rng, options):
    write(tmp_path / "svhn/train_32x32.mat", rng, 20)
    write(tmp_path / "svhn/test_32x32.mat", rng, 10)
    extra = write(tmp_path / "svhn/extra_32x32.mat", rng, 5)
    wanted = LoadOptions(cache_dir=options.cache_dir, progress=False, download=False, extra=True)
    for _ in range(2):
        dataset, report = load_svhn("svhn", tmp_path, wanted)
        assert len(dataset.train) == 25
        assert (dataset.train.images[22].numpy() == extra[..., 2].transpose(2, 0, 1)).all()
        assert dataset.train.labels[20:].tolist() == [1, 2, 3, 4, 5]
        assert report.cache is not None


def test_damaged_and_foreign_files_are_refused(tmp_path, rng):
    write(tmp_path / "a.mat", rng, 4)
    (tmp_path / "a.mat").write_bytes((tmp_path / "a.mat").read_bytes()[:-400])
    with pytest.raises(DataError, match="cannot be read as a MATLAB file"):
        read_mat(tmp_path / "a.mat")
    savemat(tmp_path / "b.mat", {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))})
    with pytest.raises(DataError, match="expected X"):
        read_mat(tmp_path / "b.mat")
    write(tmp_path / "c.mat", rng, 3, labels=np.array([1, 11, 2]))
    with pytest.raises(DataError, match="expected 1 to 10"):
        read_mat(tmp_path / "c.mat")
