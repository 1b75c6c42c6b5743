"""A scikit-learn estimator for feature vectors (docs/estimator.md)."""

from momatch.estimator.classifier import MoMatchClassifier as MoMatchClassifier
from momatch.estimator.network_options import NetworkOptions as NetworkOptions

#: For scikit-learn's ``check_estimator(model, expected_failed_checks=EXPECTED_FAILED_CHECKS)``.
EXPECTED_FAILED_CHECKS = {"check_classifiers_classes": "takes -1 for a class, which marks unlabelled samples here"}
