"""The images of the pool that look like outliers: found after training, listed in outliers.csv.

Images with P(inlier) below one half count as likely outliers. They are ranked by the judge's score.
"""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from momatch.data.dataset import UNLABELED
from momatch.evaluation.judging import judge_scores
from momatch.evaluation.pool_judging import LIKELY_OUTLIER
from momatch.heads import log_posterior
from momatch.training.data import HELD_OUT
from momatch.training.refit import Fitted, Judged
from momatch.training.setup import Training

#: Rows of the list, at most.
MAX_LISTED = 1000


class ListedOutlier(NamedTuple):
    """A row of outliers.csv.

    Attributes:
        path: file name as in the dataset; empty if the images did not come from files.
        row: position in the training split of the dataset; None if it is not from there.
        label: name of the predicted class.
        confidence: its posterior; NaN if it is not a number.
        outlier_score: that of the judge; may be infinite.
        p_inlier: probability of being an inlier.
        is_outlier: the truth; None if unknown.
    """

    path: str
    row: int | None
    label: str
    confidence: float
    outlier_score: float
    p_inlier: float
    is_outlier: bool | None


@dataclass(frozen=True)
class PoolOutliers:
    """The likely outliers of a pool.

    Attributes:
        listed: most outlying first, at most `MAX_LISTED`.
        found: number of likely outliers, listed or not.
        judged: number of images of the pool that were judged.
        share: estimated share of outliers among them.
        true_share: their true share; None if unknown.
        precision: share of true outliers among the likely ones; None if unknown.
        recall: share of likely outliers among the true ones; None if unknown.
    """

    listed: tuple[ListedOutlier, ...]
    found: int
    judged: int
    share: float
    true_share: float | None = None
    precision: float | None = None
    recall: float | None = None

    def result(self) -> dict[str, Any]:
        """Entries of result.json; those about the truth only if it is known."""
        entries: dict[str, Any] = {
            "estimated_outlier_share": self.share,
            "likely_outliers": self.found,
            "judged_images": self.judged,
        }
        if self.true_share is not None:
            entries |= {
                "true_outlier_share": self.true_share,
                "outlier_precision": self.precision,
                "outlier_recall": self.recall,
            }
        return entries

    def csv(self) -> bytes:
        """The contents of outliers.csv; the column ``is_outlier`` is there if the truth is known."""
        columns = ListedOutlier._fields if self.true_share is not None else ListedOutlier._fields[:-1]
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for one in self.listed:
            writer.writerow([_text(value) for value in one[: len(columns)]])
        # File names that are not valid UTF-8 are written as their original bytes.
        return text.getvalue().encode("utf-8", "surrogateescape")


def find_outliers(training: Training, fitted: Fitted) -> PoolOutliers | None:
    """The likely outliers among the judged images; None without a judge or a pool."""
    judged = fitted.judged
    if judged is None:
        return None
    positions, outputs = judged.pool.positions, judged.pool.of_pool
    if len(positions) == 0:
        return None
    score = judge_scores(judged.judge, outputs)["judge"]
    is_likely = judged.p_inlier < LIKELY_OUTLIER
    order = score.argsort(descending=True, stable=True)
    order = order[is_likely[order]]
    is_outlier, is_known = _truth(training, positions)
    return PoolOutliers(
        listed=_listed(training, judged, score, order[:MAX_LISTED], fitted.temperature),
        found=len(order),
        judged=len(positions),
        # Weak evidence alone is none: the list and the estimate would contradict each other.
        share=float(1.0 - judged.p_inlier.mean()) if len(order) else 0.0,
        true_share=_share(is_outlier, is_known),
        precision=_share(is_outlier, is_known & is_likely),
        recall=_share(is_likely, is_known & is_outlier),
    )


def read_outlier_list(path: Path) -> tuple[ListedOutlier, ...] | None:
    """Read outliers.csv; None if there is none.

    Raises:
        ValueError: if the file is damaged.
        OSError: if it cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        return tuple(_parsed(line) for line in reader)
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: line {reader.line_num} cannot be read; the file is damaged") from error


def _truth(training: Training, positions: Int64[Tensor, " n"]) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
    """Which images of the pool are outliers, and for which this is known: for none unless outliers were added to it."""
    truth = training.data.truth
    is_outlier = truth.is_outlier[positions]
    is_known = is_outlier | (truth.labels[positions] != UNLABELED)
    return is_outlier, is_known & truth.is_outlier.any()


def _share(of: Bool[Tensor, " n"], among: Bool[Tensor, " n"]) -> float | None:
    """The share of `of` among `among`; None if there is none of the latter."""
    return float(of[among].double().mean()) if bool(among.any()) else None


def _listed(
    training: Training, judged: Judged, score: Float[Tensor, " n"], order: Int64[Tensor, " m"], temperature: float
) -> tuple[ListedOutlier, ...]:
    """The rows of the images at `order`."""
    positions, log_joint = judged.pool.positions[order], judged.pool.of_pool.log_joint[order].double()
    rows, files = dataset_rows(training, positions), training.input.dataset.train.files
    truth = zip(*(values.tolist() for values in _truth(training, positions)), strict=True)
    columns = (
        [files[row] if files and row is not None else "" for row in rows],
        rows,
        [training.data.class_names[k] for k in log_joint.argmax(1).tolist()],
        log_posterior(log_joint / temperature).exp().amax(1).tolist(),
        score[order].tolist(),
        judged.p_inlier[order].tolist(),
        [is_outlier if is_known else None for is_outlier, is_known in truth],
    )
    return tuple(ListedOutlier(*values) for values in zip(*columns, strict=True))


def dataset_rows(training: Training, positions: Int64[Tensor, " n"]) -> list[int | None]:
    """Positions in the training split of the dataset, of images at `positions` of the pool; None if not from there."""
    truth, parts, train = training.data.truth, training.parts, training.input.dataset.train.rows
    # A pool selects from the same tensors as the split: the row of a tensor tells the position in the split.
    in_split = train.places()
    examples = {"train": parts.train.rows.index, HELD_OUT: parts.unknown_train.rows.index}
    found: list[int | None] = []
    for origin, row in zip(truth.origin[positions].tolist(), truth.row[positions].tolist(), strict=True):
        index = examples.get(truth.origin_names[origin])
        found.append(None if index is None else int(in_split[index[row]]))
    return found


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _parsed(line: dict[str, str]) -> ListedOutlier:
    return ListedOutlier(
        path=line["path"],
        row=int(line["row"]) if line["row"] else None,
        label=line["label"],
        confidence=float(line["confidence"] or "nan"),
        outlier_score=float(line["outlier_score"]),
        p_inlier=float(line["p_inlier"]),
        is_outlier={"yes": True, "no": False, "": None}[line.get("is_outlier", "")],
    )
