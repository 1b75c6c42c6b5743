"""Problems small enough that a fit takes a fraction of a second."""

from typing import NamedTuple

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from momatch import MoMatchClassifier

QUICK = {
    "steps": 40,
    "hidden_sizes": (16,),
    "embedding_dim": 4,
    "lr": 0.03,
    "labeled_batch_size": 32,
    "unlabeled_batch_size": 32,
    "random_state": 0,
}


class Problem(NamedTuple):
    X: np.ndarray
    y: np.ndarray  # -1: unlabelled
    truth: np.ndarray


@pytest.fixture(scope="session")
def problem() -> Problem:
    """Three blobs in six dimensions, five labels each, 300 samples."""
    X, truth = make_blobs(300, 6, centers=3, cluster_std=2.0, random_state=1)
    y = np.full(300, -1)
    for k in range(3):
        shown = np.flatnonzero(truth == k)[:5]
        y[shown] = k
    return Problem(X, y, truth)


@pytest.fixture
def quick() -> MoMatchClassifier:
    return MoMatchClassifier(**QUICK)


@pytest.fixture(scope="session")
def fitted(problem) -> MoMatchClassifier:
    return MoMatchClassifier(**QUICK).fit(problem.X, problem.y)
