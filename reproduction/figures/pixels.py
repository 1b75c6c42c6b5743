"""Draws docs/figures/pixels.png: how accuracy grows over the steps on CIFAR-10 from pixels, for 40, 250 and 4,000 labels.

From the record of benchmarks/pixels.py. A second:

    python -m reproduction.figures.pixels
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from reproduction.figures.drawing import BLUE, FOLDER, GREY, INK, RED, save
from reproduction.learning_curves import read_curves

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "pixels.json"
STYLES = ((INK, "-", "o"), (BLUE, "--", "s"), (RED, ":", "^"))


def draw(curves):
    """One panel for each number of labels, one line for each run."""
    labels = list(dict.fromkeys(run.labels for run in curves.runs))
    heads = list(dict.fromkeys(run.head for run in curves.runs))
    figure, panels = plt.subplots(1, len(labels), figsize=(9, 3.4), sharey=True, layout="constrained", squeeze=False)
    for axes, name in zip(panels[0], labels, strict=True):
        for run in (run for run in curves.runs if run.labels == name):
            color, line, marker = STYLES[heads.index(run.head) % len(STYLES)]
            steps = [step / 1000 for step, *_ in run.points]
            accuracy = [point[-1] for point in run.points]
            axes.plot(steps, accuracy, line, color=color, marker=marker, markersize=4, linewidth=1.3, label=run.head)
        axes.axhline(10, color=GREY, linewidth=0.8)
        axes.set(title=name, xlabel="thousand steps", ylim=(0, 100))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("test accuracy, %")
    panels[0][0].annotate("chance", (0.02, 11), xycoords=("axes fraction", "data"), color=GREY, fontsize=8)
    panels[0][0].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--out", type=Path, default=FOLDER / "pixels.png")
    args = parser.parse_args()
    try:
        save(draw(read_curves(args.record)), args.out)
    except (ValueError, OSError) as error:
        raise SystemExit(f"pixels: {error}") from error


if __name__ == "__main__":
    main()
