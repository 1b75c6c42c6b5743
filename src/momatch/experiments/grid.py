"""A grid of settings: rows x columns of a table, read from a small TOML file."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One place of a table: the settings that are trained with every seed.

    Attributes:
        row: name of the row.
        column: name of the column.
        settings: config keys -> values, on top of the preset: those of the grid, then of the row, then of the column.
    """

    row: str
    column: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What a sweep carries out and what its tables show.

    Attributes:
        name: by which records and the paper's figures are found.
        title: of its tables.
        question: what it is to answer, in one sentence.
        cells: in the order of the table: row by row.
        figures: the figures to show, one table each: names of `momatch.experiments.figures.FIGURES`.
        baseline: row and column that paired differences are taken against; None for none.
        seeds: by default.
        outliers: datasets that every run is told apart from after training; where one is not at hand it is left out,
            and said so.
    """

    name: str
    title: str
    question: str
    cells: tuple[Cell, ...]
    figures: tuple[str, ...]
    baseline: tuple[str, str] | None
    seeds: tuple[int, ...]
    outliers: tuple[str, ...] = ()
