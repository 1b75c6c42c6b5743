"""Problems small enough that a fit takes a fraction of a second."""

from typing import NamedTuple

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from momatch import MoMatchClassifier, NetworkOptions
from momatch.evidence import evidence, views
from momatch.outliers import contamination

SMALL = {
    "hidden_sizes": (16,),
    "embedding_dim": 4,
    "lr": 0.03,
    "labeled_batch_size": 32,
    "unlabeled_batch_size": 32,
}
QUICK = {"steps": 40, "random_state": 0, "network": NetworkOptions(**SMALL)}


def quick_with(**settings):
    """A quick model with other settings, of its own or of its network."""
    of_network = {name: settings.pop(name) for name in [*settings] if name in NetworkOptions().get_params()}
    return MoMatchClassifier(**QUICK | {"network": NetworkOptions(**SMALL | of_network)} | settings)


@pytest.fixture(scope="package", autouse=True)
def small_evidence():
    # Hundreds of fits: hardly a test is about how good the evidence is, and those that are pass with less effort.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "_TREES", 8)
        patch.setattr(evidence, "_FEW_TREES", 4)
        patch.setattr(contamination, "_STEPS", 20)
        yield


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


@pytest.fixture(scope="package")
def fitted(problem) -> MoMatchClassifier:
    return MoMatchClassifier(**QUICK).fit(problem.X, problem.y)
