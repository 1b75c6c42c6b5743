"""What the report shows about a run: computed by `momatch.report.collect`, rendered by `momatch.report.page`.

Every part is either there or `Missing` with a reason, so that an unfinished, empty or damaged run still gets a page.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from momatch.config import TrainConfig
from momatch.evaluation.evaluate import Evaluation
from momatch.training.pool_outliers import ListedOutlier


@dataclass(frozen=True)
class Missing:
    """Why a part is missing.

    Attributes:
        reason: one sentence for the reader, with what can be done about it.
    """

    reason: str


@dataclass(frozen=True)
class MapPoints:
    """The images on the map of the latent space.

    Attributes:
        maps: "t-SNE" and "PCA" -> coordinates, (n, 2).
        centers: the same names -> the head's centers, (K, 2); (0, 2) for a head without centers.
        origin_names: "test images" first, then "held-out classes" and the names of other datasets.
        origin: (n,) index into `origin_names`; every origin but 0 is made of outliers.
        labels: (n,) true class, -1 for outliers and unlabelled images.
        predicted: (n,) class of the largest posterior.
        confidence: (n,) that posterior.
        log_density: (n,) log p(x) under the judge; without one under the head (the refitted one if there is one).
        distance: (n,) Mahalanobis distance to the nearest class of the judge, or center of that head; NaN without either.
        flagged: (n,) whether the outlier score exceeds that of 95 % of the test images.
        images: (n, C, H, W), downscaled so that no side exceeds 64 pixels.
        explained: share of the variance in the plane of the PCA map.
        files: name of each image's file; empty strings for those that did not come from files.
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
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class MomentRow:
    """Moments of one cluster over the cells of one integer partition (docs/method.md).

    Attributes:
        cells: the partition, such as "(2,1)".
        order: 1 to 4.
        target: the moment of a standard normal (0, 1 or 3).
        mean: mean of the sample moments over the cells.
        error: root mean square of sample moment minus target over the cells.
        noise: expected error of the same number of samples from a standard normal.
    """

    cells: str
    order: int
    target: float
    mean: float
    error: float
    noise: float


@dataclass(frozen=True)
class ClusterMoments:
    """How Gaussian the test images of one class are around its center.

    Attributes:
        name: name of the class.
        n: its number of test images.
        moments: of the embeddings around the head's center (in its standard deviations if the run whitens).
        expected: (q,) quantiles of the chi-square distribution with D degrees of freedom.
        observed: (q,) quantiles of the squared Mahalanobis distance to the center of the class.
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
        truth: name of the true class; None if unknown.
        predicted: name of the predicted class.
        confidence: its posterior.
        score: outlier score, of the judge (without one Mahalanobis distance; energy for the linear head).
        file: name of the image's file; empty if it did not come from one.
    """

    image: UInt8[Tensor, "C H W"]
    truth: str | None
    predicted: str
    confidence: float
    score: float
    file: str = ""


@dataclass(frozen=True)
class OutlierList:
    """The pool's likely outliers, as the run listed them.

    Attributes:
        path: of the list.
        listed: most outlying first.
        images: of the first ones, (C, H, W) each; empty if the dataset is not there.
    """

    path: Path
    listed: tuple[ListedOutlier, ...]
    images: tuple[UInt8[Tensor, "C H W"], ...] = ()


@dataclass(frozen=True)
class Densities:
    """Densities of test images and outliers, and how well outlier scores separate them.

    Attributes:
        log_density: "judge" (if there is one), "as trained" and "refitted" (if there is a refitted head) -> origin -> (m,)
            log p(x).
        separation: the same states -> origin of outliers -> score -> "auroc" and "fpr95".
    """

    log_density: dict[str, dict[str, Float[Tensor, " _"]]]
    separation: dict[str, dict[str, dict[str, dict[str, float]]]]


@dataclass(frozen=True)
class RunReport:
    """Everything the page shows about one run.

    Attributes:
        name: short, unique on the page.
        directory: the run directory.
        problems: what is damaged or missing in the directory, one sentence each, with what to do.
        config: the settings.
        result: result.json; None if the run has not finished.
        metrics: the readable lines of metrics.jsonl.
        class_names: empty if unknown.
        evaluation: on the test images.
        points: the map of the latent space.
        clusters: one entry per class with test images.
        densities: of test images and outliers.
        mistakes: wrong predictions on test images, most confident first.
        outlying: images of the unlabelled pool, highest outlier score first.
        to_label: images of the unlabelled pool whose labels would say most, first one first.
        has_judge: whether a judge scores outliers; if not, the head does.
        outlier_list: the list of likely outliers that the run wrote; None if it wrote none.
        notes: how the report was made (only a sample of the images was used, ...), one sentence each.
    """

    name: str
    directory: Path
    problems: tuple[str, ...]
    config: TrainConfig | Missing
    result: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    class_names: tuple[str, ...]
    evaluation: Evaluation | Missing
    points: MapPoints | Missing
    clusters: tuple[ClusterMoments, ...] | Missing
    densities: Densities | Missing
    mistakes: tuple[Picture, ...] | Missing
    outlying: tuple[Picture, ...] | Missing
    to_label: tuple[Picture, ...] | Missing = Missing("This was not computed.")
    has_judge: bool = False
    outlier_list: OutlierList | None = None
    notes: tuple[str, ...] = ()
