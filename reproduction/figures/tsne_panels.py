"""Draws docs/figures/tsne_panels.png: the latent spaces of trained runs by t-SNE, with the learned centers as X.

    python -m reproduction.figures.tsne_panels RUN RUN RUN RUN [--out FILE]
    python -m reproduction.figures.tsne_panels    # the four runs of RUNS; those not in runs/ are trained, a minute each

t-SNE keeps neighbourhoods and gives distances up, so the word over each panel is measured in the embedding space itself
(`Alignment`), on the run's test images.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patheffects import withStroke
from sklearn.manifold import TSNE

from momatch import Run, TrainConfig, fit
from momatch.heads import GaussianMixtureHead
from momatch.inference.evaluate import test_outputs
from reproduction.figures.drawing import CLASS_COLORS, FOLDER, GREY, INK, save

#: The runs of the committed figure, all on scikit-learn's digits.
RUNS = (
    TrainConfig(head="kmeans", moment_order=0, seed=2),
    TrainConfig(head="aagmm", moment_order=0, head_lr_factor=10.0, seed=0),
    TrainConfig(head="aagmm", moment_order=1, seed=0),
    TrainConfig(head="aagmm", moment_order=2, seed=0),
)
HEADS = {"aagmm": "AAGMM", "kmeans": "KMeans"}
LETTERS = "abcdefgh"
MOST_POINTS = 1500
#: With more classes than this, names would cover the points.
MOST_NAMES = 20


@dataclass(frozen=True)
class Alignment:
    """How well the centers describe the clusters. The unit is a cluster's own spread, its members' rms distance to their mean.

    Attributes:
        typical: median over classes of a center's distance to the mean of its class.
        worst: the largest of these distances.
        gap: smallest distance between two centers, in the mean spread of their two clusters.
    """

    typical: float
    worst: float
    gap: float

    @property
    def word(self) -> str:
        """The word of the paper's figure, by one bound for all: one spread."""
        if self.gap < 1:
            return "degenerate"
        if self.typical > 1:
            return "misaligned"
        return "aligned" if self.worst > 1 else "well aligned"


def measure_alignment(z, labels, centers):
    """Alignment of centers (K, D) with the embeddings (n, D) of labelled images; classes with under 2 images are left out.

    Raises:
        ValueError: if fewer than two classes are left, or one of them has no spread.
    """
    classes = [k for k in range(len(centers)) if int((labels == k).sum()) > 1]
    if len(classes) < 2:
        raise ValueError(f"got {len(classes)} classes with two or more test images, expected at least two")
    z, centers = z.double(), centers.double()[classes]
    means = torch.stack([z[labels == k].mean(0) for k in classes])
    squares = [(z[labels == k] - mean).square().sum(1).mean() for k, mean in zip(classes, means, strict=True)]
    spread = torch.stack(squares).sqrt()  # (K,)
    if not bool((spread > 0).all()):
        raise ValueError("got a class whose test images all have one embedding, expected a spread to measure by")
    offset = (centers - means).norm(dim=1) / spread
    first, second = torch.triu_indices(len(classes), len(classes), offset=1)
    gap = (centers[first] - centers[second]).norm(dim=1) / ((spread[first] + spread[second]) / 2)
    return Alignment(float(np.median(offset)), float(offset.max()), float(gap.min()))


def project(z, seed=0):
    """Points (n, D) in the plane, by t-SNE; what has two dimensions or fewer is drawn as it is."""
    z = z.double().numpy()
    if z.shape[1] <= 2:
        return np.pad(z, ((0, 0), (0, 2 - z.shape[1])))
    perplexity = min(30.0, (len(z) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(z)


def subset(labels, most):
    """At most `most` places, each class in its share, by a fixed seed."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return order[torch.argsort(labels[order], stable=True)][:: max(1, -(-len(labels) // most))]


def draw(axes, points, labels, centers, names):
    """Points in their class's colour, each center an X, tied by a line to the middle of its class."""
    halo = [withStroke(linewidth=2.6, foreground="white")]
    for k, center in enumerate(centers):
        color, own = CLASS_COLORS[k % len(CLASS_COLORS)], points[labels == k]
        axes.scatter(*own.T, s=7, color=color, alpha=0.55, linewidths=0, zorder=1)
        axes.scatter(*center, s=62, marker="X", color=color, edgecolors="black", linewidths=0.9, zorder=3)
        if len(own) == 0:
            continue
        middle = np.median(own, axis=0)
        axes.plot(*zip(center, middle, strict=True), color=color, linewidth=1, alpha=0.9, zorder=2)
        if len(centers) <= MOST_NAMES:
            # Above the bulk of the class: those taken for another class lie elsewhere.
            top = (middle[0], np.quantile(own[:, 1], 0.75))
            name = names[k] if len(names[k]) <= 12 else f"{names[k][:11]}\N{HORIZONTAL ELLIPSIS}"
            style = {"color": color, "fontsize": 11, "fontweight": "bold", "path_effects": halo, "ha": "center"}
            axes.annotate(name, top, xytext=(0, 9), textcoords="offset points", parse_math=False, zorder=2.5, **style)
    every = np.concatenate([points, centers])
    low, high = every.min(0), every.max(0)
    half = 0.55 * float((high - low).max()) or 1.0
    limits = np.stack([(low + high) / 2 - half, (low + high) / 2 + half], axis=1)
    axes.set(xticks=[], yticks=[], aspect="equal", xlim=limits[0], ylim=limits[1])
    axes.spines[:].set_color(GREY)


def panel(axes, run, letter):
    """One run: its map, its name and what was measured.

    Raises:
        ValueError: if the run is not finished, has no centers or has no labelled test images.
    """
    head, config = run.classifier.head, run.config.resolved()
    if not isinstance(head, GaussianMixtureHead):
        raise ValueError(f"{run.directory}: got head {config.head!r}, expected aagmm or kmeans: it has no centers")
    found = test_outputs(run)
    if found is None:
        raise ValueError(f"{run.directory}: {config.dataset} has no labelled test images, expected some to show")
    outputs, labels = found
    outputs, labels = outputs.select((labels >= 0).nonzero()[:, 0]), labels[labels >= 0]
    centers = head.centers.detach()
    found = measure_alignment(outputs.z, labels, centers)
    shown = subset(labels, MOST_POINTS)
    plane = project(torch.cat([centers, outputs.z[shown]]))
    draw(axes, plane[len(centers) :], labels[shown].numpy(), plane[: len(centers)], run.class_names)
    accuracy = float((outputs.log_joint.argmax(1) == labels).double().mean())
    facts = (
        f"{HEADS[config.head]} {outputs.z.shape[1]}-D, {words_of(config)}; accuracy {100 * accuracy:.1f} %\n"
        f"center to cluster {found.typical:.2f}, at most {found.worst:.2f}; two centers {found.gap:.2f} apart"
    )
    axes.set_title(f"({letter}) {found.word}", fontsize=13, fontweight="bold", pad=33)
    axes.text(0.5, 1.02, facts, fontsize=9.3, color=INK, ha="center", linespacing=1.4, transform=axes.transAxes)
    print(f"({letter}) {found.word}: {facts.replace(chr(10), '; ')}; {run.directory.name}")


def words_of(config):
    """Constraint and whatever else bears on the centers and differs from the defaults."""
    orders = ("no constraint", "1st order", "2nd order", "3rd order", "4th order")
    words = orders[config.moment_order] if config.constraint == "moments" else config.constraint.upper()
    if config.moment_order and config.moment_weight != 1:
        words += f", weight {config.moment_weight:g}"
    return (
        words if config.head_lr_factor == 1 else f"{words}, head lr \N{MULTIPLICATION SIGN} {config.head_lr_factor:g}"
    )


def own_runs():
    """The runs of the committed figure: read from runs/, or trained or resumed there."""
    for config in RUNS:
        directory = Path(config.resolved().run_dir)
        yield fit(replace(config, resume=(directory / "config.json").exists()))


def compose(runs):
    """A panel a run, two in a row."""
    columns, rows = min(2, len(runs)), -(-len(runs) // 2)
    height = 0.6 + 4.95 * rows
    figure, panels = plt.subplots(rows, columns, figsize=(4.5 * columns, height), squeeze=False)
    top, bottom = 1 - 1.25 / height, 0.08 / height
    figure.subplots_adjust(left=0.01, right=0.99, bottom=bottom, top=top, wspace=0.04, hspace=0.165)
    figure.suptitle(
        "Test embeddings by t-SNE; each learned center (X) is tied to the middle of its class.\n"
        "Distances are those before t-SNE, in units of a cluster's own spread.",
        fontsize=10,
        y=1 - 0.08 / height,
    )
    for axes in panels.flat[len(runs) :]:
        axes.remove()
    for axes, letter, run in zip(panels.flat, LETTERS, runs, strict=False):
        panel(axes, run, letter)
    return figure


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"directories of finished runs, at most {len(LETTERS)}")
    parser.add_argument("--out", type=Path, default=FOLDER / "tsne_panels.png", help="the PNG to write")
    options = parser.parse_args(arguments)
    if len(options.runs) > len(LETTERS):
        parser.error(f"got {len(options.runs)} runs, expected at most {len(LETTERS)}")
    torch.set_num_threads(1)
    try:
        runs = [Run.load(directory) for directory in options.runs] or list(own_runs())
        save(compose(runs), options.out)
    except (ValueError, OSError) as error:
        sys.exit(f"tsne_panels: error: {error}")


if __name__ == "__main__":
    main()
