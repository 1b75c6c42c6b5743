"""docs/results.md and the tables beside the records are made from the records, byte for byte; README has their verdicts."""

import re
from pathlib import Path

import pytest

from momatch.sweep.record import read_record
from momatch.sweep.tables import write_tables
from reproduction.claims import CLAIMS
from reproduction.learning_curves import read_curves
from reproduction.paper import paper_grid
from reproduction.results import read_former, read_records, results_page

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "results" / "sweeps"


def test_page_is_made_from_the_records():
    records = read_records(RECORDS)
    page = results_page(records, read_former(RECORDS, records), read_curves(RECORDS.parent / "pixels.json"))
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == page


def test_readme_has_the_verdict_of_each_claim_at_each_scale():
    rows = re.findall(r"^\| (\d\w?)\. .*? \| (.*) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.M)
    shown = {number: verdicts.replace("**", "").split(" | ") for number, verdicts in rows}
    records = read_records(RECORDS)
    scales = [records[name] for name in ("digits", "mnist-cpu", "cifar10-40-labels/features")]
    states = {claim.number: [claim.verdict(grids).state for grids in scales] for claim in CLAIMS}
    assert shown == {number: [state.removeprefix("not testable: ") for state in row] for number, row in states.items()}


@pytest.mark.parametrize("path", sorted(RECORDS.rglob("*.json")), ids=lambda path: str(path.relative_to(RECORDS)))
def test_tables_are_made_from_the_records(path, tmp_path):
    for table in write_tables(paper_grid(path.stem), read_record(path), tmp_path):
        assert (path.parent / table.name).read_bytes() == table.read_bytes(), table.name
