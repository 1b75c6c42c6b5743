"""Bringing a features file up to date: only new images pass through the network, and nothing else differs from a new file."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from momatch.console.signals import Interrupted
from momatch.data.feature_spec import VERSION
from momatch.data.load import load_dataset
from momatch.data.report import DataWarning
from momatch.embedding import embed
from tests.embedding.folders import folder_options, write_image
from tests.embedding.setting import Corners, small_options
from tests.embedding.test_embed import interrupted_after


@pytest.fixture(autouse=True)
def own_normalization(monkeypatch, tmp_path):
    """A network with its own normalisation, as pretrained ones have: features then depend on one image alone."""
    monkeypatch.setattr(Corners, "normalization", ((0.4,), (0.3,)), raising=False)
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))


def arrays(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files if not name.endswith((".json", ".safetensors"))}


def assert_like_a_whole_embedding(options, tmp_path):
    whole = replace(options, out=tmp_path / "whole.npz", overwrite=True)
    embed(whole)
    got, expected = arrays(options.out), arrays(whole.out)
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_only_new_images_pass_through_the_network_and_views_are_the_same(tmp_path):
    options = folder_options(tmp_path)
    first = embed(options)
    assert (first.train, first.test, first.kept, first.passed) == (42, 9, 0, 42 * 5 + 9)
    pets = tmp_path / "pets"
    (pets / "unlabeled/cat0.png").rename(pets / "cat/new.png")
    (pets / "unlabeled/dog1.png").unlink()
    write_image(pets / "unlabeled/more.png", 1000, 2)
    write_image(pets / "emu/more.png", 1001, 2)
    second = embed(options)
    assert (second.train, second.kept, second.dropped, second.passed) == (43, 41 + 9, 1, 2 * 5)
    assert_like_a_whole_embedding(options, tmp_path)
    # A new class and a label changed: nothing to compute.
    (pets / "unlabeled/emu2.png").rename(pets / "unlabeled/../cat/other.png")
    (pets / "fox").mkdir()
    third = embed(options)
    assert (third.passed, third.dropped, third.without_labels) == (0, 0, ("fox",))
    assert_like_a_whole_embedding(options, tmp_path)
    before = os.stat(options.out)
    assert embed(options).passed == 0
    assert os.stat(options.out).st_mtime_ns == before.st_mtime_ns


def test_images_change_between_training_and_testing(tmp_path):
    options = folder_options(tmp_path)
    embed(options)
    pets = tmp_path / "pets"
    (pets / "cat/0.png").rename(pets / "test/cat/was.png")
    assert embed(options).passed == 0  # the plain view is there
    (pets / "test/dog/0.png").rename(pets / "dog/was.png")
    assert embed(options).passed == 5  # the other views are not
    assert_like_a_whole_embedding(options, tmp_path)


def test_copies_of_an_image_are_computed_once(tmp_path):
    options = folder_options(tmp_path)
    write_image(tmp_path / "pets/cat/copy.png", 0, 0)
    embedded = embed(options)
    assert (embedded.train, embedded.passed) == (43, 42 * 5 + 9)
    content = arrays(options.out)
    files = [
        name for name, digest in enumerate(content["train_digests"]) if (digest == content["train_digests"][0]).all()
    ]
    assert len(files) == 2
    np.testing.assert_array_equal(*content["train_features"][files])


def test_arrays_are_known_by_their_pixels(tmp_path):
    options = small_options(tmp_path, limit=50)
    embed(options)
    more = replace(options, limit=90)
    embedded = embed(more)
    assert (embedded.kept, embedded.passed) == (50 + 80, 40 * 5)
    assert_like_a_whole_embedding(more, tmp_path)


def test_files_that_cannot_be_decoded_are_tried_once(tmp_path):
    options = folder_options(tmp_path)
    embed(options)
    (tmp_path / "pets/cat/bad.png").write_bytes(b"no image")
    with pytest.warns(DataWarning, match=r"none of the 1 files can be read:\n  cat/bad\.png"):
        assert embed(options).passed == 0
    assert embed(options).train == 42
    write_image(tmp_path / "pets/cat/good.png", 1000, 0)
    (tmp_path / "pets/cat/worse.png").write_bytes(b"")
    with pytest.warns(DataWarning, match=r"skipped: 1 files or rows cannot be used:\n  cat/worse\.png"):
        assert embed(options).passed == 5


def test_copies_of_a_file_that_cannot_be_decoded_count_one_by_one(tmp_path):
    options = folder_options(tmp_path)
    for number in range(10):
        (tmp_path / f"pets/cat/empty{number}.png").write_bytes(b"")
    with pytest.warns(DataWarning) as said:
        assert embed(options).train == 42
    assert "9 more files are copies of these" in str(said[-1].message)
    # The limit is for all files, known or new.
    (tmp_path / "pets/cat/empty.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"11 files or rows cannot be used, expected at most 10:\n  cat/empty\.png"):
        embed(options)
    (tmp_path / "pets/cat/empty.png").write_bytes(b"no image")
    with pytest.warns(DataWarning, match="none of the 1 files"), pytest.raises(ValueError, match="11 files or rows"):
        embed(options)


def test_many_empty_files_are_refused_at_once(tmp_path):
    options = folder_options(tmp_path)
    for number in range(11):
        (tmp_path / f"pets/cat/empty{number}.png").write_bytes(b"")
    with pytest.warns(DataWarning, match="skipped: 1 files"), pytest.raises(ValueError, match="11 files or rows"):
        embed(options)
    assert not options.out.exists()


def test_a_split_without_a_readable_file_is_left_out(tmp_path):
    options = folder_options(tmp_path)
    for path in (tmp_path / "pets/test").rglob("*.png"):
        path.write_bytes(str(path).encode())
    with pytest.warns(DataWarning, match="skipped: 9 files"):
        embedded = embed(options)
    assert (embedded.train, embedded.test) == (42, 0)
    assert load_dataset(options.out).test is None
    assert load_dataset(options.out).labeling.missing == 0


def test_interrupted_update_goes_on_although_labels_have_changed_meanwhile(tmp_path, monkeypatch):
    options = folder_options(tmp_path, batch_size=4)
    embed(options)
    for i in range(12):
        write_image(tmp_path / f"pets/unlabeled/new{i}.png", 1000 + i, 1)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            embed(options)
    (tmp_path / "pets/unlabeled/new3.png").rename(tmp_path / "pets/dog/new3.png")
    embedded = embed(options)
    assert (embedded.resumed, embedded.passed) == (8 * 5, 4 * 5)
    assert_like_a_whole_embedding(options, tmp_path)


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    options = folder_options(tmp_path)
    embed(options)
    before = options.out.read_bytes()
    with pytest.raises(
        ValueError, match=r"holds features with --weak-views 2, got --weak-views 1; use the same settings to add"
    ):
        embed(replace(options, weak_views=1))
    write_image(tmp_path / "pets/cat/large.png", 1, 0)
    from PIL import Image

    with Image.open(tmp_path / "pets/cat/large.png") as image:
        image.resize((9, 9)).save(tmp_path / "pets/cat/large.png")
    with pytest.raises(ValueError, match=r"got new images: 9x9, gray, uint8, expected 1 channels and 8x8 pixels as in"):
        embed(options)
    assert options.out.read_bytes() == before
    other = tmp_path / "other.npz"
    np.savez(other, x=np.zeros(3))
    with pytest.raises(ValueError, match=r"other.npz already exists and is not a features file"):
        embed(replace(options, out=other))
    assert VERSION == 3
