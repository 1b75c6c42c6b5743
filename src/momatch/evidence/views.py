"""The supervised views: linear models and forests, fitted to the labelled samples alone."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from momatch.evidence.forest import Forest, Kind

#: Name -> regularisation of the linear views.
_LINEAR = {"linear, strong": 0.3, "linear, weak": 3.0}
_FORESTS: dict[str, Kind] = {"random forest": "random", "extra trees": "extra"}
#: A view is fitted to at most so many labelled samples.
_MOST_SAMPLES = 20_000
_MAX_ITERATIONS = 300
#: Trees of each forest.
_TREES = 100

SUPERVISED: tuple[str, ...] = (*_LINEAR, *_FORESTS)


@dataclass(frozen=True)
class SupervisedViews:
    """Fitted models; can be pickled.

    Attributes:
        models: name -> logistic regression of class numbers, or forest.
        num_classes: K.
    """

    models: Mapping[str, Any]
    num_classes: int

    @classmethod
    def fit(
        cls,
        x: Float64[np.ndarray, "m F"],
        labels: Int64[np.ndarray, " m"],
        sample_weight: Float64[np.ndarray, " m"],
        *,
        num_classes: int,
        seed: int,
        trees: int | None = None,
    ) -> "SupervisedViews":
        """Fit all views. With a single class among the labels there are none: each is certain of it."""
        if len(np.unique(labels)) < 2:
            return cls({}, num_classes)
        if len(x) > _MOST_SAMPLES:
            some = np.random.default_rng(seed).choice(len(x), _MOST_SAMPLES, replace=False)
            some = np.union1d(some, np.unique(labels, return_index=True)[1])  # no class gets lost
            x, labels, sample_weight = x[some], labels[some], sample_weight[some]
        models: dict[str, Any] = {
            name: LogisticRegression(C=c, max_iter=_MAX_ITERATIONS) for name, c in _LINEAR.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for model in models.values():
                model.fit(x, labels, sample_weight=sample_weight)
        targets = np.eye(num_classes)[labels]
        for number, (name, kind) in enumerate(_FORESTS.items()):
            models[name] = Forest.fit(kind, x, targets, sample_weight, trees=trees or _TREES, seed=(seed, number))
        return cls(models, num_classes)

    def __call__(self, x: Float64[np.ndarray, "n F"]) -> Float64[np.ndarray, "V n K"]:
        """Each view's probabilities; 0 for classes without labels."""
        found = np.zeros((len(SUPERVISED), len(x), self.num_classes))
        for view, name in zip(found, SUPERVISED, strict=True):
            model = self.models.get(name)
            if model is None:
                view[:] = 1.0 / self.num_classes
            elif name in _LINEAR:
                view[:, model.classes_] = _linear(model, x)
            else:
                view[:] = model(x)
        return found


def _linear(model: LogisticRegression, x: Float64[np.ndarray, "n F"]) -> Float64[np.ndarray, "n C"]:
    """Probabilities of a logistic regression.

    Unlike a matrix product, einsum rounds each row alike whatever the others are, if the rows lie one after the other.
    """
    logits = np.einsum("nf,kf->nk", np.ascontiguousarray(x), model.coef_) + model.intercept_
    logits = np.concatenate([np.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits
    probability: np.ndarray = softmax(logits, axis=1)
    return probability
