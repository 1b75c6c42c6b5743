"""Predictions: label, posterior, log density, distance, outlier score, p-value (docs/method.md, "Outliers").

Labels and posteriors come from the head as trained, posteriors at a temperature that calibrates them. Densities, distances
and p-values come from the judge, which sees the stages of the network; without one, from the head's mixture, refitted in
closed form if possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from momatch.heads import Head, log_density, log_posterior
from momatch.models.classifier import Classifier
from momatch.outliers import DISTANCES, Judge, Score, StageReader
from momatch.outliers.conformal import conformal_p_value, nan_outlies
from momatch.outliers.judge import Verdict

#: Outlier scores: that of the judge, or one of the head's, see `momatch.OutlierDetector`.
OutlierScore = Literal["judge", Score]
OUTLIER_SCORES: tuple[str, ...] = ("judge", *get_args(Score))


@dataclass(frozen=True)
class Scores:
    """Predictions for n samples.

    Attributes:
        labels: (n,) the most likely class.
        posterior: (n, K) p(y=k | x).
        log_density: (n,) log p(x) under the judge; without one, of the embedding under the head's mixture, or the negative
            energy of a linear head.
        distance: (n,) Mahalanobis distance to the nearest class under the judge or the mixture; NaN for a linear head without
            a judge.
        outlier_score: (n,) higher for outliers; p-values compare it with calibration.
        p_value: (n,) conformal p-value of the outlier score; NaN without calibration.
    """

    labels: Int64[Tensor, " n"]
    posterior: Float[Tensor, "n K"]
    log_density: Float[Tensor, " n"]
    distance: Float[Tensor, " n"]
    outlier_score: Float[Tensor, " n"]
    p_value: Float[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def confidence(self) -> Float[Tensor, " n"]:
        """The largest posterior."""
        return self.posterior.amax(-1)


def joined(parts: Sequence[Scores]) -> Scores:
    """The scores of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Scores(**{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Scores)})


class Scorer(nn.Module):
    """Labels samples and scores them as outliers, from embeddings and stages.

    Args:
        head: gives labels and posteriors.
        outlier_head: gives densities, distances and scores if there is no judge; None for `head`.
        judge: gives densities, distances and scores from the stages; None to do without.
        score: outlier score behind the p-values. None for that of the judge; without one "nearest", or "density" for a head
            without centers.
        calibration_scores: (m,) outlier scores of held-out inliers; see `calibrate`.
        temperature: of the posterior: above 1 it is less confident than the head's. Outlier scores do not depend on it.

    Raises:
        ValueError: if the score is unknown, or needs a judge or centers that are not there.
    """

    calibration_scores: Float[Tensor, " m"]

    def __init__(
        self,
        head: Head,
        outlier_head: Head | None = None,
        *,
        judge: Judge | None = None,
        score: OutlierScore | None = None,
        calibration_scores: Float[Tensor, " m"] | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.head = head
        self.temperature = temperature
        self.outlier_head = head if outlier_head is None else outlier_head
        if score is None:
            score = "judge" if judge is not None else "nearest" if self.outlier_head.has_centers else "density"
        if score not in OUTLIER_SCORES:
            raise ValueError(f"score: got {score!r}, expected one of {', '.join(OUTLIER_SCORES)}")
        if score == "judge" and judge is None:
            raise ValueError("score: got 'judge' without a judge, expected one, or a score of the head")
        if score in DISTANCES and not self.outlier_head.has_centers:
            raise ValueError(
                f"score: got {score!r} with a {type(self.outlier_head).__name__} head, expected 'density': it has no centers"
            )
        self.score_name: OutlierScore = score
        # A judge that is not asked costs nothing.
        self.judge = judge if score == "judge" else None
        empty = torch.empty(0, device=next(head.parameters()).device)
        self.register_buffer(
            "calibration_scores", empty if calibration_scores is None else calibration_scores.sort().values
        )

    def calibrate(self, z: Float[Tensor, "m D"], stages: Float[Tensor, "m S"] | None = None) -> "Scorer":
        """Calibrate p-values on held-out inliers.

        Raises:
            ValueError: if there are none, or as `forward`.
        """
        if len(z) == 0:
            raise ValueError("z: got no samples, expected at least one held-out inlier to calibrate on")
        self.calibration_scores = self(z, stages).outlier_score.sort().values
        return self

    @torch.no_grad()
    def forward(self, z: Float[Tensor, "n D"], stages: Float[Tensor, "n S"] | None = None) -> Scores:
        """Predictions, without gradient.

        Args:
            z: embeddings.
            stages: statistics of the stages of the same samples; needed by a judge.

        Raises:
            ValueError: if shapes are not as expected, or a judge gets no stages.
        """
        log_joint = self.head(z)
        posterior = log_posterior(log_joint).exp()
        if self.judge is not None:
            score, distance, density = self._judged(stages, posterior)
        else:
            density, distance, score = self._scored_by_head(z, log_joint)
        has_calibration = self.calibration_scores.numel() > 0
        p_value = (
            conformal_p_value(self.calibration_scores, score) if has_calibration else torch.full_like(score, torch.nan)
        )
        if self.temperature != 1.0:
            posterior = log_posterior(log_joint / self.temperature).exp()
        return Scores(log_joint.argmax(-1), posterior, density, distance, score, p_value)

    def _judged(self, stages: Tensor | None, posterior: Tensor) -> Verdict:
        assert self.judge is not None
        if stages is None:
            raise ValueError("stages: got none, expected the statistics of the network's stages, which the judge needs")
        return self.judge.verdict(stages.to(self.judge.scale), posterior)

    def _scored_by_head(self, z: Tensor, log_joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        head = self.outlier_head
        density = log_density(log_joint if head is self.head else head(z))
        distance = DISTANCES["nearest"](head, z) if head.has_centers else torch.full_like(density, torch.nan)
        name = self.score_name
        score = -density if name == "density" else distance if name == "nearest" else DISTANCES[name](head, z)
        return density, distance, nan_outlies(score)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Resize the buffer to the number of scores in the checkpoint.
        value = state_dict.get(prefix + "calibration_scores")
        if isinstance(value, Tensor):
            self.calibration_scores = torch.empty_like(value, device=self.calibration_scores.device)
        super()._load_from_state_dict(state_dict, prefix, *args)


def score_images(classifier: Classifier, scorer: Scorer, images: Tensor, reader: StageReader | None = None) -> Scores:
    """Predictions for images.

    Args:
        classifier: in evaluation mode.
        scorer: of its embeddings and stages.
        images: as `Classifier.embed` takes them.
        reader: of the stages that the scorer's judge needs; None to make one.

    Raises:
        ValueError: as `Classifier.embed`.
    """
    stages = None
    if scorer.judge is None:
        z = classifier.embed(images)
    else:
        z, stages = classifier.inspect(images, scorer.judge.stage_names if reader is None else reader)
    scores: Scores = scorer(z.to(torch.promote_types(z.dtype, torch.float32)), stages)
    return scores
