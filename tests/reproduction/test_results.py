"""The results page: made from the records alone, the same each time, and it replaces no other file."""

import re

import pytest

from momatch.sweep.record import write_record
from momatch.sweep.tables import write_tables
from reproduction.claims import CLAIMS
from reproduction.paper import paper_grid
from reproduction.results import MARKER, main, read_records, results_page, write_results
from tests.sweep.records import density, make_outcome, make_record, table1
from tests.sweep.test_tables import ALL, HOSTILE, hostile_grid


@pytest.fixture
def sweeps(tmp_path):
    folder = tmp_path / "sweeps"
    write_record(folder / "fashion-cpu" / "table1.json", table1(ALL, preset="fashion-cpu", seeds=(0, 1, 2)))
    write_record(folder / "digits" / "table1.json", table1(ALL))
    write_record(folder / "digits" / "density.json", density({}))
    return folder


def test_same_records_same_bytes(tmp_path, sweeps):
    first, second = tmp_path / "docs" / "a.md", tmp_path / "docs" / "b.md"
    write_results(sweeps, first)
    write_results(sweeps, second)
    assert first.read_bytes() == second.read_bytes()
    write_results(sweeps, first)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_text().startswith(MARKER)


def test_order_and_parts(sweeps):
    page = results_page(read_records(sweeps))
    headings = re.findall(r"^## (.*)$", page, flags=re.M)
    assert headings == [
        *("The claims", "The evidence", "How to read the numbers", "Tables of digits", "Tables of fashion-cpu")
    ]
    assert page.index("Accuracy by head") < page.index("Outlier detection by head")
    assert "| claim | digits | fashion-cpu |" in page
    for claim in CLAIMS:
        assert page.count(f"| {claim.number}. ") == 1
        assert f"### {claim.number}. " in page
    assert page.count("not testable: not run") == 2 * (4 + 4 + 3)
    assert "2.48 standard deviations of the differences to either side for 3 pairs and 1.24 for 5" in page


def test_what_the_command_line_changed_is_named(tmp_path):
    record = table1(ALL, overrides={"steps": 20})
    write_record(tmp_path / "digits" / "table1.json", record)
    assert "**digits with steps = 20: " in results_page(read_records(tmp_path))


def test_failed_runs_are_counted(tmp_path, sweeps):
    assert "; none failed." in results_page(read_records(sweeps))
    settings = paper_grid("memory").cells[0].settings
    broken = make_record("memory", [make_outcome("8-D", "none", 0, error="no memory", settings=settings)], seeds=(0,))
    write_record(sweeps / "digits" / "memory.json", broken)
    page = results_page(read_records(sweeps))
    assert "; 1 failed." in page
    assert "Failed: 8-D, none, seed 0: no memory" in page


def test_own_grids_are_named_not_guessed_at(tmp_path):
    outcome = make_outcome(HOSTILE, HOSTILE, 0, result={"test_accuracy": 0.5})
    record = make_record("own", [outcome], seeds=(0,))
    write_record(tmp_path / "digits" / "own.json", record)
    write_tables(hostile_grid(), record, tmp_path / "digits")
    page = results_page(read_records(tmp_path))
    assert "`digits/own.md`" in page
    assert "Tables of digits" not in page
    assert "script" not in page


def test_presets_of_other_names_come_last(tmp_path, sweeps):
    write_record(sweeps / "a own one" / "table1.json", table1(ALL, preset="a own one"))
    assert list(read_records(sweeps)) == ["digits", "fashion-cpu", "a own one"]


def test_sweeps_of_one_preset_are_told_apart(tmp_path, sweeps):
    for name in ("mine", "cifar10-250-labels", "cifar10-40-labels"):
        write_record(sweeps / name / "features" / "table1.json", table1(ALL, preset="features"))
    page = results_page(read_records(sweeps))
    scales = ("digits", "fashion-cpu", "CIFAR-10 features, 40 labels", "CIFAR-10 features, 250 labels", "mine/features")
    assert f"| claim | {' | '.join(scales)} |" in page
    assert all(f"## Tables of {scale}\n" in page for scale in scales)


def test_other_file_is_left_alone(tmp_path, sweeps):
    path = tmp_path / "README.md"
    path.write_text("mine")
    with pytest.raises(ValueError, match="will not replace it"):
        write_results(sweeps, path)
    assert path.read_text() == "mine"
    with pytest.raises(ValueError, match="got a directory"):
        write_results(sweeps, tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_no_record(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no record of a sweep"):
        write_results(tmp_path / name, tmp_path / "r.md")
    assert not (tmp_path / "r.md").exists()


def test_record_in_another_place_is_refused(sweeps):
    (sweeps / "digits" / "table1.json").rename(sweeps / "digits" / "policies.json")
    with pytest.raises(ValueError, match=r"grid 'table1', expected that of 'digits' and 'policies'"):
        read_records(sweeps)


def test_own_grid_with_the_name_of_a_paper_grid_is_refused(tmp_path):
    path = tmp_path / "digits" / "table1.json"
    write_record(path, make_record("table1", [make_outcome("mine", "none", 0, result={})]))
    with pytest.raises(ValueError, match=r"got the cell mine, none.*give your own grid another name"):
        read_records(tmp_path)
    linear = make_outcome("Linear 8-D", "none", 0, result={}, settings={"head": "kmeans"})
    write_record(path, make_record("table1", [linear]))
    with pytest.raises(ValueError, match=r"with head = 'kmeans', expected 'linear'"):
        read_records(tmp_path)


def test_command(tmp_path, sweeps, capsys):
    page = tmp_path / "page.md"
    assert main([str(page), "--records", str(sweeps)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "Tables of fashion-cpu" in page.read_text()
    assert main([str(page), "--records", str(tmp_path / "nowhere")]) == 1
    assert "error: " in capsys.readouterr().err


def test_damaged_record_is_named(tmp_path, sweeps):
    (sweeps / "digits" / "table1.json").write_text("{")
    with pytest.raises(ValueError, match=r"table1\.json.*damaged.*move it away and run the sweep again"):
        write_results(sweeps, tmp_path / "r.md")


FORMER = """[[verdict]]
claim = "{claim}"
scale = "{scale}"
was = "{was}"
because = "the average *changed*."
"""


def test_changed_verdicts_say_what_changed_them(tmp_path, sweeps):
    state = CLAIMS[0].verdict(read_records(sweeps)["digits"]).state
    page = tmp_path / "r.md"
    (sweeps / "former.toml").write_text(FORMER.format(claim="1a", scale="digits", was="disputed"))
    changed = write_results(sweeps, page).read_text()
    assert f"## Changed verdicts\n\n- 1a, digits: {state}, was disputed: the average \\*changed\\*.\n" in changed
    (sweeps / "former.toml").write_text(FORMER.format(claim="1a", scale="digits", was=state))
    assert "Changed verdicts" not in write_results(sweeps, page).read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FORMER.format(claim="9", scale="digits", was=""), "claim '9', expected one of 1a, 1b"),
        (FORMER.format(claim="1a", scale="moon", was=""), "scale 'moon', expected one of digits, fashion-cpu"),
        (FORMER.replace("was =", "is ="), "expected a .*verdict.* with the texts claim, scale, was, because"),
        ("verdict = 3", "got 3, expected a"),
        ("[[verdict", "correct it, or remove it"),
    ],
)
def test_damaged_former_verdicts_are_refused(tmp_path, sweeps, text, message):
    (sweeps / "former.toml").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        write_results(sweeps, tmp_path / "r.md")
    assert "former.toml" in str(caught.value)


def test_page_says_what_the_commit_is_of(sweeps):
    page = results_page(read_records(sweeps))
    assert "commit abc1234" in page
    assert "runs may be older" in page
    assert "trial on digits" not in page


def test_page_names_no_place(tmp_path, sweeps):
    page = results_page(read_records(sweeps))
    assert str(tmp_path) not in page
