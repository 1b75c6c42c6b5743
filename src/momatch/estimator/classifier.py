"""`MoMatchClassifier`, a semi-supervised scikit-learn classifier that can reject outliers (docs/estimator.md)."""

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
    """Semi-supervised classifier for feature vectors that can also reject outliers.

    Features are scaled and encoded into an embedding, in which each class is modelled as a Gaussian. Unlabelled samples
    contribute through pseudo-labels: a confident prediction on a weakly augmented sample (a little noise) is the target for a
    strongly augmented one (more noise, masked features, a move towards a neighbour). Early in training, pseudo-labels are
    guided by the given labels, spread over a nearest-neighbour graph.

    The fit does not depend on the order of the samples, and a sample of weight 3 is equivalent to three copies of it.

    Args:
        encoder: "mlp", or "none" to use the scaled features as the embedding and train only the head.
        hidden_sizes: width of each hidden layer of the MLP.
        embedding_dim: size of the embedding; ignored with encoder "none".
        head: "aagmm" (Gaussians with learned variances), "kmeans" (unit variances) or "linear" (no Gaussians, so no outlier
            score "nearest").
        moment_order: highest moment constrained to be Gaussian, 1 to 4, including all lower ones; 0 disables the constraint.
            None means 1, or 0 for the linear head.
        moment_weight: weight of the constraint in the loss.
        policy: how pseudo-labels are weighted: "flexmatch", "fixmatch", "freematch" or "softmatch"; "supervised" uses none.
        cutoff: minimum confidence for a pseudo-label to count (fixmatch, flexmatch).
        unlabeled_weight: weight of the pseudo-label loss.
        scale: "feature" divides each feature by its standard deviation, "global" divides all by the same number. "auto" uses
            "global" if features seem to share a unit (median standard deviation at least a tenth of the largest).
        graph_neighbors: number of nearest neighbours in the graph that guides the pseudo-labels; its weight falls from 1 to 0
            during training. 0 disables it.
        neighbors: number of nearest neighbours that an augmented sample may move towards; 0 disables moves.
        weak_move: maximum move in weak augmentation, as a fraction of the distance to the neighbour.
        strong_move: the same for strong augmentation.
        weak_noise: norm of the noise in weak augmentation, in units of the typical distance between neighbours (median
            distance to the 10th nearest).
        strong_noise: the same for strong augmentation.
        mask: maximum fraction of features that strong augmentation sets to their mean; limited so that a sample moves no
            farther than neighbours are apart.
        steps: number of optimiser steps.
        labeled_batch_size: labelled samples per step.
        unlabeled_batch_size: samples per step drawn from all samples, labelled or not.
        lr: initial learning rate of AdamW, with a cosine schedule.
        weight_decay: weight decay of the encoder's weights.
        ema_decay: decay of the weight average (EMA) used for prediction.
        calibration_fraction: fraction of the distinct unlabelled samples to keep out of training for calibrating p-values.
        outlier_score: score that p-values are based on: "judge" (how unusual a sample is to the encoder's layers, plus how
            unsure the classifier is), or a score of the head's Gaussians: "nearest" (Mahalanobis distance to the nearest
            center) or "density" (-log p(x)). "auto" means judge.
        unlabeled: value in `y` that marks unlabelled samples; None for missing values (None, NaN, NA).
        rejected_label: label that ``predict(X, reject=alpha)`` gives to outliers. None means -1, or "rejected" if classes are
            strings.
        random_state: int, RandomState or None, as in scikit-learn.
        verbose: 1 shows progress on stderr.

    Attributes:
        classes_: class labels, sorted.
        n_features_in_: number of features.
        feature_names_in_: feature names, if `X` was a data frame with string column names.
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
        settings = read_settings(self.get_params(deep=False))
        if y is None:
            validate_data(self, X, y)  # raises scikit-learn's error for a missing y
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
        predicted: np.ndarray[Any, Any] = self.classes_[scores.labels.numpy()]
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
        return self._scores(X).posterior.numpy()

    def transform(self, X: Any) -> Float64[np.ndarray, "n D"]:
        """Embed each sample in the space where each class is a Gaussian.

        Raises:
            ValueError: if `X` does not match the training data.
            NotFittedError: before `fit`.
        """
        check_is_fitted(self)
        return self.fitted_.embed(self._features(X)).numpy()

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

    def _features(self, X: Any) -> Float64[np.ndarray, "n F"]:
        features: np.ndarray[Any, Any] = validate_data(self, X, reset=False, dtype=np.float64)
        return features

    def _scores(self, X: Any) -> Scores:
        check_is_fitted(self)
        return self.fitted_.scores(self._features(X))

    def _check_alpha(self, alpha: Any) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number):
            raise ValueError(
                f"reject: got {alpha!r}, expected a false-positive rate from 0 to 1, or None to reject nothing"
            )
        alpha = check_fraction("reject", float(alpha))
        m = self.n_calibration_
        if 0.0 < alpha < 1.0 / (m + 1):
            warnings.warn(
                f"reject: got {alpha}, but with {m} calibration samples the smallest p-value is 1/{m + 1}, so nothing can be "
                f"rejected; at least {math.ceil(1 / alpha) - 1} are needed: fit with more unlabelled samples or a larger "
                "calibration_fraction",
                stacklevel=3,
            )


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
    if weight.max() == 0:
        raise ValueError("sample_weight: got weight zero for every sample, expected some above zero")
    return weight
