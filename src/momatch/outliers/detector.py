"""The outlier detector: scores, thresholds, conformal p-values (docs/method.md, "Outliers").

Higher scores are more outlying.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from momatch.heads import Head, log_density
from momatch.numerics.checks import check_embeddings, check_fraction, is_readable
from momatch.outliers.conformal import conformal_p_value, nan_outlies
from momatch.outliers.discovery import benjamini_hochberg
from momatch.outliers.stage_judge import StageJudge
from momatch.outliers.thresholds import chi2_quantile

Score = Literal["nearest", "assigned", "farthest", "density"]
Threshold = Literal["percentile", "annealed", "chi2"]


def _nearest(head: Head, z: Tensor) -> Tensor:
    return head.mahalanobis(z).amin(-1)


def _assigned(head: Head, z: Tensor) -> Tensor:
    return head.mahalanobis(z).gather(-1, head(z).argmax(-1, keepdim=True)).squeeze(-1)


def _farthest(head: Head, z: Tensor) -> Tensor:
    return head.mahalanobis(z).amax(-1)


#: Mahalanobis distance to the nearest center, to the predicted class's center, and to the farthest center.
DISTANCES: dict[str, Callable[[Head, Tensor], Tensor]] = {
    "nearest": _nearest,
    "assigned": _assigned,
    "farthest": _farthest,
}


class OutlierDetector(nn.Module):
    """Detects embeddings that are unlikely under a head's mixture, or inputs that are unusual to a judge.

    The detector uses the current parameters of the head or judge, but they are not part of its state.

    Args:
        head: the trained head, which scores embeddings z (n, D); `Linear` supports only the score "density" (its energy). Or a
            fitted `StageJudge`, which scores the inputs of its network: pass these wherever z stands below.
        score: Mahalanobis distance to the "nearest" center, to the predicted class's ("assigned") or to the "farthest", or
            "density" (-log p(x)); "judge", the only one with a judge. None for "nearest" or "judge".
        threshold: "percentile" of the labelled samples' scores; "annealed", a percentile that moves from `percentile` to
            `percentile_end` during training; or "chi2", the theoretical quantile for a Gaussian cluster, which needs no
            labelled samples; not with a judge.
        percentile: for "percentile", and the starting value for "annealed"; 0 to 100.
        percentile_end: final value for "annealed".
        quantile: for "chi2": of the chi-square distribution with D degrees of freedom.

    Raises:
        ValueError: if an argument is unknown or out of range, or score and threshold are incompatible.

    Example:
        >>> detector = OutlierDetector(model.fc).fit(z_labeled)
        >>> keep = ~detector.is_outlier(z_unlabeled)
        >>> detector.calibrate(z_held_out).p_value(z_new)
        >>> OutlierDetector(StageJudge(model).fit(loader)).calibrate(x_held_out).p_value(x_new)
    """

    gaussian_tau: Tensor
    threshold_scores: Tensor
    calibration_scores: Tensor

    def __init__(
        self,
        head: Head | StageJudge,
        *,
        score: Score | Literal["judge"] | None = None,
        threshold: Threshold = "percentile",
        percentile: float = 90.0,
        percentile_end: float = 100.0,
        quantile: float = 0.99,
    ) -> None:
        super().__init__()
        if score is None:
            score = "judge" if isinstance(head, StageJudge) else "nearest"
        if threshold not in get_args(Threshold):
            raise ValueError(f"threshold: got {threshold!r}, expected one of {get_args(Threshold)}")
        if isinstance(head, StageJudge):
            _check_with_judge(score, threshold)
        else:
            _check_with_head(head, score, threshold)
        # In a tuple, so that nn.Module does not register it as a child.
        self._head = (head,)
        self.score_name = score
        self.threshold = threshold
        self.percentile = _check_percentile("percentile", percentile)
        self.percentile_end = _check_percentile("percentile_end", percentile_end)
        self.quantile = check_fraction("quantile", quantile)
        chi2 = torch.nan if isinstance(head, StageJudge) else chi2_quantile(self.quantile, head.embedding_dim)
        network = head.network if isinstance(head, StageJudge) else head
        parameter = next(network.parameters(), torch.empty(0))
        self.register_buffer("gaussian_tau", torch.full((), chi2**0.5, device=parameter.device), persistent=False)
        self.register_buffer("threshold_scores", torch.empty(0, device=parameter.device))
        self.register_buffer("calibration_scores", torch.empty(0, device=parameter.device))

    @property
    def head(self) -> Head:
        """The head that scores embeddings.

        Raises:
            ValueError: if a judge scores instead.
        """
        head = self._head[0]
        if isinstance(head, StageJudge):
            raise ValueError("head: got a detector with a judge, expected one with a head")
        return head

    @torch.no_grad()
    def score(self, z: Shaped[Tensor, "n *size"]) -> Float[Tensor, " n"]:
        """Outlier score of each embedding, or input of the judge's network; +inf for NaN.

        Raises:
            ValueError: if `z` is not (n, D) or is empty, or as `StageJudge.score`.
        """
        if isinstance(self._head[0], StageJudge):
            return self._head[0].score(z)
        head = self.head
        check_embeddings(z, head.embedding_dim, batch_dims=1)
        scores = -log_density(head(z)) if self.score_name == "density" else DISTANCES[self.score_name](head, z)
        return nan_outlies(scores)

    def fit(self, z: Shaped[Tensor, "n *size"]) -> "OutlierDetector":
        """Score labelled embeddings, for percentile thresholds.

        Raises:
            ValueError: if `z` is not (n, D) or is empty, or a score is not finite (checked on the CPU only).
        """
        scores = self.score(z)
        if is_readable(scores) and not bool(scores.isfinite().all()):
            bad, what = int((~scores.isfinite()).sum()), "inputs" if self.score_name == "judge" else "embeddings"
            raise ValueError(f"z: got {bad} {what} without a finite score, expected none; remove them")
        self.threshold_scores = scores
        return self

    def calibrate(self, z: Shaped[Tensor, "m *size"]) -> "OutlierDetector":
        """Score held-out inliers, for p-values. They must not have been trained on, or p-values will be too small.

        Raises:
            ValueError: if `z` is not (m, D) or is empty, or no score is finite.
        """
        scores = self.score(z)
        if is_readable(scores) and not bool(scores.isfinite().any()):
            raise ValueError(
                f"z: got {len(scores)} samples without a finite score, expected inliers; they may be damaged"
            )
        self.calibration_scores = scores.sort().values
        return self

    def tau(self, progress: float = 1.0) -> Float[Tensor, ""]:
        """The threshold above which a score is an outlier.

        Args:
            progress: fraction of the training that is done, 0 to 1; used only by "annealed".

        Raises:
            ValueError: if `progress` is out of range, or a percentile threshold is used before `fit`.
        """
        check_fraction("progress", progress)
        if self.threshold == "chi2":
            return self.gaussian_tau
        if self.threshold_scores.numel() == 0:
            raise ValueError(
                "threshold: got no labelled scores, expected fit(z) with labelled embeddings to be called first"
            )
        moved = progress * (self.percentile_end - self.percentile) if self.threshold == "annealed" else 0.0
        return torch.quantile(self.threshold_scores, (self.percentile + moved) / 100.0)

    def is_outlier(self, z: Shaped[Tensor, "n *size"], *, progress: float = 1.0) -> Bool[Tensor, " n"]:
        """True where the score is above the threshold.

        Args:
            z: embeddings, (n, D).
            progress: fraction of the training that is done, 0 to 1; used only by "annealed".

        Raises:
            ValueError: as `score` and `tau`.
        """
        return self.score(z) > self.tau(progress)

    def p_value(self, z: Shaped[Tensor, "n *size"]) -> Float[Tensor, " n"]:
        """Conformal p-value (1 + #{calibration >= score}) / (m + 1).

        If a new sample is exchangeable with the calibration set, its p-value is at most alpha with probability at most alpha,
        whatever the score. So flagging p <= alpha bounds the false-positive rate by alpha.

        Raises:
            ValueError: if `calibrate` was not called, or as `score`.
        """
        if self.calibration_scores.numel() == 0:
            raise ValueError(
                "p_value: got no calibration scores, expected calibrate(z) with held-out inliers to be called first"
            )
        return conformal_p_value(self.calibration_scores, self.score(z))

    def select_outliers(self, z: Shaped[Tensor, "n *size"], *, fdr: float) -> Bool[Tensor, " n"]:
        """Select outliers by Benjamini-Hochberg: the expected fraction of inliers among them is at most `fdr`.

        Raises:
            ValueError: if `fdr` is not in [0, 1], or as `p_value`.
        """
        return benjamini_hochberg(self.p_value(z), fdr)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Resize the buffers to the number of scores in the checkpoint.
        for name in ("threshold_scores", "calibration_scores"):
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor):
                setattr(self, name, torch.empty_like(value, device=self.gaussian_tau.device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"score={self.score_name!r}, threshold={self.threshold!r}"


def _check_with_judge(score: str, threshold: str) -> None:
    if score != "judge":
        raise ValueError(f"score: got {score!r} with a judge, expected 'judge'; the others are scores of a head")
    if threshold == "chi2":
        raise ValueError(
            "threshold: got 'chi2' with a judge, expected 'percentile' or 'annealed': its score is of distances and "
            "answers, and follows no chi-square distribution"
        )


def _check_with_head(head: Head, score: str, threshold: str) -> None:
    if not isinstance(head, Head):
        raise ValueError(
            f"head: got {type(head).__name__}, expected a momatch head (AAGMM, KMeans or Linear) or a StageJudge"
        )
    if score not in get_args(Score):
        raise ValueError(f"score: got {score!r}, expected one of {get_args(Score)}")
    if score != "density" and not head.has_centers:
        raise ValueError(
            f"score: got {score!r} with a {type(head).__name__} head, expected 'density': it has no centers"
        )
    if threshold == "chi2" and score not in ("nearest", "assigned"):
        raise ValueError(
            f"threshold: got 'chi2' with score {score!r}, expected score 'nearest' or 'assigned': only the distance to "
            "a sample's own cluster follows a chi-square distribution"
        )


def _check_percentile(name: str, value: float) -> float:
    if not 0.0 <= value <= 100.0:
        raise ValueError(f"{name}: got {value!r}, expected a number from 0 to 100")
    return float(value)
