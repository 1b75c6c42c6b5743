"""Every figure that the paper reports, by the grid, figure, row and column that repeat it here.

*A Method of Moments Embedding Constraint and its Application to Semi-Supervised Learning* (2024), tables 1 to 5.
Its accuracies are the largest over training on the test images, ours are those of the last step. The table against other
methods gives errors: here they are 100 minus those. That table's STL-10 spread of AAGMM with the first order, .60, is table
1's 7.60. What it has of FlexMatch and other methods with a linear layer on all features it takes from their publications,
without the number of runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CIFAR10 = "CIFAR-10"
STL10 = "STL-10"
#: FlexMatch and its like have a linear layer on all features.
CIFAR10_WIDE = "CIFAR-10, linear on all features"
STL10_WIDE = "STL-10, linear on all features"
#: Source -> its scale.
SCALES = {
    CIFAR10: "CIFAR-10 with 40 labels, WRN-28-2, 2^20 steps",
    STL10: "STL-10 with 40 labels, WRN-37-2, 2^20 steps",
    CIFAR10_WIDE: "CIFAR-10 with 40 labels, WRN-28-2, 2^20 steps, as others published it",
    STL10_WIDE: "STL-10 with 40 labels, WRN-37-2, 2^20 steps, as others published it",
}
#: Figure -> what is to be kept in mind beside the paper's.
NOTES = {
    "accuracy": "The paper's accuracy is the largest over training, ours that of the last step.",
    "compactness": "The paper's text measures to the assigned center, its published code to that of the true class.",
    "compactness_true": "The paper's text measures to the assigned center, its published code to that of the true class.",
    "peak_memory": (
        "The paper's is GPU memory at a batch of 64; without constraint it is a linear layer's. Ours is the memory of all of "
        "the process on a CPU, that of the tensors on a GPU."
    ),
}
ORDERS = ("none", "1st", "2nd", "3rd", "4th")


@dataclass(frozen=True)
class PaperFigure:
    """One figure of the paper.

    Attributes:
        grid: name of the grid that repeats it.
        figure: name of the figure.
        row: of the grid; a name that the grid does not have where only the paper has that method.
        column: of the grid.
        source: a key of `SCALES`.
        mean: in the figure's unit, or in `unit`.
        std: None where the paper gives none.
        n: runs that it is the mean of; None where the paper does not say.
        unit: where it is another than ours.
        is_bound: whether the true figure is more than `mean`.
    """

    grid: str
    figure: str
    row: str
    column: str
    source: str
    mean: float
    std: float | None = None
    n: int | None = None
    unit: str = ""
    is_bound: bool = False

    def text(self, decimals: int = 2) -> str:
        """Mean ± std (n), as tables print it."""
        spread = "" if self.std is None else f" ± {self.std:.{decimals}f}"
        unit = f" {self.unit}" if self.unit else ""
        return f"{'> ' if self.is_bound else ''}{self.mean:.{decimals}f}{spread}{unit} ({self.n or 'n ?'})"


#: Row -> source -> mean and std by order, from "none" on.
_ACCURACY: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "Linear, all features": {CIFAR10_WIDE: ((95.03, 0.06),), STL10_WIDE: ((70.85, 4.16),)},
    "Linear 8-D": {CIFAR10: ((90.89, 3.24),)},
    "AAGMM 8-D": {
        CIFAR10: ((94.98, 0.07), (94.64, 0.27), (93.58, 2.74)),
        STL10: ((58.79, 11.00), (71.11, 7.60), (70.40, 6.39)),
    },
    "KMeans 8-D": {CIFAR10: ((90.15, 6.40), (93.50, 0.62), (93.44, 0.50))},
}
_REMOVED: dict[str, tuple[tuple[float, float], ...]] = {
    CIFAR10: ((94.9, 0.125), (87.70, 2.96), (87.25, 2.51)),
    STL10: ((57.50, 12.75), (64.18, 3.82), (65.90, 4.09)),
}
_COMPACTNESS: dict[str, dict[str, tuple[float, ...]]] = {
    "AAGMM 8-D": {CIFAR10: (1.03, 0.58, 0.53), STL10: (2.32, 0.79, 0.76)},
    "KMeans 8-D": {CIFAR10: (18.41, 0.96, 1.06)},
}
_MEMORY: dict[str, tuple[float, ...]] = {
    "8-D": (7.72, 7.71, 7.70, 7.76, 8.76),
    "32-D": (7.71, 7.71, 7.79, 13.15, 20.47),
}
#: Method -> source -> error and its std.
_ERRORS: dict[str, dict[str, tuple[float, float]]] = {
    "FixMatch": {CIFAR10_WIDE: (13.81, 3.37), STL10_WIDE: (35.97, 4.14)},
    "FlexMatch": {CIFAR10_WIDE: (4.97, 0.06), STL10_WIDE: (29.15, 4.16)},
    "FreeMatch": {CIFAR10_WIDE: (4.90, 0.29), STL10_WIDE: (15.56, 0.55)},
    "SimMatchV2": {CIFAR10_WIDE: (4.90, 0.04), STL10_WIDE: (15.85, 2.62)},
}
#: Trials of table 1 and of the table on outlier removal; what others published comes without.
_TRIALS = {CIFAR10: 5, STL10: 3}


def _table1() -> Iterator[PaperFigure]:
    for row, sources in _ACCURACY.items():
        for source, values in sources.items():
            for column, (mean, std) in zip(ORDERS, values, strict=False):
                yield PaperFigure("table1", "accuracy", row, column, source, mean, std, _TRIALS.get(source))


def _again(grid: str, row: str, column: str, *, of: tuple[str, str]) -> Iterator[PaperFigure]:
    """A cell of table 1 that another grid has as well, under its own names."""
    for known in _table1():
        if (known.row, known.column) == of:
            yield PaperFigure(grid, "accuracy", row, column, known.source, known.mean, known.std, known.n)


def _outliers() -> Iterator[PaperFigure]:
    for column in ORDERS[:3]:
        yield from _again("outliers", "kept", column, of=("AAGMM 8-D", column))
    for source, values in _REMOVED.items():
        for column, (mean, std) in zip(ORDERS, values, strict=False):
            yield PaperFigure("outliers", "accuracy", "P90 removed", column, source, mean, std, _TRIALS.get(source))


def _compactness() -> Iterator[PaperFigure]:
    # The text measures to the assigned center, the published code to that of the true class: it stands beside both.
    for figure in ("compactness", "compactness_true"):
        for row, sources in _COMPACTNESS.items():
            for source, values in sources.items():
                for column, mean in zip(ORDERS, values, strict=False):
                    yield PaperFigure("compactness", figure, row, column, source, mean)


def _memory() -> Iterator[PaperFigure]:
    for row, values in _MEMORY.items():
        for column, mean in zip(ORDERS, values, strict=True):
            did_not_fit = (row, column) == ("32-D", "4th")
            yield PaperFigure("memory", "peak_memory", row, column, CIFAR10, mean, unit="GiB", is_bound=did_not_fit)


def _policies() -> Iterator[PaperFigure]:
    yield from _again("policies", "FlexMatch", "Linear 8-D", of=("Linear 8-D", "none"))
    for column in ("AAGMM 8-D", "KMeans 8-D"):
        yield from _again("policies", "FlexMatch", column, of=(column, "1st"))
    for row, sources in _ERRORS.items():
        for source, (error, std) in sources.items():
            yield PaperFigure("policies", "accuracy", row, "Linear 8-D", source, 100 - error, std)


def _constraints() -> Iterator[PaperFigure]:
    columns = {"none": "none", "moments 1st": "1st", "moments 2nd": "2nd"}
    for column, order in columns.items():
        yield from _again("constraints", "AAGMM 8-D", column, of=("AAGMM 8-D", order))
        for source, values in _COMPACTNESS["AAGMM 8-D"].items():
            mean = values[ORDERS.index(order)]
            yield PaperFigure("constraints", "compactness", "AAGMM 8-D", column, source, mean)


#: All of them.
PAPER: tuple[PaperFigure, ...] = (
    *_table1(),
    *_outliers(),
    *_compactness(),
    *_memory(),
    *_policies(),
    *_constraints(),
)


def paper_figures(grid: str, figure: str) -> tuple[PaperFigure, ...]:
    """What the paper has beside one table."""
    return tuple(known for known in PAPER if (known.grid, known.figure) == (grid, figure))


def sources(figures: Sequence[PaperFigure]) -> tuple[str, ...]:
    """The sources of some figures, in the order of `SCALES`."""
    return tuple(source for source in SCALES if any(figure.source == source for figure in figures))
