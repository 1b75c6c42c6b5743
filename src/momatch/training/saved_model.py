"""A trained classifier with all that prediction needs: what a folder of `momatch.training.model_files` holds."""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, UInt8
from torch import Tensor, nn

from momatch.classifier import Classifier
from momatch.data.conversion import convert_images
from momatch.data.rows import ImageRows
from momatch.heads import AAGMM, KMeans, Linear
from momatch.outliers import Score
from momatch.outputs import run_classifier
from momatch.scoring import Scorer, Scores
from momatch.training.model_facts import ModelFacts


@dataclass(frozen=True)
class Calibration:
    """Outlier scores of held-out inliers, among which p-values are ranked.

    Attributes:
        scores: (m,) in ascending order.
        score: what they are, see `momatch.OutlierDetector`.
        source: in words, which images they are of.
    """

    scores: Float[Tensor, " m"]
    score: Score
    source: str


@dataclass(frozen=True)
class SavedModel:
    """A trained classifier with all that prediction needs.

    Attributes:
        classifier: on the CPU, in evaluation mode.
        facts: what it was built from.
        refitted_head: the mixture in closed form for outlier scores; None where there is none.
        calibration: for p-values; None where nothing was held out.
    """

    classifier: Classifier
    facts: ModelFacts
    refitted_head: nn.Module | None = None
    calibration: Calibration | None = None

    @cached_property
    def scorer(self) -> Scorer:
        """Says of embeddings what a prediction says."""
        head, judge, calibration = self.classifier.head, self.refitted_head, self.calibration
        assert isinstance(head, AAGMM | KMeans | Linear), "Classifier.build takes it from HEADS"
        assert judge is None or isinstance(judge, AAGMM | KMeans | Linear), "load_model takes it from HEADS"
        if calibration is None:
            return Scorer(head, judge)
        return Scorer(head, judge, score=calibration.score, calibration_scores=calibration.scores)

    def predict(self, images: UInt8[Tensor, "n C H W"] | ImageRows, *, batch_size: int = 512) -> Scores:
        """Label, posterior, log density, distance and outlier p-value of raw images.

        Args:
            images: uint8, gray or RGB, of any size: they are brought to the model's.
            batch_size: images a pass.

        Raises:
            ValueError: if there are no images, or they are not raw pixels.
        """
        fitted = convert_images(ImageRows.of(images), (self.facts.in_channels, *self.facts.image_size))
        scores: Scores = self.scorer(run_classifier(self.classifier, fitted, batch_size=batch_size).z)
        return scores
