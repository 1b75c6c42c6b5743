"""momatch for vectors, as a scikit-learn estimator (docs/estimator.md)."""

from momatch.estimator.classifier import MoMatchClassifier as MoMatchClassifier
