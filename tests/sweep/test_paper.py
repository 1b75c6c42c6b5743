"""The paper's figures are those of its tables, and stand beside cells that exist."""

import pytest

from momatch.sweep.claims import CLAIMS
from momatch.sweep.figures import FIGURES
from momatch.sweep.grid import load_grid
from momatch.sweep.paper import PAPER, SCALES, paper_figures, sources
from momatch.sweep.paper_text import quote

WIDE = "CIFAR-10, linear on all features"


def _one(grid, figure, row, column, source):
    (found,) = [
        known
        for known in paper_figures(grid, figure)
        if (known.row, known.column, known.source) == (row, column, source)
    ]
    return found


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("table1", "accuracy", "Linear, all features", "none", WIDE), "95.03 ± 0.06 (n ?)"),
        (
            ("table1", "accuracy", "Linear, all features", "none", "STL-10, linear on all features"),
            "70.85 ± 4.16 (n ?)",
        ),
        (("table1", "accuracy", "AAGMM 8-D", "2nd", "STL-10"), "70.40 ± 6.39 (3)"),
        (("table1", "accuracy", "KMeans 8-D", "none", "CIFAR-10"), "90.15 ± 6.40 (5)"),
        (("outliers", "accuracy", "P90 removed", "1st", "CIFAR-10"), "87.70 ± 2.96 (5)"),
        (("outliers", "accuracy", "kept", "1st", "CIFAR-10"), "94.64 ± 0.27 (5)"),
        (("compactness", "compactness", "KMeans 8-D", "none", "CIFAR-10"), "18.41 (n ?)"),
        (("compactness", "compactness_true", "AAGMM 8-D", "2nd", "STL-10"), "0.76 (n ?)"),
        (("memory", "peak_memory", "32-D", "3rd", "CIFAR-10"), "13.15 GiB (n ?)"),
        (("memory", "peak_memory", "32-D", "4th", "CIFAR-10"), "> 20.47 GiB (n ?)"),
        (("policies", "accuracy", "FlexMatch", "AAGMM 8-D", "CIFAR-10"), "94.64 ± 0.27 (5)"),
        (("policies", "accuracy", "FixMatch", "Linear 8-D", WIDE), "86.19 ± 3.37 (n ?)"),
        (("constraints", "accuracy", "AAGMM 8-D", "moments 2nd", "CIFAR-10"), "93.58 ± 2.74 (5)"),
        (("constraints", "compactness", "AAGMM 8-D", "moments 1st", "CIFAR-10"), "0.58 (n ?)"),
    ],
)
def test_figure(place, text):
    assert _one(*place).text() == text


def test_counts_of_the_tables():
    counts = {grid: len([known for known in PAPER if known.grid == grid]) for grid in {known.grid for known in PAPER}}
    # Table 1: 8 of CIFAR-10 and 4 of STL-10; removal: 3 + 3 kept and 3 + 3 removed; compactness: 9, beside two figures.
    assert counts == {"table1": 12, "outliers": 12, "compactness": 18, "memory": 10, "policies": 12, "constraints": 12}


def test_no_figure_stands_twice():
    places = [(known.grid, known.figure, known.row, known.column, known.source) for known in PAPER]
    assert len(set(places)) == len(places)


def test_every_figure_has_its_place_in_a_grid():
    for known in PAPER:
        grid = load_grid(known.grid)
        assert known.figure in FIGURES
        assert known.figure in grid.figures
        assert known.source in SCALES
        if known.row == "SimMatchV2":
            assert known.column in grid.columns
        else:
            assert (known.row, known.column) in {(cell.row, cell.column) for cell in grid.cells}


def test_sources_in_order():
    assert sources(paper_figures("table1", "accuracy")) == tuple(SCALES)
    assert sources(paper_figures("outliers", "accuracy")) == ("CIFAR-10", "STL-10")
    assert sources(()) == ()


def test_quotation_has_all_datasets_spreads_and_runs():
    text = quote("table1", "accuracy", ("Linear, all features", "none"), ("AAGMM 8-D", "none"))
    assert text == (
        "CIFAR-10: Linear, all features 95.03 ± 0.06 (n ?) as others published it; AAGMM 8-D without constraint 94.98 ± 0.07 "
        "(5). STL-10: Linear, all features 70.85 ± 4.16 (n ?) as others published it; AAGMM 8-D without constraint 58.79 ± "
        "11.00 (3)."
    )


@pytest.mark.parametrize("number", ["1a", "4"])
def test_claims_quote_stl10_beside_cifar10(number):
    (claim,) = [claim for claim in CLAIMS if claim.number == number]
    assert "CIFAR-10: " in claim.paper
    assert "STL-10: " in claim.paper
    assert "58.79 ± 11.00 (3)" in claim.paper
