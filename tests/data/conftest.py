"""Small files in the official layouts, made on the spot."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momatch.data.report import LoadOptions


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def options(tmp_path):
    """Options that keep everything inside the test's folder."""
    return LoadOptions(cache_dir=tmp_path / "cache", progress=False, download=False)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MOMATCH_DATA", raising=False)


def idx_bytes(array):
    return bytes((0, 0, 8, array.ndim)) + np.asarray(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(path: Path, array):
    raw = idx_bytes(array)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


@pytest.fixture
def save_image():
    """Save an array as an image file, making its folder."""

    def save(path: Path, pixels=None, *, size=(8, 8), value=100, mode="RGB", **keywords):
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(pixels) if pixels is not None else Image.new(mode, size, _color(mode, value))
        image.save(path, **keywords)
        return path

    return save


def _color(mode, value):
    bands = len(Image.new(mode, (1, 1)).getbands())
    return value if bands == 1 else (value,) * bands


@pytest.fixture
def folder(tmp_path, save_image):
    """Three classes of four images, two unlabelled images; every image of its own gray level."""
    root = tmp_path / "pets"
    level = iter(range(10, 250, 5))
    for name in ("cat", "dog", "emu"):
        for i in range(4):
            save_image(root / name / f"{i}.png", value=next(level))
    for i in range(2):
        save_image(root / "unlabeled" / f"{i}.png", value=next(level))
    return root
