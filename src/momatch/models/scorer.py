"""Predictions from embeddings: label, posterior, log density, distance, p-value (docs/method.md, "Outliers").

Labels and posteriors come from the head as trained. Densities, distances and p-values come from the outlier head: the mixture
refitted in closed form, if there is one.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from momatch.heads import Head, log_density, log_posterior
from momatch.outliers import DISTANCES, OutlierDetector, Score


@dataclass(frozen=True)
class Scores:
    """Predictions for n samples.

    Attributes:
        labels: (n,) the most likely class.
        posterior: (n, K) p(y=k | x).
        log_density: (n,) log p(x) under the outlier head; for a linear head its negative energy.
        distance: (n,) Mahalanobis distance to the nearest center of the outlier head; NaN for a head without centers.
        p_value: (n,) conformal p-value of the outlier score; NaN without calibration.
    """

    labels: Int64[Tensor, " n"]
    posterior: Float[Tensor, "n K"]
    log_density: Float[Tensor, " n"]
    distance: Float[Tensor, " n"]
    p_value: Float[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def confidence(self) -> Float[Tensor, " n"]:
        """The largest posterior."""
        return self.posterior.amax(-1)


class Scorer(nn.Module):
    """Labels embeddings and scores them as outliers.

    Args:
        head: gives labels and posteriors.
        outlier_head: gives densities, distances and p-values; None for `head`.
        score: outlier score behind the p-values, see `momatch.OutlierDetector`; None for "nearest", or "density" for a head
            without centers.
        calibration_scores: (m,) outlier scores of held-out inliers; see `calibrate`.

    Raises:
        ValueError: if a head is of an unknown type, or does not support the score.
    """

    def __init__(
        self,
        head: Head,
        outlier_head: Head | None = None,
        *,
        score: Score | None = None,
        calibration_scores: Float[Tensor, " m"] | None = None,
    ) -> None:
        super().__init__()
        self.head = head
        self.outlier_head = head if outlier_head is None else outlier_head
        if score is None:
            score = "nearest" if self.outlier_head.has_centers else "density"
        self.detector = OutlierDetector(self.outlier_head, score=score)
        if calibration_scores is not None:
            self.detector.calibration_scores = calibration_scores.sort().values

    @property
    def calibration_scores(self) -> Float[Tensor, " m"]:
        """The calibration scores in ascending order; empty before `calibrate`."""
        return self.detector.calibration_scores

    def calibrate(self, z: Float[Tensor, "m D"]) -> "Scorer":
        """Calibrate p-values on the embeddings of held-out inliers.

        Raises:
            ValueError: if `z` is not (m, D) with m >= 1.
        """
        self.detector.calibrate(z)
        return self

    @torch.no_grad()
    def forward(self, z: Float[Tensor, "n D"]) -> Scores:
        """Predictions, without gradient.

        Raises:
            ValueError: if `z` is not (n, D) with n >= 1.
        """
        log_joint = self.head(z)
        outlier_head = self.outlier_head
        outlier_log_joint = log_joint if outlier_head is self.head else outlier_head(z)
        nothing = torch.full_like(outlier_log_joint[:, 0], torch.nan)
        return Scores(
            labels=log_joint.argmax(-1),
            posterior=log_posterior(log_joint).exp(),
            log_density=log_density(outlier_log_joint),
            distance=DISTANCES["nearest"](outlier_head, z) if outlier_head.has_centers else nothing,
            p_value=self.detector.p_value(z) if self.calibration_scores.numel() else nothing,
        )
