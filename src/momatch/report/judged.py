"""Images with what a model says about them: the material of the map, the densities and the contact sheets."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from momatch.data.dataset import UNLABELED
from momatch.data.rows import Rows
from momatch.evaluation.evaluate import Outputs, outlier_scores, run_classifier
from momatch.evaluation.metrics import log_doubt
from momatch.heads import log_posterior
from momatch.report.models import Model

#: Side of a thumbnail, at most: thousands of photographs would take gigabytes.
MOST_PIXELS = 64


@dataclass(frozen=True)
class Judged:
    """Images of one origin.

    Attributes:
        name: of the origin.
        images: N images, in the shape that the model takes.
        labels: (N,) true class, -1 where it is none of the run's or not known.
        outputs: of the model.
        model: itself.
    """

    name: str
    images: Rows
    labels: Int64[Tensor, " N"]
    outputs: Outputs
    model: Model

    @classmethod
    def by(cls, model: Model, name: str, images: Rows, labels: Int64[Tensor, " N"] | None = None) -> "Judged":
        """Run the model over images; without `labels` they are of no known class.

        Raises:
            ValueError: if there are none, or the model does not take raw images.
        """
        labels = torch.full((len(images),), UNLABELED) if labels is None else labels
        return cls(name, images, labels, run_classifier(model.classifier, images), model)

    def __len__(self) -> int:
        return len(self.images)

    def select(self, positions: Int64[Tensor, " n"]) -> "Judged":
        """The images at `positions`."""
        rows, labels = self.images.select(positions), self.labels[positions]
        return Judged(self.name, rows, labels, self.outputs.select(positions), self.model)

    @cached_property
    def is_finite(self) -> Bool[Tensor, " N"]:
        """(N,) whether embedding, log joint and outlier scores are numbers: a model that diverged gives others."""
        outputs = self.outputs.z.isfinite().all(1) & self.outputs.log_joint.isfinite().all(1)
        return outputs & self.score.isfinite() & self.scores["density"].isfinite()

    @property
    def predicted(self) -> Int64[Tensor, " N"]:
        """The class of the largest posterior."""
        return self.outputs.log_joint.argmax(1)

    @property
    def confidence(self) -> Float[Tensor, " N"]:
        """The largest posterior."""
        return log_posterior(self.outputs.log_joint.double()).exp().amax(1)

    @property
    def doubt(self) -> Float[Tensor, " N"]:
        """log(1 - confidence), which tells apart what rounds to a confidence of 1."""
        return log_doubt(self.outputs.log_joint)

    def thumbnails(self) -> UInt8[Tensor, "N C h w"]:
        """The images in memory, with no side longer than `MOST_PIXELS`; of features the pictures beside them, or black ones."""
        pictures = self.images.pictures
        if pictures is None:
            return torch.zeros((len(self), self.model.facts.in_channels, 1, 1), dtype=torch.uint8)
        channels, height, width = pictures.shape
        scale = min(1.0, MOST_PIXELS / max(height, width))
        size = (max(1, round(scale * height)), max(1, round(scale * width)))
        return pictures.converted((channels, *size)).gather(torch.arange(len(self)))

    @cached_property
    def scores(self) -> dict[str, Float[Tensor, " N"]]:
        """Every outlier score of the head that judges."""
        return outlier_scores(self.model.judge, self.outputs)

    @property
    def score(self) -> Float[Tensor, " N"]:
        """The outlier score: Mahalanobis distance to the nearest center, or the energy of a head without centers."""
        return self.scores.get("nearest", self.scores["density"])


def alarm_level(inliers: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The score above which an image is taken for an outlier: 5 % of the inliers, at most, lie above it."""
    accepted = -(-95 * len(inliers) // 100)
    return inliers.sort().values[accepted - 1]
