"""docs/results.md and the tables beside the records are made from the records, byte for byte."""

from pathlib import Path

import pytest

from momatch.sweep.record import read_record
from momatch.sweep.tables import write_tables
from reproduction.paper import paper_grid
from reproduction.results import read_records, results_page

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "results" / "sweeps"


def test_page_is_made_from_the_records():
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == results_page(read_records(RECORDS))


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*/*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_tables_are_made_from_the_records(path, tmp_path):
    for table in write_tables(paper_grid(path.stem), read_record(path), tmp_path):
        assert (path.parent / table.name).read_bytes() == table.read_bytes(), table.name
