"""Draws docs/figures/outlier_schematic.png: what softmax, KMeans and AAGMM say about points unlike all others.

Two classes in the plane, four labels each and an unlabelled pool. Softmax learns from the labels alone; the two mixtures learn
from labels by cross-entropy and from the pool by the moment constraint (first order for KMeans, whose variances are fixed;
second order with the head's own variances for AAGMM). Above: the decision and its confidence. Below: where the head expects
data at all, up to the level that holds 99 % of the pool. A few seconds:

    python -m reproduction.figures.outlier_schematic
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D

from momatch import AAGMM, KMeans, Linear, MomentConstraint, OutlierDetector, log_posterior
from reproduction.figures.drawing import BLUE, FOLDER, GREY, INK, RED, save

COLORS = (BLUE, RED)
CENTERS, DEVIATIONS = [[-2.2, 0.3], [2.2, -0.3]], [[0.5, 1.7], [1.7, 0.5]]
LABELS, POOL, STEPS = 4, 400, 250  # labels and unlabelled points a class
#: Far from the boundary on either side, and one within the reach of a round cluster.
OUTLIERS = torch.tensor([[-6.6, -2.6], [6.6, 3.6], [2.2, 2.3]])
#: Share of the pool that lies inside each level of the lower row; beyond the last, a point is flagged.
SHARES = (50, 90, 99)
HALF_WIDTH, HALF_HEIGHT = 8.0, 5.6


def make_data(seed=0):
    """Labelled points (n, 2), their classes (n,), and the pool (m, 2)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(each):
        y = torch.arange(2).repeat_interleave(each)
        noise = torch.randn(2 * each, 2, generator=generator)
        return torch.tensor(CENTERS)[y] + noise * torch.tensor(DEVIATIONS)[y], y

    labeled, y = draw(LABELS)
    return labeled, y, draw(POOL)[0]


def train(head, constraint, data, steps=STEPS):
    """Fit the head on the points themselves, without a network; the constraint takes the pool by the head's own predictions."""
    labeled, y, pool = data
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(steps):
        loss = F.cross_entropy(head(labeled), y)
        if constraint is not None:
            assigned = head(pool).argmax(1)
            loss = loss + constraint(pool, head.centers, assigned, head.variances)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.requires_grad_(False)


def train_heads(data, steps=STEPS):
    """Name -> trained head."""
    torch.manual_seed(0)
    return {
        "Softmax, labels alone": train(Linear(2, 2), None, data, steps),
        "KMeans, labels and pool": train(KMeans(2, 2), MomentConstraint(1), data, steps),
        "AAGMM, labels and pool": train(AAGMM(2, 2), MomentConstraint(2, whiten=True), data, steps),
    }


def detector(head, pool):
    """Flags points with a lower p(x) than 99 % of the pool; for softmax, which has no p(x), by its energy."""
    return OutlierDetector(head, score="density", percentile=float(SHARES[-1])).fit(pool)


def draw_points(axes, data, flagged):
    """Pool and labels; an outlier is an X, ringed where it is flagged."""
    labeled, y, pool = data
    axes.scatter(*pool.T, s=3, color="#555555", alpha=0.45, linewidths=0)
    for k, color in enumerate(COLORS):
        axes.scatter(*labeled[y == k].T, s=26, color=color, edgecolors="white", linewidths=0.9, zorder=3)
    axes.scatter(*OUTLIERS.T, s=62, marker="X", color=INK, edgecolors="white", linewidths=0.8, zorder=4)
    axes.scatter(*OUTLIERS[flagged].T, s=230, marker="o", facecolors="none", edgecolors=INK, linewidths=1.6, zorder=4)
    limits = {"xlim": (-HALF_WIDTH, HALF_WIDTH), "ylim": (-HALF_HEIGHT, HALF_HEIGHT)}
    axes.set(xticks=[], yticks=[], aspect="equal", **limits)
    axes.spines[:].set_color(GREY)


def draw_column(upper, lower, head, data):
    """Decision and confidence above, what the head expects below; returns how sure it is of each outlier, and what it flags."""
    sides = [torch.linspace(-half, half, 321) for half in (HALF_WIDTH, HALF_HEIGHT)]
    grid = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1)  # (h, w, 2)
    posterior = log_posterior(head(grid)).exp()
    blend = LinearSegmentedColormap.from_list("classes", [BLUE, "white", RED])
    image = blend(0.5 + 0.62 * (posterior[..., 1].numpy() - 0.5))
    upper.imshow(image, extent=(-HALF_WIDTH, HALF_WIDTH, -HALF_HEIGHT, HALF_HEIGHT), origin="lower", aspect="auto")
    upper.contour(*sides, posterior[..., 1], levels=[0.5], colors="white", linewidths=1.6)
    judge = detector(head, data[2])
    scores = judge.score(grid.flatten(0, 1)).view(grid.shape[:2])
    levels = np.percentile(judge.threshold_scores, SHARES)
    lower.contourf(*sides, scores, levels=[-np.inf, *levels], colors=["#b5bab3", "#cfd2cc", "#e6e7e3"])
    lower.contour(*sides, scores, levels=levels, colors=["white", "white", "#777777"], linewidths=[0.8, 0.8, 1.2])
    flagged = judge.is_outlier(OUTLIERS)
    confidence = log_posterior(head(OUTLIERS)).exp().amax(1)
    draw_points(upper, data, torch.zeros(0, dtype=torch.int64))
    draw_points(lower, data, flagged)
    for place, sure in zip(OUTLIERS.tolist(), confidence.tolist(), strict=True):
        upper.annotate(
            f"{sure:.2f}", place, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=10, color=INK
        )
    return confidence, flagged


def compose(heads, data):
    figure, panels = plt.subplots(2, 3, figsize=(9, 4.9))
    figure.subplots_adjust(left=0.035, right=0.995, bottom=0.085, top=0.93, wspace=0.04, hspace=0.05)
    for letter, (upper, lower), (name, head) in zip("abc", panels.T, heads.items(), strict=True):
        confidence, flagged = draw_column(upper, lower, head, data)
        upper.set_title(f"({letter}) {name}", fontsize=11.5, fontweight="bold")
        print(f"{name:26s} confidence {[round(p, 3) for p in confidence.tolist()]}  flagged {flagged.tolist()}")
    for axes, text in zip(panels[:, 0], ("decision, confidence of X", "where data are expected"), strict=True):
        axes.set_ylabel(text, fontsize=10.5)
    dot = {"linestyle": "none", "color": INK}
    keys = [
        Line2D([], [], marker="X", markersize=8, label="outlier, never seen in training", **dot),
        Line2D([], [], marker="o", markersize=11, markerfacecolor="none", markeredgewidth=1.5, label="flagged", **dot),
        Line2D([], [], marker="o", markersize=6, linestyle="none", color=BLUE, label="label of A"),
        Line2D([], [], marker="o", markersize=6, linestyle="none", color=RED, label="label of B"),
        Line2D([], [], marker=".", markersize=4, linestyle="none", color="#555555", label="unlabelled pool"),
    ]
    figure.legend(handles=keys, loc="lower center", ncols=5, fontsize=9.5, frameon=False, handletextpad=0.3)
    return figure


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER / "outlier_schematic.png", help="the PNG to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data = make_data()
    save(compose(train_heads(data), data), options.out)


if __name__ == "__main__":
    main()
