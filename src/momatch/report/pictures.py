"""The sections that are drawn: training curves, calibration, the map of embeddings."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from momatch.data.dataset import UNLABELED
from momatch.evaluate import Evaluation, Outputs
from momatch.heads import GaussianMixtureHead
from momatch.report.classes import MOST_CLASSES
from momatch.report.svg import Series, line_chart, reliability_chart, scatter_chart
from momatch.report.words import is_number, missing, percent

#: Chart title -> its curves, each a key of metrics.jsonl and a name; and whether they are shares of 1.
CURVES: dict[str, tuple[dict[str, str], bool]] = {
    "Loss": (
        {
            "supervised_loss": "labelled",
            "unlabeled_loss": "pseudo-labels",
            "constraint_loss": "constraint",
            "fairness_loss": "fairness",
        },
        False,
    ),
    "Pseudo-labels": ({"utilisation": "utilisation", "pseudo_label_accuracy": "accuracy"}, True),
    "Test accuracy": ({"test_accuracy": "averaged model"}, True),
}
#: Points in a curve and in the map; more would not be seen, only loaded.
MOST_POINTS = 400
MOST_SAMPLES = 3000


def curves_section(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Training curves side by side."""
    charts = []
    for title, (keys, share) in CURVES.items():
        series = [Series(name, _points(metrics, key)) for key, name in keys.items()]
        # A part of the loss that is always 0 is switched off; a share of 0 tells something.
        drawn = [each for each in series if each.points and (share or any(y for _, y in each.points))]
        chart = line_chart(title, drawn, share=share) if drawn else missing("Nothing was recorded.")
        charts.append(f"<figure><figcaption>{title}</figcaption>{chart}</figure>")
    return f'<div class="charts">{"".join(charts)}</div>'


def _points(metrics: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    points = [
        (float(line["step"]), float(line[key]))
        for line in metrics
        if is_number(line.get("step")) and is_number(line.get(key))
    ]
    stride = -(-len(points) // MOST_POINTS) or 1
    return points[::-1][::stride][::-1]  # counted from the end: the last value is always shown


def calibration_section(evaluation: Evaluation | None) -> str:
    """Accuracy by confidence."""
    if evaluation is None:
        return missing(
            "There is no evaluation on labelled test images, so confidence cannot be compared with accuracy."
        )
    bins = evaluation.calibration
    return (
        "<p>Of the predictions made with a given confidence, how many are right? On the diagonal the two agree; a bar below it "
        f"means too sure. The wider a bar, the more images. The gap is {100 * evaluation.ece:.1f} points on average (ECE).</p>"
        + reliability_chart(bins.count.tolist(), bins.accuracy.tolist())
    )


def embeddings_section(
    head: nn.Module | None, outputs: Outputs | None, labels: Int64[Tensor, " n"] | None, names: tuple[str, ...]
) -> str:
    """Test embeddings in two dimensions."""
    if outputs is None:
        return missing("There were no test images, so there is no map of embeddings.")
    finite = outputs.z.isfinite().all(1).nonzero().flatten()
    if len(finite) == 0:
        return missing("No embedding is finite, so there is no map of them.")
    labelled = labels is not None and bool((labels != UNLABELED).any())
    classes = labels.cpu() if labels is not None and labelled else outputs.log_joint.argmax(1)
    centers = head.centers.detach().cpu() if isinstance(head, GaussianMixtureHead) else outputs.z[:0]
    z, centers, explained = project(outputs.z[finite], centers)
    chosen = torch.linspace(0, len(z) - 1, min(len(z), MOST_SAMPLES)).long()
    groups = {k: z[chosen][classes[finite][chosen] == k].tolist() for k in (UNLABELED, *range(len(names)))}
    colour = "true class" if labelled else "predicted class"
    shown = f"{len(chosen):,} of {len(outputs):,}" if len(chosen) < len(outputs) else f"{len(outputs):,}"
    marks = ", with the head's centers as crosses" if len(centers) else "; this head has no centers"
    hover = " Rest the mouse on a dot for its class." if len(names) > MOST_CLASSES else ""
    return (
        f"<p>{shown} test images, coloured by {colour}{marks}. The two directions of largest variance (PCA) hold "
        f"{percent(explained)} of it.{hover}</p>" + scatter_chart(groups, centers.tolist(), names)
    )


def project(
    z: Float[Tensor, "n D"], centers: Float[Tensor, "K D"]
) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "K 2"], float]:
    """Samples and centers along the two principal directions of the samples, and the share of variance these hold."""
    z, centers = z.double(), centers.double()
    mean = z.mean(0)
    values, vectors = torch.linalg.eigh((z - mean).T @ (z - mean))  # ascending
    axes = vectors[:, -2:].flip(1)  # (D, 2), or (D, 1) for D = 1
    # The sign of a principal direction is arbitrary: fixed here, so that the same run gives the same picture.
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    if axes.shape[1] == 1:
        axes = torch.cat([axes, torch.zeros_like(axes)], 1)
    total = float(values.clamp_min(0).sum())
    explained = float(values[-2:].clamp_min(0).sum()) / total if total else 1.0
    return (z - mean) @ axes, (centers - mean) @ axes, explained
