"""The paper's grids, and the numbers that it published.

*A Method of Moments Embedding Constraint and its Application to Semi-Supervised Learning* (2024), tables 1 to 5. The numbers
stand in the grids, as ``[[published]]``.
"""

from functools import cache
from pathlib import Path

from momatch.sweep.grid import Grid, Published, load_grid
from momatch.sweep.metrics import METRICS

#: In the order of the results page.
GRIDS = (
    *("table1", "compactness", "outliers", "density", "policies", "family", "memory", "constraints"),
    *("divergences", "widths", "weights"),
)
FOLDER = Path(__file__).parent / "grids"
ORDERS = ("none", "1st", "2nd", "3rd", "4th")

#: Row and column of a grid.
CellName = tuple[str, str]


@cache
def paper_grid(name: str) -> Grid:
    """One of `GRIDS`."""
    return load_grid(str(FOLDER / f"{name}.toml"))


def published(grid: str, metric: str, *cells: CellName) -> list[Published]:
    """The paper's numbers for some cells, in the order of the cells."""
    numbers = [number for number in paper_grid(grid).published_for(metric) if (number.row, number.column) in cells]
    return sorted(numbers, key=lambda number: cells.index((number.row, number.column)))


def quote(grid: str, metric: str, *cells: CellName) -> str:
    """The paper's numbers for some cells in words, dataset by dataset."""
    # A source is "Paper, DATASET" or "Paper, DATASET, ...".
    by_dataset: dict[str, list[str]] = {}
    for number in published(grid, metric, *cells):
        text = f"{in_words((number.row, number.column))} {number.text(METRICS[metric].decimals)}"
        text += " as published by others" if number.setup.endswith("as published by others") else ""
        by_dataset.setdefault(number.source.split(", ")[1], []).append(text)
    return " ".join(f"{dataset}: {'; '.join(texts)}." for dataset, texts in by_dataset.items())


_CONSTRAINTS = {"none": "without constraint", "1st": "with the first order", "2nd": "with the second order"}


def in_words(cell: CellName) -> str:
    """Row and column in a sentence; a linear layer never has a constraint."""
    row, column = cell
    if row.startswith("Linear") and column == "none":
        return row
    return f"{row} {_CONSTRAINTS[column]}" if column in _CONSTRAINTS else f"{row}, {column}"
