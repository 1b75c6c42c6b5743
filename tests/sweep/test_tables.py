"""Tables say what the record holds: nothing without its number of runs, nothing missing without a word."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from momatch.sweep.grid import Cell, Grid
from momatch.sweep.table_text import Entry, Line, Table, escape_latex, escape_markdown, latex, markdown
from momatch.sweep.tables import (
    build_tables,
    gaps,
    latex_page,
    markdown_page,
    setup_text,
    summary_csv,
    write_tables,
)
from reproduction.paper import paper_grid
from tests.sweep.records import density, fill, make_outcome, make_record, table1

WIDE = ("Linear, all features", "none")
ALL = {(cell.row, cell.column): 97.0 + place / 10 for place, cell in enumerate(paper_grid("table1").cells)}


@pytest.fixture
def record():
    return table1(ALL)


def _entry(table, row, column):
    (line,) = [line for line in table.lines if line.name == row and not line.is_published]
    return line.entries[table.columns.index(column)]


def test_mean_deviation_and_number(record):
    means, differences = build_tables(paper_grid("table1"), record)
    # By hand: 97.0 + 0.1, -0.1, 0.2, -0.2, 0; the second row has twice that noise, in another order.
    assert _entry(means, *WIDE).text == "97.00 ± 0.16 (5)"
    assert _entry(means, "Linear 8-D", "none").text == "97.10 ± 0.32 (5)"
    assert _entry(means, "Linear 8-D", "1st").text == ""
    # Differences: 0.1 + (-0.3, 0.5, -0.6, 0.2, 0.2), deviation 0.441588, half 2.776445 * 0.441588 / sqrt 5 = 0.548.
    assert _entry(differences, "Linear 8-D", "none").text == "+0.10 [-0.45, +0.65] (5)"
    assert _entry(differences, *WIDE).text == "baseline"


def test_interval_that_leaves_out_nought_is_strong(record):
    far = table1({**ALL, ("Linear 8-D", "none"): 90.0})
    assert not _entry(build_tables(paper_grid("table1"), record)[1], "Linear 8-D", "none").is_strong
    assert _entry(build_tables(paper_grid("table1"), far)[1], "Linear 8-D", "none").is_strong


def test_published_numbers_stand_beside_ours(record):
    means, differences = build_tables(paper_grid("table1"), record)
    names = [line.name for line in means.lines]
    place = names.index("AAGMM 8-D")
    assert names[place + 1 : place + 3] == ["Paper, CIFAR-10", "Paper, STL-10"]
    assert [entry.text for entry in means.lines[place + 1].entries[:3]] == [
        *("94.98 ± 0.07 (5)", "94.64 ± 0.27 (5)", "93.58 ± 2.74 (5)")
    ]
    caption = " ".join(means.notes)
    assert "CIFAR-10 with 40 labels, WRN-28-2, 2^20 steps" in caption
    assert "Ours: digits; 40 labels; pool of 1,297 images; 500 test images; cnn-tiny; 1,200 steps" in caption
    assert "seeds 0, 1, 2, 3, 4" in caption
    assert not any(line.is_published for line in differences.lines)


def test_what_is_missing_is_said():
    grid = paper_grid("table1")
    outcomes = [
        make_outcome(*WIDE, 0, result={"test_accuracy": 0.97}),
        make_outcome(*WIDE, 1, error="the loss is not finite"),
        make_outcome("Linear 8-D", "none", 0, error="killed by signal 9"),
        make_outcome("Linear 8-D", "none", 1, error="killed by signal 9"),
        make_outcome("AAGMM 8-D", "none", 1, result={"test_accuracy": 0.96}),
        make_outcome("AAGMM 8-D", "1st", 0, result={"test_accuracy": None}),
    ]
    record = make_record("table1", outcomes, seeds=(0, 1))
    means, differences = build_tables(grid, record)
    assert _entry(means, *WIDE).text == "97.00 (1 of 2)"
    assert _entry(means, "Linear 8-D", "none").text == "failed"
    assert _entry(means, "AAGMM 8-D", "2nd").text == "not run"
    assert _entry(means, "AAGMM 8-D", "1st").text == "-"
    assert any("does not have this metric" in note for note in means.notes)
    assert _entry(differences, "AAGMM 8-D", "none").text == "no pair"
    lines = gaps(grid, record)
    assert "Failed: Linear, all features, none, seed 1: the loss is not finite" in lines
    assert "Not run: AAGMM 8-D, none, seed 0." in lines
    assert "Not run: AAGMM 8-D, 2nd, seed 0, 1." in lines
    assert "the loss is not finite" in markdown_page(grid, record)
    assert "the loss is not finite" in latex_page(grid, record)


def test_record_without_a_finished_run():
    record = make_record("table1", [], seeds=(0,))
    assert setup_text(record) == "No run is finished."
    text = markdown_page(paper_grid("table1"), record)
    assert "not run" in text
    # Only the published numbers are left.
    assert all("Paper" in line for line in text.splitlines() if "±" in line and line.startswith("|"))


def test_auroc_has_a_table_for_each_origin_and_state():
    record = density({("AAGMM 8-D", "1st", "as_trained", "nearest"): 0.93})
    tables = [table for table in build_tables(paper_grid("density"), record) if "AUROC" in table.title]
    assert len(tables) == 2 * 2 * 2
    first = tables[0]
    assert "held-out classes, head as trained" in first.title
    assert _entry(first, "AAGMM 8-D, 1st", "nearest center").text.startswith("0.93")
    assert _entry(first, "Linear 8-D, none", "nearest center").text == "-"
    assert _entry(first, "Linear 8-D, none", "density (linear: energy)").text.startswith("0.60")


def test_linear_layers_have_no_line_where_nothing_is_refitted():
    titles = {table.title: table for table in build_tables(paper_grid("density"), density({}))}
    (refitted,) = [
        table for title, table in titles.items() if title.startswith("AUROC") and "mnist, head refitted" in title
    ]
    names = [line.name for line in refitted.lines]
    assert "AAGMM 8-D, 1st" in names
    assert not any(name.startswith("Linear") for name in names)


def test_shared_notes_stand_once(record):
    text = markdown_page(paper_grid("density"), density({}))
    assert text.count("Ours: ") == 1
    assert text.count("Mean of the per-seed differences") == 1
    assert latex_page(paper_grid("density"), density({})).count("Ours: ") == 5


def test_density_without_an_evaluation_says_so():
    outcomes = [replace(outcome, evaluation=None) for outcome in density({}).outcomes]
    record = make_record("density", outcomes, seeds=(0, 1, 2))
    grid = paper_grid("density")
    assert "No run was evaluated on outliers." in gaps(grid, record)
    assert not any("AUROC" in table.title for table in build_tables(grid, record))


def test_grid_without_a_baseline_has_no_differences(record):
    grid = replace(paper_grid("table1"), baseline=None)
    assert len(build_tables(grid, record)) == 1
    assert "difference" in _csv(summary_csv(grid, record))[0]


def _csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_files(tmp_path, record):
    paths = write_tables(paper_grid("table1"), record, tmp_path / "new")
    assert [path.name for path in paths] == ["table1.md", "table1.tex", "table1.csv", "table1-summary.csv"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)
    for path in paths[:2]:
        for fact in ("momatch sweep table1", "abc1234", "2024-01-01", "A CPU", "torch 2.13.0", "seeds 0, 1, 2, 3, 4"):
            assert fact in path.read_text()
    runs = _csv(paths[2].read_text())
    assert len(runs) == len(record.outcomes)
    assert float(runs[0]["accuracy"]) == pytest.approx(97.1)
    summaries = [line for line in _csv(paths[3].read_text()) if (line["row"], line["column"]) == ("AAGMM 8-D", "1st")]
    assert [line["published_source"] for line in summaries] == ["Paper, CIFAR-10", "Paper, STL-10"]
    assert (summaries[0]["n"], summaries[0]["pairs"], summaries[0]["published_mean"]) == ("5", "5", "94.64")


def test_summary_for_programs_has_bounds_setups_and_published_only_rows():
    lines = _csv(summary_csv(paper_grid("memory"), _memory()))
    bounds = {(line["row"], line["column"]): line["published_is_bound"] for line in lines}
    assert bounds["32-D", "4th"] == "True"
    assert bounds["32-D", "3rd"] == "False"
    assert bounds["512-D", "4th"] == ""
    assert all(line["setup"].startswith("digits; 40 labels") for line in lines)
    values = {(cell.row, cell.column): 97.0 for cell in paper_grid("policies").cells}
    record = fill("policies", "test_accuracy", values, scale=0.01)
    only = [line for line in _csv(summary_csv(paper_grid("policies"), record)) if line["row"] == "SimMatchV2"]
    assert [(line["published_mean"], line["mean"], line["n"]) for line in only] == [
        ("95.1", "", "0"),
        ("84.15", "", "0"),
    ]
    assert only[0]["published_setup"] == "CIFAR-10 with 40 labels, WRN-28-2, 2^20 steps, as published by others"


def test_no_number_without_its_runs(record):
    for grid, made in (("table1", record), ("density", density({})), ("memory", _memory())):
        for table in build_tables(paper_grid(grid), made):
            for line in table.lines:
                for entry in line.entries:
                    assert not re.search(r"\d", entry.text) or re.search(r"\((\d+( of \d+)?|n \?)\)$", entry.text), (
                        entry
                    )


def _memory():
    values = {(cell.row, cell.column): 500.0 for cell in paper_grid("memory").cells}
    return fill("memory", "peak_memory_mb", values, seeds=(0,))


def test_one_seed_has_no_deviation():
    means, differences = build_tables(paper_grid("memory"), _memory())
    assert re.fullmatch(r"\d+ \(1\)", _entry(means, "8-D", "none").text)
    assert re.fullmatch(r"[+-]\d+ \(1\)", _entry(differences, "8-D", "4th").text)
    assert any(entry.text == "> 20.47 GiB (n ?)" for line in means.lines for entry in line.entries)


HOSTILE = r"a|b *c* _d_ `e` <script> \x & 50% #1 $x$ {y} ~z ^w" + "\nnew line"


def hostile_grid():
    cell = Cell(HOSTILE, HOSTILE, {})
    return Grid("own", HOSTILE, HOSTILE, (cell,), ("accuracy",), None, (0,))


def test_hostile_names_stay_text():
    outcome = make_outcome(HOSTILE, HOSTILE, 0, result={"test_accuracy": 0.5}, settings={"dataset": HOSTILE})
    text = markdown_page(hostile_grid(), make_record("own", [outcome], seeds=(0,)))
    assert "<script" not in text.replace(r"\<script", "")
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(table) == 3
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in table)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_is_accepted(tmp_path, record):
    outcome = make_outcome(HOSTILE, HOSTILE, 0, error=HOSTILE)
    pages = [
        latex_page(hostile_grid(), make_record("own", [outcome], seeds=(0,))),
        latex_page(paper_grid("table1"), record),
        latex_page(paper_grid("density"), density({})),
    ]
    body = "\n".join(pages)
    (tmp_path / "t.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    )
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_latex_escapes():
    assert escape_latex(r"a_b & 5% \ {x} #1 $2 ~ ^") == (
        r"a\_b \& 5\% \textbackslash{} \{x\} \#1 \$2 \textasciitilde{} \textasciicircum{}"
    )
    assert escape_latex("-0.12 [-0.50, +0.26] (5) ± 8-D, WRN-28-2") == (
        r"$-$0.12 [$-$0.50, +0.26] (5) $\pm$ 8-D, WRN-28-2"
    )


def test_latex_line_that_opens_with_a_bracket():
    table = Table("t", (), "", ("a",), (Line("x", (Entry("1"),)), Line("[y]", (Entry("2", is_strong=True),))))
    text = latex(table)
    assert "{}[y] & \\textbf{2} \\\\" in text
    assert "\\begin{tabular}{lr}" in text


def test_markdown_line():
    table = Table("t", ("A note.",), "", ("a", "b"), (Line("p", (Entry("1"), Entry("")), is_published=True),))
    assert markdown(table).splitlines()[2:5] == ["|  | a | b |", "| --- | --- | --- |", "| *p* | *1* |  |"]
    assert escape_markdown("a_b\n c") == r"a\_b c"


def test_setup_names_what_differs():
    outcomes = [
        make_outcome("a", "b", seed, result={"steps": steps}, settings={"dataset": name, "held_out_classes": "8,9"})
        for seed, (steps, name) in enumerate([(3, "mnist"), (20, "mnist"), (3, "digits")])
    ]
    text = setup_text(make_record("own", outcomes))
    assert text.startswith("digits or mnist; classes 8,9 held out of training; 40 labels;")
    assert "3 or 20 steps" in text
    many = [make_outcome("a", "b", seed, result={"steps": 10 * seed}) for seed in range(1, 6)]
    assert "10 to 50 steps" in setup_text(make_record("own", many))
