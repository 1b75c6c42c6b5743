"""Heads map embeddings to the log joint. To add one, add a file here and an entry in `HEADS`."""

from momatch.heads.base import Head, log_density, log_posterior
from momatch.heads.linear import Linear
from momatch.heads.mixture import AAGMM, GaussianMixtureHead, KMeans

#: The heads by the name that `--head` and `Classifier.build` take.
HEADS: dict[str, type[Head]] = {
    "aagmm": AAGMM,
    "kmeans": KMeans,
    "linear": Linear,
}

__all__ = ["AAGMM", "HEADS", "GaussianMixtureHead", "Head", "KMeans", "Linear", "log_density", "log_posterior"]
