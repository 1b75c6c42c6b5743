"""The published numbers are those of the paper's tables, and stand beside cells that exist."""

import pytest

from reproduction.claims import CLAIMS
from reproduction.paper import GRIDS, paper_grid, quote

CIFAR10, STL10 = "Paper, CIFAR-10", "Paper, STL-10"
WIDE = "Paper, CIFAR-10, linear on all features"
PAPER = [(grid, number) for grid in GRIDS for number in paper_grid(grid).published]


def _one(grid, metric, row, column, source):
    (found,) = [
        number
        for number in paper_grid(grid).published_for(metric)
        if (number.row, number.column, number.source) == (row, column, source)
    ]
    return found


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("table1", "accuracy", "Linear, all features", "none", WIDE), "95.03 ± 0.06 (n ?)"),
        (
            ("table1", "accuracy", "Linear, all features", "none", "Paper, STL-10, linear on all features"),
            "70.85 ± 4.16 (n ?)",
        ),
        (("table1", "accuracy", "AAGMM 8-D", "2nd", STL10), "70.40 ± 6.39 (3)"),
        (("table1", "accuracy", "KMeans 8-D", "none", CIFAR10), "90.15 ± 6.40 (5)"),
        (("outliers", "accuracy", "P90 removed", "1st", CIFAR10), "87.70 ± 2.96 (5)"),
        (("outliers", "accuracy", "kept", "1st", CIFAR10), "94.64 ± 0.27 (5)"),
        (("compactness", "compactness", "KMeans 8-D", "none", CIFAR10), "18.41 (n ?)"),
        (("compactness", "compactness_true", "AAGMM 8-D", "2nd", STL10), "0.76 (n ?)"),
        (("memory", "peak_memory", "32-D", "3rd", CIFAR10), "13.15 GiB (n ?)"),
        (("memory", "peak_memory", "32-D", "4th", CIFAR10), "> 20.47 GiB (n ?)"),
        (("policies", "accuracy", "FlexMatch", "AAGMM 8-D", CIFAR10), "94.64 ± 0.27 (5)"),
        (("policies", "accuracy", "FixMatch", "Linear 8-D", WIDE), "86.19 ± 3.37 (n ?)"),
        (("constraints", "accuracy", "AAGMM 8-D", "moments 2nd", CIFAR10), "93.58 ± 2.74 (5)"),
        (("constraints", "compactness", "AAGMM 8-D", "moments 1st", CIFAR10), "0.58 (n ?)"),
    ],
)
def test_number(place, text):
    assert _one(*place).text() == text


def test_counts_of_the_tables():
    counts = {grid: len(paper_grid(grid).published) for grid in GRIDS if paper_grid(grid).published}
    # Table 1: 8 of CIFAR-10 and 4 of STL-10; removal: 3 + 3 kept and 3 + 3 removed; compactness: 9, beside two metrics.
    assert counts == {
        "table1": 12,
        "outliers": 12,
        "compactness": 18,
        "memory": 10,
        "policies": 12,
        "family": 10,
        "constraints": 12,
    }


def test_no_number_stands_twice():
    places = [(grid, number.metric, number.row, number.column, number.source) for grid, number in PAPER]
    assert len(set(places)) == len(places)


def test_every_number_has_its_cell():
    for name, number in PAPER:
        grid = paper_grid(name)
        assert number.metric in grid.metrics
        assert number.setup
        cells = {(cell.row, cell.column) for cell in grid.cells}
        assert (number.row, number.column) in cells or number.row == "SimMatchV2"


def test_sources_in_order():
    names = ["CIFAR-10", "STL-10", "CIFAR-10, linear on all features", "STL-10, linear on all features"]
    for grid, expected in (("table1", names), ("policies", names), ("outliers", names[:2])):
        sources = dict.fromkeys(number.source for number in paper_grid(grid).published_for("accuracy"))
        assert list(sources) == [f"Paper, {name}" for name in expected]


def test_quotation_has_all_datasets_spreads_and_runs():
    text = quote("table1", "accuracy", ("Linear, all features", "none"), ("AAGMM 8-D", "none"))
    assert text == (
        "CIFAR-10: Linear, all features 95.03 ± 0.06 (n ?) as published by others; AAGMM 8-D without constraint 94.98 ± 0.07 "
        "(5). STL-10: Linear, all features 70.85 ± 4.16 (n ?) as published by others; AAGMM 8-D without constraint 58.79 ± "
        "11.00 (3)."
    )


@pytest.mark.parametrize("number", ["1a", "4"])
def test_claims_quote_stl10_beside_cifar10(number):
    (claim,) = [claim for claim in CLAIMS if claim.number == number]
    assert "CIFAR-10: " in claim.paper
    assert "STL-10: " in claim.paper
    assert "58.79 ± 11.00 (3)" in claim.paper
