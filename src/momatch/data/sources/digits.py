"""The 1,797 handwritten digits included in scikit-learn: no download needed."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64

from momatch.data.catalog import KNOWN
from momatch.data.dataset import Dataset, Split
from momatch.data.report import LoadOptions, LoadReport

_NUM_TEST = 500


def digits_test_indices(
    labels: Int64[np.ndarray, " N"],
) -> Int64[np.ndarray, " T"]:
    """A fixed, stratified choice of 500 test images.

    Each class contributes the images whose index has the smallest SHA-256. Without a random generator, no library version can
    change the split. The 500 places are divided among the classes by largest remainder.

    Args:
        labels: (1797,) class numbers in scikit-learn's order.

    Returns:
        (500,) sorted indices.
    """
    counts = np.bincount(labels)
    exact = counts * _NUM_TEST / counts.sum()
    quota = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(-(exact - quota), kind="stable")
    quota[by_remainder[: _NUM_TEST - quota.sum()]] += 1
    chosen: list[int] = []
    for k, places in enumerate(quota):
        members = np.flatnonzero(labels == k).tolist()
        members.sort(key=lambda i: hashlib.sha256(str(i).encode()).digest())
        chosen += members[:places]
    return np.sort(np.asarray(chosen, np.int64))


def load_digits(name: str, data_dir: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Load `digits`: uint8 (N, 1, 8, 8), scaled from 0-16 to 0-255; 1,297 training and 500 test images."""
    from sklearn.datasets import load_digits as load_from_sklearn

    bunch = load_from_sklearn()
    images = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None])
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    is_test[torch.from_numpy(digits_test_indices(labels.numpy()))] = True
    train, test = (Split(images[rows], labels[rows]) for rows in (~is_test, is_test))
    return Dataset(name, KNOWN[name].class_names, train, test), LoadReport("scikit-learn (embedded)")
