"""The part of the results page on CIFAR-10 from pixels says what its record says, and refuses a damaged one."""

import json

import pytest

from momatch.sweep.record import write_record
from reproduction.learning_curves import curves_section, read_curves
from reproduction.results import main
from tests.sweep.records import table1
from tests.sweep.test_tables import ALL


@pytest.fixture
def sweeps(tmp_path):
    folder = tmp_path / "sweeps"
    write_record(folder / "digits" / "table1.json", table1(ALL))
    return folder


def write_curves(path, **changes):
    runs = [
        {"row": head, "column": labels, "seed": 0, "curve": [[500, 65.0, 20.04], [1000, 120.0, final]]}
        for labels, final in (("40 labels", 25.0), ("250 labels", 50.0))
        for head in ("Linear", "AAGMM | 8-D")
    ]
    content = {
        "sweep": "momatch sweep benchmarks/pixels.toml",
        "environment": {"commit": "abc", "cores": 2},
        "recipe": "cnn-small, 1,000 steps",
        "a run on an A100, an estimate": "3 tera-operations",
        "details": runs,
    }
    path.write_text(json.dumps(content | changes))
    return path


def test_section_has_recipe_cost_and_every_run(tmp_path):
    section = curves_section(read_curves(write_curves(tmp_path / "pixels.json")))
    assert "cnn-small, 1,000 steps" in section
    assert "3 tera-operations" in section
    assert "2 to 2 minutes of one core" in section
    assert "One seed: these runs decide none of the claims" in section
    assert "| Linear, seed 0 | 20.0 | 25.0 |" in section
    assert "| Linear, seed 0 | 20.0 | 50.0 |" in section
    assert section.count(r"| AAGMM \| 8-D, seed 0 |") == 2
    assert section.index("40 labels") < section.index("250 labels")


def test_page_shows_curves_where_it_is_given_them(tmp_path, sweeps):
    curves, page = write_curves(tmp_path / "pixels.json"), tmp_path / "page.md"
    assert main([str(page), "--records", str(sweeps)]) == 0
    assert "## CIFAR-10 from pixels" not in page.read_text()
    assert main([str(page), "--records", str(sweeps), "--curves", str(curves)]) == 0
    assert page.read_text().count("## CIFAR-10 from pixels") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": None},
        {"details": []},
        {"details": [{"row": "a"}]},
        {"environment": 3},
        {"details": [{"row": "a", "column": "b", "seed": 0, "curve": []}]},
    ],
)
def test_damaged_record_is_named(tmp_path, sweeps, capsys, changes):
    path = write_curves(tmp_path / "pixels.json", **changes)
    page = tmp_path / "page.md"
    assert main([str(page), "--records", str(sweeps), "--curves", str(path)]) == 1
    message = capsys.readouterr().err
    assert "pixels.json: got a damaged record" in message
    assert "run benchmarks/pixels.py again" in message
    assert not page.exists()


def test_missing_record_is_named(tmp_path, sweeps, capsys):
    assert main([str(tmp_path / "page.md"), "--records", str(sweeps), "--curves", str(tmp_path / "none.json")]) == 1
    assert "none.json: there is no such file, expected the record of benchmarks/pixels.py" in capsys.readouterr().err
