"""The part of the results page on CIFAR-10 from pixels: the recipe, what it cost, and accuracy over the steps.

Made from the record of benchmarks/pixels.py and from nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momatch.storage.durable import read_object
from momatch.sweep.table_text import Entry, Line, Table, escape_markdown, markdown

#: Drawn by reproduction/figures/pixels.py, seen from docs.
FIGURE = "figures/pixels.png"


@dataclass(frozen=True)
class Curve:
    """One run.

    Attributes:
        labels: how many images are labelled, in words.
        head: the last layer, in words.
        seed: of the run.
        points: (step, seconds of training until then, test accuracy in percent) of each evaluation shown.
    """

    labels: str
    head: str
    seed: int
    points: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True)
class Curves:
    """A record of benchmarks/pixels.py.

    Attributes:
        recipe: what every run does.
        gpu: what a run would cost on a GPU, estimated.
        sweep: the command that trained the runs, when and by which commit.
        made: the machine, the versions, and by which commit the record was made.
        runs: in the order of the record.
    """

    recipe: str
    gpu: str
    sweep: str
    made: str
    runs: tuple[Curve, ...]

    @property
    def minutes(self) -> tuple[float, float]:
        """The shortest and the longest run."""
        ends = [run.points[-1][1] / 60 for run in self.runs]
        return min(ends), max(ends)


def read_curves(path: Path) -> Curves:
    """Read what benchmarks/pixels.py wrote.

    Raises:
        ValueError: if there is no such file, or it is damaged.
        OSError: if it cannot be read.
    """
    content = read_object(path)
    if content is None:
        raise ValueError(f"{path}: there is no such file, expected the record of benchmarks/pixels.py")
    try:
        environment: Mapping[str, Any] = content["environment"]
        where = " · ".join(f"{key} {value}" for key, value in environment.items())
        runs = tuple(_curve(entry) for entry in content["details"])
        if not runs or any(not run.points for run in runs):
            raise ValueError("a run without evaluations")
        if len({tuple(step for step, *_ in run.points) for run in runs}) > 1:
            raise ValueError("runs that were evaluated at different steps")
        recipe, gpu, sweep = (_text(content[key]) for key in ("recipe", "a run on an A100, an estimate", "sweep"))
        return Curves(recipe, gpu, sweep, where, runs)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: got a damaged record ({error!r}); run benchmarks/pixels.py again") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"got {value!r}, expected text")
    return value


def _curve(entry: Mapping[str, Any]) -> Curve:
    points = tuple((int(step), float(seconds), float(accuracy)) for step, seconds, accuracy in entry["curve"])
    return Curve(str(entry["column"]), str(entry["row"]), int(entry["seed"]), points)


def curves_section(curves: Curves) -> str:
    """The part of the page, as Markdown."""
    shortest, longest = curves.minutes
    seeds = sorted({run.seed for run in curves.runs})
    what = "One seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    blocks = [
        "## CIFAR-10 from pixels",
        f"From random weights, all 50,000 training images in the pool: {escape_markdown(curves.recipe)}. The recipe was found "
        "with the linear layer on 4,000 labels and a seed of its own, then left alone "
        f"([how](experiments.md#cifar-10-from-pixels)). {what}: these runs decide none of the "
        "claims above.",
        f"What a run cost: {shortest:.0f} to {longest:.0f} minutes of one core, beside other measurements on two cores. On an "
        f"A100, an estimate on paper: {escape_markdown(curves.gpu)}.",
        f"![Learning curves]({FIGURE})",
        *(markdown(_table(labels, runs)).rstrip("\n") for labels, runs in _by_labels(curves)),
        f"Trained by {escape_markdown(curves.sweep)}.",
        escape_markdown(curves.made),
    ]
    return "\n\n".join(blocks)


def _by_labels(curves: Curves) -> Sequence[tuple[str, Sequence[Curve]]]:
    labels = dict.fromkeys(run.labels for run in curves.runs)
    return [(name, [run for run in curves.runs if run.labels == name]) for name in labels]


def _table(labels: str, runs: Sequence[Curve]) -> Table:
    columns = tuple(f"{step:,}" for step, _, _ in runs[0].points)
    lines = tuple(
        Line(f"{run.head}, seed {run.seed}", (*(Entry(f"{accuracy:.1f}") for *_, accuracy in run.points),))
        for run in runs
    )
    return Table(f"{labels}: test accuracy of the averaged model by step, %", (), "head", columns, lines)
