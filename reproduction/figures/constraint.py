"""Draws docs/figures/constraint.png, and prints the table of docs/method.md: what the constraint does to a latent space.

Scikit-learn's digits, 0 to 7 known and 8 and 9 never trained on; a small network down to two dimensions with an AAGMM head,
without a constraint and with moments up to the first, second and fourth order. Under a minute on one idle core:

    python -m reproduction.figures.constraint
"""

import argparse
from copy import deepcopy
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn

from momatch import AAGMM, MomentConstraint, log_density, log_posterior
from reproduction.figures.drawing import FOLDER, save

#: Name -> order, whiten. The first four are drawn; the table has them all.
SETTINGS = {
    "No constraint": (0, False),
    "First order": (1, False),
    "Second order": (2, False),
    "Second order, whitened": (2, True),
    "Fourth order": (4, False),
    "Fourth order, whitened": (4, True),
}
DRAWN = 4
SEEDS = range(3)
KNOWN = 8  # digits 0 to 7; 8 and 9 are unknown
STEPS, BATCH, TRAIN = 400, 256, 1200
COLORS = ["#4477aa", "#ee6677", "#228833", "#ccaa22", "#66ccee", "#aa3377", "#ee9955", "#7755bb"]
MASSES = (0.5, 0.9, 0.99, 0.999)


def train(x, y, order, whiten, seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    head = AAGMM(2, KNOWN)
    constraint = MomentConstraint(order, whiten=whiten)
    # Centers start near the origin and have the whole plane to cross: they need longer steps than weights do.
    groups = [{"params": network.parameters(), "lr": 3e-3}, {"params": head.parameters(), "lr": 3e-2}]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        batch = torch.randint(len(x), (BATCH,))
        z = network(x[batch])
        loss = F.cross_entropy(head(z), y[batch]) + constraint(z, head.centers, y[batch], head.variances)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network, head


@torch.no_grad()
def measure(network, head, train_set, test_set):
    (x, y), (x_test, y_test) = train_set, test_set
    z, known = network(x_test), y_test < KNOWN
    log_joint, distance = head(z), head.mahalanobis(z)
    labels = log_joint.argmax(1)
    refitted = deepcopy(head)
    refitted.refit(network(x), y)
    scores = {
        "-log p(x)": -log_density(log_joint),
        "nearest": distance.amin(1),
        "-log p(x), refit": -log_density(refitted(z)),
        "1 - max p(y\\|x)": -log_posterior(log_joint).amax(1),
    }
    return {
        "accuracy": float((labels == y_test)[known].float().mean()),
        "distance": float(distance.gather(1, labels.unsqueeze(1))[known].mean()),
    } | {name: float(roc_auc_score(~known, score)) for name, score in scores.items()}


@torch.no_grad()
def draw(axes, network, head, x_test, y_test):
    z = network(x_test)
    every = torch.cat([z, head.centers, head.sample(2000, generator=torch.Generator().manual_seed(0))]).numpy()
    low, high = np.quantile(every, [0.002, 0.998], axis=0)
    middle, half = (low + high) / 2, 0.57 * (high - low).max()
    sides = [np.linspace(m - half, m + half, 300) for m in middle]
    grid = torch.tensor(np.stack(np.meshgrid(*sides), -1), dtype=torch.float32)
    field = log_density(head(grid)).numpy()
    # The level above which a share of the mixture's own mass lies: a quantile of log p over its own samples.
    own = log_density(head(head.sample(100_000, generator=torch.Generator().manual_seed(1)))).numpy()
    levels = np.quantile(own, [1 - mass for mass in MASSES])[::-1]
    shades = ["#eeeeea", "#dedfda", "#cdcfca", "#b9bcb7"]
    axes.contourf(*sides, field, levels=[*levels, np.inf], colors=shades)
    axes.contour(*sides, field, levels=levels, colors="white", linewidths=0.7, linestyles="solid")
    unknown = z[y_test >= KNOWN]
    axes.scatter(*unknown.T, s=9, marker="o", facecolors="none", edgecolors="black", linewidths=0.5, alpha=0.75)
    for digit, color in enumerate(COLORS):
        axes.scatter(*z[y_test == digit].T, s=20, marker=f"${digit}$", color=color, linewidths=0.2)
    for center, color in zip(head.centers, COLORS, strict=True):
        axes.scatter(*center, s=85, marker="X", color=color, edgecolors="black", linewidths=1.1, zorder=3)
    axes.set(xlim=sides[0][[0, -1]], ylim=sides[1][[0, -1]], xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_color("#999999")


def run(images, labels, order, whiten, axes):
    """Train and measure once a seed; the first seed is drawn."""
    measured = []
    for seed in SEEDS:
        places = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        for_training, for_test = places[:TRAIN], places[TRAIN:]
        for_training = for_training[labels[for_training] < KNOWN]
        train_set, test_set = [(images[some], labels[some]) for some in (for_training, for_test)]
        network, head = train(*train_set, order, whiten, seed)
        measured.append(measure(network, head, train_set, test_set))
        if axes is not None and seed == SEEDS[0]:
            draw(axes, network, head, *test_set)
    names = measured[0]
    values = np.array([list(one.values()) for one in measured])
    return dict(zip(names, zip(values.mean(0), values.std(0, ddof=1), strict=True), strict=True))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER / "constraint.png", help="the PNG to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    figure, panels = plt.subplots(2, 2, figsize=(9, 9.75))
    figure.subplots_adjust(left=0.02, right=0.98, bottom=0.015, top=0.885, wspace=0.05, hspace=0.14)
    results = {}
    for place, (name, (order, whiten)) in enumerate(SETTINGS.items()):
        axes = panels.flat[place] if place < DRAWN else None
        results[name] = result = run(images, labels, order, whiten, axes)
        if axes is not None:
            axes.set_title(name, fontsize=12, fontweight="bold", pad=19)
            numbers = (
                f"accuracy {100 * result['accuracy'][0]:.1f} %   distance {result['distance'][0]:.1f} $\\sigma$   "
                f"AUROC of $-\\log\\,p(x)$ {result['-log p(x)'][0]:.2f}"
            )
            axes.text(0.5, 1.02, numbers, fontsize=10, ha="center", transform=axes.transAxes)
    print("| constraint | " + " | ".join(result) + " |\n" + "|---" * (len(result) + 1) + "|")
    for name, result in results.items():
        print(f"| {name} | " + " | ".join(f"{mean:.2f} ± {std:.2f}" for mean, std in result.values()) + " |")
    figure.suptitle(
        "Test embeddings of the digits 0 to 7 (coloured), of 8 and 9, never trained on (circles), and the centers (X).\n"
        f"Shaded: where the mixture itself has 50, 90, 99 and 99.9 % of its mass. Numbers: mean of {len(SEEDS)} seeds.",
        fontsize=10.5,
        y=0.985,
    )
    save(figure, options.out)


if __name__ == "__main__":
    main()
