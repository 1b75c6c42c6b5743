"""Draws docs/figures/softmax_identity.png: a softmax is what two Gaussians of equal variance leave of themselves.

Left: two classes of equal variance in one dimension, their joint densities, and the posterior, which is exactly a sigmoid.
Right: unequal variances, whose posterior no sigmoid can follow. All curves come from momatch's heads; before anything is
drawn, the identity is checked in float64, also for many classes and dimensions. A second or two:

    python -m reproduction.figures.softmax_identity
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from momatch import AAGMM, KMeans, Linear, log_density, log_posterior
from reproduction.figures.drawing import BLUE, FOLDER, GREY, INK, RED, save

#: Largest difference of two log posteriors, in float64, at which they count as the same.
TOLERANCE = 1e-9
CENTERS, EQUAL, UNEQUAL = [[-1.0], [2.0]], [[1.0], [1.0]], [[0.36], [2.25]]


def mixture(centers, variances):
    """An AAGMM head in float64; variances (K, D), or (D,) for all classes alike."""
    centers = torch.as_tensor(centers, dtype=torch.float64)
    head = AAGMM(centers.shape[1], len(centers), dtype=torch.float64).requires_grad_(False)
    head.centers.copy_(centers)
    head.log_variances.copy_(torch.as_tensor(variances, dtype=torch.float64).expand_as(centers).log())
    return head


def sigmoid_parameters(head):
    """Slope and intercept of the sigmoid that p(y=A|x) is, for two classes with one variance in one dimension."""
    (a,), (b,) = head.centers.tolist()
    variance = float(head.variances[0, 0])
    return (a - b) / variance, (b**2 - a**2) / (2 * variance)


def as_linear(head):
    """The linear head with the same posterior as a mixture whose classes share their variances."""
    linear = Linear(head.embedding_dim, head.num_classes, dtype=torch.float64).requires_grad_(False)
    linear.weight.copy_(head.centers / head.variances)
    linear.bias.copy_(head.log_prior - 0.5 * (head.centers.square() / head.variances).sum(1))
    return linear


def largest_difference(head, other, z):
    return float((log_posterior(head(z)) - log_posterior(other(z))).abs().max())


def check_identity():
    """Largest difference between the log posterior of a mixture and that of its linear head, over all trials.

    Raises:
        ArithmeticError: if they are not the same function.
    """
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for K, D in ((2, 1), (2, 8), (10, 8), (100, 64)):
        centers = torch.randn(K, D, generator=generator, dtype=torch.float64)
        shared = 0.5 + torch.rand(D, generator=generator, dtype=torch.float64)
        z = 3 * torch.randn(1000, D, generator=generator, dtype=torch.float64)
        unit = KMeans(D, K, dtype=torch.float64).requires_grad_(False)
        unit.centers.copy_(centers)
        for head in (unit, mixture(centers, shared)):
            difference = largest_difference(head, as_linear(head), z)
            if not difference < TOLERANCE:
                raise ArithmeticError(f"{type(head).__name__}, K={K}, D={D}: log posteriors differ by {difference:.1e}")
            worst = max(worst, difference)
    return worst


def check_sigmoid(head, x):
    """Largest difference between the posterior of class A and its sigmoid.

    Raises:
        ArithmeticError: if they are not the same function.
    """
    slope, intercept = sigmoid_parameters(head)
    difference = float((log_posterior(head(x))[:, 0].exp() - torch.sigmoid(slope * x[:, 0] + intercept)).abs().max())
    if not difference < TOLERANCE:
        raise ArithmeticError(f"posterior and sigmoid differ by {difference:.1e}")
    return difference


def draw(joint_axes, posterior_axes, head, x):
    """Joint densities above, the posterior of class A below."""
    log_joint = head(x)
    place = x[:, 0].numpy()
    # Each name stands on the outer side of its curve, at the height where the curve is one standard deviation out.
    for k, (name, color, side) in enumerate((("A", BLUE, -1), ("B", RED, 1))):
        joint = log_joint[:, k].exp()
        joint_axes.fill_between(place, joint, color=color, alpha=0.15, linewidth=0)
        joint_axes.plot(place, joint, color=color, linewidth=2)
        flank = float(head.centers[k, 0] + side * head.variances[k, 0].sqrt())
        joint_axes.annotate(
            f"$p(y\\!=\\!{name},\\,x)$",
            (flank, 0.607 * float(joint.max())),
            xytext=(7 * side, 6),
            textcoords="offset points",
            ha="right" if side < 0 else "left",
            color=color,
            fontsize=11,
        )
    density = log_density(log_joint).exp()
    joint_axes.plot(place, density, color=GREY, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    joint_axes.set(ylim=(0, 1.12 * float(density.max())), yticks=[], xlim=(place[0], place[-1]))
    posterior_axes.plot(place, log_posterior(log_joint)[:, 0].exp(), color=INK, linewidth=2.2)
    posterior_axes.axhline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    posterior_axes.set(ylim=(-0.04, 1.08), yticks=[0, 0.5, 1], xlabel="$x$")
    for axes in (joint_axes, posterior_axes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GREY)
        axes.tick_params(colors="#555555", labelsize=9)


def compose(equal, unequal, x):
    """Two columns, one a mixture, with the words that explain them."""
    figure, panels = plt.subplots(2, 2, figsize=(9, 5.2), sharex="col", height_ratios=(1, 0.85))
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.09, top=0.925, wspace=0.16, hspace=0.1)
    slope, intercept = sigmoid_parameters(equal)
    columns = {
        "Equal variances: the posterior is a softmax": (
            equal,
            f"line: $p(y\\!=\\!A \\mid x)$\ncircles: sigmoid\nof ${slope:g}\\,x + {intercept:g}$",
        ),
        "Unequal variances: it is not": (
            unequal,
            "A is likely only around its\ncenter: far out on either\nside the wider B wins",
        ),
    }
    for (upper, lower), (title, (head, words)) in zip(panels.T, columns.items(), strict=True):
        draw(upper, lower, head, x)
        upper.set_title(title, fontsize=12, fontweight="bold")
        style = {"fontsize": 10.5, "linespacing": 1.5, "ha": "right", "va": "top", "color": INK}
        lower.text(0.99, 0.93, words, transform=lower.transAxes, **style)
    dots = x[::40, 0]
    panels[1, 0].plot(dots, torch.sigmoid(slope * dots + intercept), "o", mfc="white", mec=INK, ms=5.5, mew=1.2)
    panels[0, 0].annotate(
        "$p(x)$", (0.5, 0.13), xytext=(0, 20), textcoords="offset points", ha="center", color="#666666", fontsize=11
    )
    panels[0, 0].set_ylabel("joint density", fontsize=10)
    panels[1, 0].set_ylabel("posterior of A", fontsize=10)
    return figure


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER / "softmax_identity.png", help="the PNG to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"log posterior of mixture and linear head: largest difference {check_identity():.1e}")
    x = torch.linspace(-5, 6, 881, dtype=torch.float64).unsqueeze(1)
    equal, unequal = mixture(CENTERS, EQUAL), mixture(CENTERS, UNEQUAL)
    print(f"posterior and sigmoid: largest difference {check_sigmoid(equal, x):.1e}")
    save(compose(equal, unequal, x), options.out)


if __name__ == "__main__":
    main()
