"""What a report says about a run: collected by `momatch.report.collect`, drawn by `momatch.report.page`.

Every part is either there or `Missing` with a reason, so that a run which is half done, empty or damaged still gets a page.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from momatch.config import TrainConfig
from momatch.evaluation.evaluate import Evaluation


@dataclass(frozen=True)
class Missing:
    """Why a part is not there.

    Attributes:
        reason: one sentence for the reader, with what can be done about it.
    """

    reason: str


@dataclass(frozen=True)
class Points:
    """Images in the latent space, as many as were asked for at most.

    Attributes:
        maps: "t-SNE" and "PCA" -> places, (n, 2).
        centers: the same names -> the head's centers, (K, 2); (0, 2) for a head without centers.
        origin_names: where images come from: "test images" first, then "held-out classes" and the names of other datasets.
        origin: (n,) index into `origin_names`; everything but 0 is an outlier by its origin.
        labels: (n,) true class, -1 where it is none of the run's.
        predicted: (n,) class of the largest posterior.
        confidence: (n,) that posterior.
        log_density: (n,) log p(x) of the head that judges outliers (the refitted one where there is one).
        distance: (n,) Mahalanobis distance to the nearest center of that head; NaN without centers.
        flagged: (n,) whether that head takes the image for an outlier at the level of 5 % false alarms on the test images.
        images: (n, C, H, W), made smaller where a side is longer than 64 pixels.
        explained: share of the variance that PCA's two directions hold.
    """

    maps: dict[str, Float[Tensor, "n 2"]]
    centers: dict[str, Float[Tensor, "K 2"]]
    origin_names: tuple[str, ...]
    origin: Int64[Tensor, " n"]
    labels: Int64[Tensor, " n"]
    predicted: Int64[Tensor, " n"]
    confidence: Float[Tensor, " n"]
    log_density: Float[Tensor, " n"]
    distance: Float[Tensor, " n"]
    flagged: Bool[Tensor, " n"]
    images: UInt8[Tensor, "n C H W"]
    explained: float


@dataclass(frozen=True)
class MomentRow:
    """One class of cells of a moment tensor (docs/method.md), of one cluster.

    Attributes:
        cells: its integer partition, such as "(2,1)".
        order: 1 to 4.
        target: what the moment of a standard normal is there (0, 1 or 3).
        mean: mean of the sample moments over its cells.
        error: root mean square of sample moment minus target over its cells.
        noise: the same for as many samples that really are standard normal: what chance alone would give.
    """

    cells: str
    order: int
    target: float
    mean: float
    error: float
    noise: float


@dataclass(frozen=True)
class ClusterFindings:
    """How Gaussian the test images of one class are around its center.

    Attributes:
        name: of the class.
        n: its test images.
        moments: of the embeddings about the head's center (in units of its standard deviations where the run whitens).
        expected: (q,) quantiles of the chi-square distribution with D degrees of freedom.
        observed: (q,) those of the squared Mahalanobis distance to the class's own center.
    """

    name: str
    n: int
    moments: tuple[MomentRow, ...]
    expected: Float[Tensor, " q"]
    observed: Float[Tensor, " q"]


@dataclass(frozen=True)
class Picture:
    """An image of a contact sheet.

    Attributes:
        image: (C, H, W).
        truth: true class in words; None where it is not known.
        predicted: predicted class.
        confidence: its posterior.
        score: outlier score (Mahalanobis distance; energy for the linear head).
    """

    image: UInt8[Tensor, "C H W"]
    truth: str | None
    predicted: str
    confidence: float
    score: float


@dataclass(frozen=True)
class Densities:
    """Outlier scores of images that belong and images that do not.

    Attributes:
        log_density: "as trained" and "refitted" (where there is one) -> origin -> (m,) log p(x).
        separation: the same two names -> origin -> score -> "auroc" and "fpr95"; origins without the test images.
    """

    log_density: dict[str, dict[str, Float[Tensor, " _"]]]
    separation: dict[str, dict[str, dict[str, dict[str, float]]]]


@dataclass(frozen=True)
class Findings:
    """Everything the page says about one run.

    Attributes:
        name: short, unique on the page.
        directory: of the run.
        problems: what is damaged or missing in the directory, one sentence each, with what to do.
        config: its settings.
        result: its result.json; None if it has not finished.
        metrics: the lines of metrics.jsonl that can be read.
        class_names: of the classes; empty if not known.
        evaluation: on the test images.
        points: the map.
        clusters: class by class.
        densities: histograms of log p(x).
        mistakes: wrong predictions on test images, the most confident first.
        outlying: images of the unlabelled pool, the most outlying first.
        notes: what a reader should know about how all this was made (a part of the images was taken, ...), one sentence each.
    """

    name: str
    directory: Path
    problems: tuple[str, ...]
    config: TrainConfig | Missing
    result: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    class_names: tuple[str, ...]
    evaluation: Evaluation | Missing
    points: Points | Missing
    clusters: tuple[ClusterFindings, ...] | Missing
    densities: Densities | Missing
    mistakes: tuple[Picture, ...] | Missing
    outlying: tuple[Picture, ...] | Missing
    notes: tuple[str, ...] = ()
