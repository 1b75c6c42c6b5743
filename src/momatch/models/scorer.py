"""From embeddings to what a prediction says: label, posterior, log density, distance, p-value (docs/method.md, "Outliers").

Labels are those of the head as trained. Outliers are judged by another head where there is one: the mixture refitted in closed
form, whose densities and distances mean more.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from momatch.heads import Head, log_density, log_posterior
from momatch.outliers import DISTANCES, OutlierDetector, Score


@dataclass(frozen=True)
class Scores:
    """What is said about n samples.

    Attributes:
        labels: (n,) the class of the largest posterior.
        posterior: (n, K) p(y=k | x).
        log_density: (n,) log p(x) by the judging head; for a linear head its negative energy.
        distance: (n,) Mahalanobis distance to the nearest center of the judging head; NaN for a head without centers.
        p_value: (n,) conformal p-value of the outlier score; NaN where nothing was calibrated.
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
    """Says of embeddings what class they are, and how well the mixture explains them.

    Args:
        head: gives labels and posteriors.
        judge: gives densities, distances and p-values; None for `head` itself.
        score: what p-values are ranked by, see `momatch.OutlierDetector`; None for "nearest", and "density" for a head without
            centers.
        calibration_scores: (m,) outlier scores of held-out inliers; see `calibrate`.

    Raises:
        ValueError: if a head is of no known kind, or cannot give the score.
    """

    def __init__(
        self,
        head: Head,
        judge: Head | None = None,
        *,
        score: Score | None = None,
        calibration_scores: Float[Tensor, " m"] | None = None,
    ) -> None:
        super().__init__()
        self.head = head
        self.judge = head if judge is None else judge
        if score is None:
            score = "nearest" if self.judge.has_centers else "density"
        self.detector = OutlierDetector(self.judge, score=score)
        if calibration_scores is not None:
            self.detector.calibration_scores = calibration_scores.sort().values

    @property
    def calibration_scores(self) -> Float[Tensor, " m"]:
        """The scores that p-values are ranked among, in ascending order; empty before `calibrate`."""
        return self.detector.calibration_scores

    def calibrate(self, z: Float[Tensor, "m D"]) -> "Scorer":
        """Take the embeddings of held-out inliers, against which p-values are ranked.

        Raises:
            ValueError: if `z` is not (m, D) with m of at least 1.
        """
        self.detector.calibrate(z)
        return self

    @torch.no_grad()
    def forward(self, z: Float[Tensor, "n D"]) -> Scores:
        """All that is said about the samples, without gradient.

        Raises:
            ValueError: if `z` is not (n, D) with n of at least 1.
        """
        log_joint = self.head(z)
        judge = self.judge
        judged = log_joint if judge is self.head else judge(z)
        nothing = torch.full_like(judged[:, 0], torch.nan)
        return Scores(
            labels=log_joint.argmax(-1),
            posterior=log_posterior(log_joint).exp(),
            log_density=log_density(judged),
            distance=DISTANCES["nearest"](judge, z) if judge.has_centers else nothing,
            p_value=self.detector.p_value(z) if self.calibration_scores.numel() else nothing,
        )
