"""`MoMatchClassifier`, a semi-supervised scikit-learn classifier that can reject outliers (docs/estimator.md)."""

import copy
import math
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from momatch.console.wording import percentages
from momatch.estimator.columns import Columns, categorical_columns, is_frame
from momatch.estimator.fitting import Fitted, fit_set
from momatch.estimator.labels import (
    check_class_weight,
    check_rejected_label,
    check_weighted_classes,
    class_ratio,
    encode_labels,
    mark_rejected,
    split_labels,
)
from momatch.estimator.network_options import NetworkOptions
from momatch.estimator.samples import weighted_set
from momatch.estimator.settings import read_settings
from momatch.estimator.thinning import blocks, rows_to_train_on
from momatch.evidence.prior import reweighted
from momatch.models.scorer import Scores, joined
from momatch.numerics.checks import check_fraction
from momatch.training.threads import one_thread


class MoMatchClassifier(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Semi-supervised classifier for feature vectors that can also reject outliers.

    Linear models and forests are fitted to the labels, and a network to all samples: features are encoded into an embedding, in
    which each class is modelled as a Gaussian, and unlabelled samples contribute through pseudo-labels, guided by the given
    labels and a nearest-neighbour graph. Labels that are hidden from each in turn decide how much it counts (`evidence_`), so
    unlabelled samples help where classes are clusters, and do no harm where they are not.

    The fit does not depend on the order of the samples, and a sample of weight 3 is equivalent to three copies of it.

    Args:
        class_weight: None: `predict` maximises accuracy; `predict_proba` is for classes as frequent as they are in the pool.
            "balanced": balanced accuracy, for classes that are equally frequent. A dict of class to weight: so many times as
            frequent as in the pool; 1 for classes that are not in it.
        steps: number of optimiser steps.
        network: options of the network, a `NetworkOptions`; None for the defaults.
        calibration_fraction: fraction of the distinct unlabelled samples to keep out of training for calibrating p-values.
        outlier_score: score that p-values are based on: "judge" (how unusual a sample is to the encoder's layers, plus how
            unusual the classifier's answer is), or a score of the head's Gaussians: "nearest" (Mahalanobis distance to the
            nearest center) or "density" (-log p(x)). "auto" means judge.
        unlabeled: value in `y` that marks unlabelled samples; None for missing values (None, NaN, NA).
        rejected_label: label that ``predict(X, reject=alpha)`` gives to outliers. None means -1, or "rejected" if classes are
            strings.
        random_state: int, RandomState or None, as in scikit-learn.
        verbose: 1 shows progress on stderr.

    Attributes:
        classes_: class labels, sorted.
        n_features_in_: number of features.
        feature_names_in_: feature names, if `X` was a data frame with string column names.
        evidence_: what the prediction rests on: the share of each view, and the trust that classes are clusters.
        class_prior_: estimated frequency of each class.
        calibration_source_: samples that p-values are calibrated on: "unlabeled" or "labeled" samples kept out of training, or
            "training" if none could be spared. With "training", p-values are approximate and tend to be too small.
        n_calibration_: number of calibration samples.
        fitted_: scaling, network (a `momatch.Classifier`) and scorer.

    Example:
        >>> y[40:] = -1  # only the first 40 samples are labelled
        >>> model = MoMatchClassifier(random_state=0).fit(X, y)
        >>> model.predict(X_new, reject=0.05)  # -1 for outliers
    """

    fitted_: Fitted
    evidence_: dict[str, float]
    class_prior_: np.ndarray[Any, Any]
    classes_: np.ndarray[Any, Any]
    calibration_source_: str
    n_calibration_: int

    def __init__(
        self,
        *,
        class_weight: Any = None,
        steps: int = 200,
        network: NetworkOptions | None = None,
        calibration_fraction: float = 0.1,
        outlier_score: str = "auto",
        unlabeled: Any = -1,
        rejected_label: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.class_weight = class_weight
        self.steps = steps
        self.network = network
        self.calibration_fraction = calibration_fraction
        self.outlier_score = outlier_score
        self.unlabeled = unlabeled
        self.rejected_label = rejected_label
        self.random_state = random_state
        self.verbose = verbose

    def set_params(self, **params: Any) -> "MoMatchClassifier":
        """Set parameters by name; `network__NAME` is an option of the network, also if there were none before."""
        if (
            self.network is None
            and params.get("network") is None
            and any(key.startswith("network__") for key in params)
        ):
            params["network"] = NetworkOptions()
        super().set_params(**params)
        return self

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MoMatchClassifier":
        """Train on labelled and unlabelled samples.

        Args:
            X: features, (n, F), dense. NaN is a missing value. A data frame may have columns of categories or text.
            y: class of each sample, or the `unlabeled` marker.
            sample_weight: weight of each sample; 0 leaves it out. None means 1 for all.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: if a parameter, `X`, `y` or `sample_weight` is invalid, or training diverges.
        """
        fitted = copy.copy(self)  # if the fit fails, the estimator is unchanged
        fitted._fit(X, y, sample_weight)
        self.__dict__ = fitted.__dict__
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        own = self.get_params(deep=False)
        network = own.pop("network")
        if network is not None and not isinstance(network, NetworkOptions):
            raise ValueError(f"network: got {network!r}, expected a momatch.NetworkOptions, or None for the defaults")
        check_class_weight(self.class_weight)
        settings = read_settings(own | (network or NetworkOptions()).get_params())
        if y is None:
            validate_data(self, X, y)  # raises scikit-learn's error for a missing y
        X = self._validated(X, reset=True)
        check_consistent_length(X, y)
        weight = _check_weight(sample_weight, len(X))
        known, labels = split_labels(y, self.unlabeled)
        self.classes_, codes = encode_labels(known & (weight > 0), labels[weight[known] > 0])
        check_rejected_label(self.rejected_label, self.classes_)
        check_weighted_classes(self.class_weight, self.classes_)
        has_categories = bool(categorical_columns(X))
        if has_categories:
            self._columns = Columns.of(X, weight)
            X = self._columns(X)
        # A large array is thinned before anything else is made of it.
        rows, factor = rows_to_train_on(X, codes, weight)
        if self.verbose and len(rows) < len(X):
            print(f"training on {len(rows):,} of {len(X):,} rows", file=sys.stderr)
        X, codes, weight = X[rows], codes[rows], weight[rows] * factor
        if not has_categories:
            self._columns = Columns.of(X, weight)
            X = self._columns(X)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        with one_thread():
            self.fitted_ = fit_set(weighted_set(X, codes, weight), settings, num_classes=len(self.classes_), seed=seed)
        self.evidence_, self.class_prior_ = self.fitted_.evidence()
        self._class_ratio = class_ratio(self.class_weight, self.classes_, self.class_prior_)
        if self.verbose:
            print(f"answer: {percentages(self.evidence_)}", file=sys.stderr)
        self.calibration_source_ = self.fitted_.calibration_source
        self.n_calibration_ = len(self.fitted_.scorer.calibration_scores)
        self._n_features_out = self.fitted_.scorer.head.embedding_dim

    def predict(self, X: Any, *, reject: float | None = None) -> Shaped[np.ndarray, " n"]:
        """Predict the class of each sample.

        Args:
            X: features, (n, F).
            reject: allowed false-positive rate alpha: samples with an outlier p-value of at most alpha get `rejected_label`.
                None rejects nothing.

        Raises:
            ValueError: if `X` does not match the training data, `reject` is not in [0, 1] or `rejected_label` is a class.
            NotFittedError: before `fit`.
        """
        scores = self._scores(X)
        predicted: np.ndarray[Any, Any] = self.classes_[self._posterior(scores).argmax(1)]
        if reject is None:
            return predicted
        self._check_alpha(reject)
        return mark_rejected(predicted, scores.p_value.numpy() <= reject, self.classes_, self.rejected_label)

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "n K"]:
        """Posterior p(y|x), with columns in the order of `classes_`.

        Raises:
            ValueError: if `X` does not match the training data.
            NotFittedError: before `fit`.
        """
        return self._posterior(self._scores(X))

    def transform(self, X: Any) -> Float64[np.ndarray, "n D"]:
        """Embed each sample in the space where each class is a Gaussian.

        Raises:
            ValueError: if `X` does not match the training data.
            NotFittedError: before `fit`.
        """
        check_is_fitted(self)
        table = self._validated(X, reset=False)
        with one_thread():
            return np.concatenate([self.fitted_.embed(self._columns(part)).numpy() for part in _parts(table)])

    def score_samples(self, X: Any) -> Float64[np.ndarray, " n"]:
        """log p(x) of what the encoder's layers see of each sample.

        With the outlier score "nearest" or "density", that of its embedding under the head's mixture; the negative energy for
        a linear head.

        Raises:
            ValueError: if `X` does not match the training data.
            NotFittedError: before `fit`.
        """
        return self._scores(X).log_density.numpy()

    def outlier_p_value(self, X: Any) -> Float64[np.ndarray, " n"]:
        """Conformal p-value of each sample for being an inlier: (1 + #{calibration scores >= score}) / (m + 1).

        An inlier has a p-value of at most alpha with probability at most alpha, so rejecting p <= alpha bounds the
        false-positive rate. Exact unless `calibration_source_` is "training".

        Raises:
            ValueError: if `X` does not match the training data.
            NotFittedError: before `fit`.
        """
        return self._scores(X).p_value.numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy on the labelled samples. Unlabelled samples are ignored, so cross-validation works on partly labelled data.

        Raises:
            ValueError: if no sample is labelled, or `X`, `y` or `sample_weight` is invalid.
            NotFittedError: before `fit`.
        """
        predicted = self.predict(X)
        check_consistent_length(predicted, y)
        known, labels = split_labels(y, self.unlabeled)
        weight = _check_weight(sample_weight, len(known))[known]
        if not weight.any():
            raise ValueError(
                f"y: got {len(known)} samples that are all unlabelled or of weight 0, expected labelled samples to score on"
            )
        return float(accuracy_score(labels, predicted[known], sample_weight=None if sample_weight is None else weight))

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """The table with as many columns of the same names as in the fit, as numbers unless it has categories."""
        if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
            raise ValueError(f"X: got dates or times ({X.dtype}), expected numbers; convert them, for example to days")
        # A column is of categories if it was in the fit, whatever the rows of now hold.
        if categorical_columns(X) if reset else self._columns.categories and is_frame(X):
            return validate_data(self, X, reset=reset, skip_check_array=True)
        # float32 is not converted, so that a large array is not copied.
        return validate_data(self, X, reset=reset, dtype=(np.float64, np.float32), ensure_all_finite="allow-nan")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _scores(self, X: Any) -> Scores:
        check_is_fitted(self)
        table = self._validated(X, reset=False)
        with one_thread():
            return joined([self.fitted_.scores(self._columns(part)) for part in _parts(table)])

    def _posterior(self, scores: Scores) -> Float64[np.ndarray, "n K"]:
        """Of classes as frequent as `class_weight` says."""
        return reweighted(scores.posterior.numpy(), self._class_ratio)

    def _check_alpha(self, alpha: Any) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number):
            raise ValueError(
                f"reject: got {alpha!r}, expected a false-positive rate from 0 to 1, or None to reject nothing"
            )
        alpha = check_fraction("reject", float(alpha))
        m = self.n_calibration_
        if alpha > 0.0 and self.calibration_source_ == "training":
            warnings.warn(
                f"reject: got {alpha}, but p-values are calibrated on the {m} training samples, which the model has seen: far "
                "more of new ordinary samples may be rejected, all of them if there are few; fit with unlabelled samples, or "
                "with 50 labels a class",
                stacklevel=3,
            )
        if 0.0 < alpha < 1.0 / (m + 1):
            warnings.warn(
                f"reject: got {alpha}, but with {m} calibration samples the smallest p-value is 1/{m + 1}, so nothing can be "
                f"rejected; at least {math.ceil(1 / alpha) - 1} are needed: fit with more unlabelled samples or a larger "
                "calibration_fraction",
                stacklevel=3,
            )


def _parts(table: Any) -> Iterator[Any]:
    """A large array in parts, so that no copy of the whole is made; a data frame as it is."""
    if not isinstance(table, np.ndarray):
        yield table
        return
    for part in blocks(len(table)):
        yield table[part]


def _check_weight(sample_weight: Any, n: int) -> Float64[np.ndarray, " {n}"]:
    """Validate the weights: one per sample, finite, at least 0 and not all 0.

    Raises:
        ValueError: if they are invalid.
    """
    if sample_weight is None:
        return np.ones(n)
    if np.asarray(sample_weight).ndim == 0:
        raise ValueError(f"sample_weight: got {sample_weight!r}, expected ({n},), one weight per sample")
    weight: np.ndarray[Any, Any] = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
    )
    if weight.shape != (n,):
        raise ValueError(f"sample_weight: got shape {weight.shape}, expected ({n},), one weight per sample")
    if weight.min() < 0:
        raise ValueError(f"sample_weight: got {weight.min()}, expected weights of at least 0; 0 leaves a sample out")
    with np.errstate(over="ignore"):
        total = weight.sum()
    if not np.isfinite(total):
        raise ValueError(
            f"sample_weight: got weights up to {weight.max():.3g}, whose sum overflows, expected smaller ones"
        )
    if weight.max() == 0:
        raise ValueError("sample_weight: got weight zero for every sample, expected some above zero")
    return weight
