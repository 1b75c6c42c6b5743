"""Digests by content: what they tell apart, and what is read again."""

import hashlib
import os

import numpy as np
import pytest
import torch

from momatch.data import content
from momatch.data.content import draw_keys, file_digests, pixel_digests
from momatch.data.rows import PixelRows


@pytest.fixture
def root(tmp_path):
    for name, text in (("a", "one"), ("b", "two"), ("copy", "one")):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1e9, 1e9))
    return tmp_path


def test_digests_are_of_the_bytes(root):
    digests = file_digests(str(root), ["a", "b", "copy", "gone"])
    assert digests.shape == (4, 16)
    assert digests[0].tobytes() == hashlib.blake2b(b"one", digest_size=16).digest()
    np.testing.assert_array_equal(digests[0], digests[2])
    assert not np.array_equal(digests[0], digests[1])
    assert not digests[3].any()


def test_files_are_read_once_even_when_they_are_moved(root, monkeypatch):
    before = file_digests(str(root), ["a", "b"])
    monkeypatch.setattr(content, "_of_file", lambda path: pytest.fail(f"{path} was read again"))
    (root / "cat").mkdir()
    (root / "a").rename(root / "cat" / "a")
    np.testing.assert_array_equal(file_digests(str(root), ["cat/a", "b"]), before)


def test_changed_and_recent_files_are_read_again(root, monkeypatch):
    first = file_digests(str(root), ["a"])
    (root / "a").write_text("eno")
    assert not np.array_equal(file_digests(str(root), ["a"]), first)
    # Within the resolution of a modification time the file may change once more.
    reads = []
    of_file = content._of_file
    monkeypatch.setattr(content, "_of_file", lambda path: reads.append(path) or of_file(path))
    file_digests(str(root), ["a"])
    assert len(reads) == 1


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"1:2:3:4": 5}', b'{"1:2:3:4": "ff"}'])
def test_a_damaged_cache_is_made_again(root, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    before = file_digests(str(root), ["a"])
    (path,) = (tmp_path / "cache" / "digests").glob("*.json")
    path.write_bytes(damage)
    np.testing.assert_array_equal(file_digests(str(root), ["a"]), before)


def test_without_a_place_for_the_cache_it_goes_on(root, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    assert file_digests(str(root), ["a"]).any()


def test_pixels_and_shape_count():
    images = torch.arange(4 * 16, dtype=torch.uint8).view(4, 1, 4, 4)
    images[3] = images[1]
    digests = pixel_digests(PixelRows([images]))
    assert len({digest.tobytes() for digest in digests}) == 3
    np.testing.assert_array_equal(pixel_digests(PixelRows([images], torch.tensor([3, 0]))), digests[[1, 0]])
    assert not np.array_equal(pixel_digests(PixelRows([images.view(4, 1, 2, 8)])), digests)


def test_keys_are_the_first_eight_bytes():
    digests = np.arange(32, dtype=np.uint8).reshape(2, 16)
    expected = [int.from_bytes(digest[:8].tobytes(), "little", signed=True) for digest in digests]
    assert draw_keys(digests).tolist() == expected
