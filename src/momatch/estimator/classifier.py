"""`MoMatchClassifier`: few labels, many vectors, and a classifier that says "I don't know" (docs/estimator.md)."""

import copy
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from momatch.estimator.fitting import Fitted, fit_set
from momatch.estimator.labels import encode_labels, mark_rejected, split_labels
from momatch.estimator.samples import weighted_set
from momatch.estimator.settings import read_settings
from momatch.models.scorer import Scores
from momatch.numerics.checks import check_fraction


class MoMatchClassifier(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Semi-supervised classifier of vectors with a Gaussian mixture at its end, which also tells outliers.

    Features are scaled, an encoder maps them to an embedding and the head models each class there as a Gaussian. Unlabelled
    samples take part through pseudo-labels: what is sure in a weak view (little noise) must hold in a strong one (noise, masked
    features, a step towards a neighbour). Labels that were spread over a graph of neighbours lead the way at first.

    A fit depends on the weighted set of samples: their order does not matter, and a sample with weight 3 is the same as three.

    Args:
        encoder: "mlp", or "none": the scaled features are the embedding, and the head alone is trained.
        hidden_sizes: width of each hidden layer of the perceptron.
        embedding_dim: size of the embedding ("none": that of the features).
        head: "aagmm" (Gaussians with variances of their own), "kmeans" (unit variances) or "linear" (no density:
            `score_samples` is then its negative energy).
        moment_order: moments that the constraint makes Gaussian, 1 to 4, each with the lower ones; 0 for no constraint; None
            for 1, and 0 for the linear head.
        moment_weight: weight of the constraint in the loss.
        policy: how pseudo-labels are weighed: "flexmatch", "fixmatch", "freematch", "softmatch"; "supervised" for none.
        cutoff: confidence from which a pseudo-label counts (fixmatch, flexmatch).
        unlabeled_weight: weight of the pseudo-label loss.
        scale: "feature" divides each feature by its standard deviation, "global" all by one number, "auto" chooses: global if
            features seem to share a unit (the median deviation is at least a tenth of the largest).
        graph_neighbors: nearest neighbours in a graph over which the labels are spread; what it says guides the pseudo-labels,
            alone at first and less and less with every step. 0 for no graph.
        neighbors: nearest neighbours towards which views move; 0 for none.
        weak_move: largest way of a weak view towards such a neighbour, as a share of the distance.
        strong_move: that of a strong view.
        weak_noise: length of a weak view's noise, in distances between neighbours (the median one to the 10th).
        strong_noise: that of a strong view.
        mask: largest share of features that a strong view sets to their mean; less where that would go farther than neighbours
            are.
        steps: optimiser steps.
        labeled_batch_size: labelled samples a step.
        unlabeled_batch_size: samples of the pool (labelled and unlabelled ones) a step.
        lr: learning rate of AdamW, falling as a cosine.
        weight_decay: of the encoder's weights.
        ema_decay: of the averaged model that predicts.
        calibration_fraction: share of the distinct unlabelled samples that is kept out of training to calibrate p-values.
        outlier_score: what p-values rank: "nearest" (Mahalanobis distance to the nearest center) or "density" (-log p(x));
            "auto": nearest, and density for the linear head.
        unlabeled: what `y` holds for unlabelled samples; None for missing values (None, NaN, NA).
        rejected_label: what ``predict(X, reject=alpha)`` returns for outliers; None for -1, or "rejected" where classes are
            names.
        random_state: seed of the fit, as everywhere in scikit-learn.
        verbose: 1 shows progress on stderr: steps, loss, share of pseudo-labels that count.

    Attributes:
        classes_: the classes, sorted.
        n_features_in_: features of a sample.
        feature_names_in_: their names, where `X` was a frame with names.
        calibration_source_: which samples p-values are ranked among: "unlabeled" or "labeled" ones that were kept out of
            training, or, where none could be spared, those of "training"; p-values are then approximate and tend to be small.
        n_calibration_: how many those are.
        fitted_: scaling, network (a `momatch.Classifier`) and scorer.

    Example:
        >>> y[40:] = -1  # the class of all but 40 samples is not known
        >>> model = MoMatchClassifier(random_state=0).fit(X, y)
        >>> model.predict(X_new, reject=0.05)  # -1: like nothing in X
    """

    fitted_: Fitted
    classes_: np.ndarray[Any, Any]
    calibration_source_: str
    n_calibration_: int

    def __init__(
        self,
        *,
        encoder: str = "mlp",
        hidden_sizes: Sequence[int] = (512,),
        embedding_dim: int = 32,
        head: str = "aagmm",
        moment_order: int | None = None,
        moment_weight: float = 1.0,
        policy: str = "flexmatch",
        cutoff: float = 0.95,
        unlabeled_weight: float = 1.0,
        scale: str = "auto",
        graph_neighbors: int = 6,
        neighbors: int = 10,
        weak_move: float = 0.2,
        strong_move: float = 0.6,
        weak_noise: float = 0.15,
        strong_noise: float = 0.45,
        mask: float = 0.2,
        steps: int = 500,
        labeled_batch_size: int = 64,
        unlabeled_batch_size: int = 192,
        lr: float = 3e-3,
        weight_decay: float = 1e-2,
        ema_decay: float = 0.99,
        calibration_fraction: float = 0.1,
        outlier_score: str = "auto",
        unlabeled: Any = -1,
        rejected_label: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.encoder = encoder
        self.hidden_sizes = hidden_sizes
        self.embedding_dim = embedding_dim
        self.head = head
        self.moment_order = moment_order
        self.moment_weight = moment_weight
        self.policy = policy
        self.cutoff = cutoff
        self.unlabeled_weight = unlabeled_weight
        self.scale = scale
        self.graph_neighbors = graph_neighbors
        self.neighbors = neighbors
        self.weak_move = weak_move
        self.strong_move = strong_move
        self.weak_noise = weak_noise
        self.strong_noise = strong_noise
        self.mask = mask
        self.steps = steps
        self.labeled_batch_size = labeled_batch_size
        self.unlabeled_batch_size = unlabeled_batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.ema_decay = ema_decay
        self.calibration_fraction = calibration_fraction
        self.outlier_score = outlier_score
        self.unlabeled = unlabeled
        self.rejected_label = rejected_label
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MoMatchClassifier":
        """Train on labelled and unlabelled samples.

        Args:
            X: features, (n, F), dense and finite.
            y: class of each sample, `unlabeled` where it is not known.
            sample_weight: how often each sample counts in training; 0 leaves it out. None for 1 each.

        Returns:
            This estimator.

        Raises:
            ValueError: if a setting, `X`, `y` or `sample_weight` cannot be used, or training diverged.
        """
        fitted = copy.copy(self)  # a fit that fails leaves the estimator as it was
        fitted._fit(X, y, sample_weight)
        self.__dict__ = fitted.__dict__
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        settings = read_settings(self.get_params(deep=False))
        if y is None:
            validate_data(self, X, y)  # scikit-learn's own words for a missing y
        X = validate_data(self, X, dtype=np.float64)
        check_consistent_length(X, y)
        weight = _check_weight(sample_weight, len(X))
        known, labels = split_labels(y, self.unlabeled)
        self.classes_, codes = encode_labels(known & (weight > 0), labels[weight[known] > 0])
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self.fitted_ = fit_set(weighted_set(X, codes, weight), settings, num_classes=len(self.classes_), seed=seed)
        self.calibration_source_ = self.fitted_.calibration_source
        self.n_calibration_ = len(self.fitted_.scorer.calibration_scores)
        self._n_features_out = self.fitted_.scorer.head.embedding_dim

    def predict(self, X: Any, *, reject: float | None = None) -> Shaped[np.ndarray, " n"]:
        """The class of each sample.

        Args:
            X: features, (n, F).
            reject: alpha, the rate of false alarms to allow: samples with an outlier p-value of at most alpha get the rejected
                label instead of a class. None rejects nothing.

        Raises:
            ValueError: if `X` does not fit the training data, `reject` is not within 0 to 1 or the rejected label is a class.
            NotFittedError: before `fit`.
        """
        scores = self._scores(X)
        predicted: np.ndarray[Any, Any] = self.classes_[scores.labels.numpy()]
        if reject is None:
            return predicted
        self._check_alpha(reject)
        return mark_rejected(predicted, scores.p_value.numpy() <= reject, self.classes_, self.rejected_label)

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "n K"]:
        """Posterior p(y|x) of each class, in the order of `classes_`.

        Raises:
            ValueError: if `X` does not fit the training data.
            NotFittedError: before `fit`.
        """
        return self._scores(X).posterior.numpy()

    def transform(self, X: Any) -> Float64[np.ndarray, "n D"]:
        """Embedding of each sample, in which each class is a Gaussian.

        Raises:
            ValueError: if `X` does not fit the training data.
            NotFittedError: before `fit`.
        """
        check_is_fitted(self)
        return self.fitted_.embed(self._features(X)).numpy()

    def score_samples(self, X: Any) -> Float64[np.ndarray, " n"]:
        """log p(x) of each sample's embedding, under the mixture fitted to the classes; for a linear head, its negative energy.

        Raises:
            ValueError: if `X` does not fit the training data.
            NotFittedError: before `fit`.
        """
        return self._scores(X).log_density.numpy()

    def outlier_p_value(self, X: Any) -> Float64[np.ndarray, " n"]:
        """Conformal p-value of "this sample is like the training data": (1 + #{calibration scores >= its own}) / (m + 1).

        For a sample that is like the data it is at most alpha with probability at most alpha. See `calibration_source_`.

        Raises:
            ValueError: if `X` does not fit the training data.
            NotFittedError: before `fit`.
        """
        return self._scores(X).p_value.numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy over the labelled samples; unlabelled ones are left out, so that cross-validation works with them.

        Raises:
            ValueError: if no sample is labelled, or `X`, `y` or `sample_weight` cannot be used.
            NotFittedError: before `fit`.
        """
        predicted = self.predict(X)
        check_consistent_length(predicted, y)
        known, labels = split_labels(y, self.unlabeled)
        weight = _check_weight(sample_weight, len(known))[known]
        if not weight.any():
            raise ValueError(
                f"y: got {len(known)} samples without a label or without weight, expected some labelled ones to score on"
            )
        return float(accuracy_score(labels, predicted[known], sample_weight=None if sample_weight is None else weight))

    def _features(self, X: Any) -> Float64[np.ndarray, "n F"]:
        features: np.ndarray[Any, Any] = validate_data(self, X, reset=False, dtype=np.float64)
        return features

    def _scores(self, X: Any) -> Scores:
        check_is_fitted(self)
        return self.fitted_.scores(self._features(X))

    def _check_alpha(self, alpha: Any) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number):
            raise ValueError(
                f"reject: got {alpha!r}, expected a number from 0 to 1, the rate of false alarms; None for none"
            )
        alpha = check_fraction("reject", float(alpha))
        m = self.n_calibration_
        if 0.0 < alpha < 1.0 / (m + 1):
            warnings.warn(
                f"reject: got {alpha}, but among {m} calibration samples no p-value is below 1/{m + 1}, so nothing can be "
                f"rejected; {math.ceil(1 / alpha) - 1} would be needed: fit with more unlabelled samples or a larger "
                "calibration_fraction",
                stacklevel=3,
            )


def _check_weight(sample_weight: Any, n: int) -> Float64[np.ndarray, " {n}"]:
    """One finite weight of at least 0 a sample, not all 0.

    Raises:
        ValueError: if they are not that.
    """
    if sample_weight is None:
        return np.ones(n)
    if np.asarray(sample_weight).ndim == 0:
        raise ValueError(f"sample_weight: got {sample_weight!r}, expected ({n},), one weight a sample")
    weight: np.ndarray[Any, Any] = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
    )
    if weight.shape != (n,):
        raise ValueError(f"sample_weight: got shape {weight.shape}, expected ({n},), one weight a sample")
    if weight.min() < 0:
        raise ValueError(f"sample_weight: got {weight.min()}, expected weights of at least 0; 0 leaves a sample out")
    if weight.max() == 0:
        raise ValueError("sample_weight: got the weight zero for every sample, expected some above zero")
    return weight
