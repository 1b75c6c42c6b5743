"""Grids: the paper's are the experiments that they claim to be, and a wrong file is refused with the key at fault."""

import re
from pathlib import Path

import pytest

from momatch.config.layers import FlagError, Layer, combine
from momatch.config.presets import PRESETS
from momatch.sweep.grid import Published, load_grid, paper_grids, parse_grid
from reproduction.paper import GRIDS, paper_grid
from tests.sweep.sweeping import TINY, jobs_of, tiny

#: Name -> rows, columns, cells, default seeds.
SIZES = {
    "table1": (4, 5, 12, 5),
    "compactness": (2, 3, 6, 5),
    "outliers": (4, 3, 8, 5),
    "density": (6, 3, 12, 5),
    "policies": (4, 3, 12, 5),
    "family": (13, 2, 26, 5),
    "memory": (4, 5, 20, 3),
    "constraints": (1, 6, 6, 5),
    "divergences": (1, 5, 5, 5),
    "widths": (3, 5, 15, 5),
    "weights": (3, 4, 11, 3),
}


@pytest.mark.parametrize("name", GRIDS)
def test_paper_grid_has_its_cells(name):
    grid = load_grid(name)
    assert grid == paper_grid(name)
    assert (len(grid.rows), len(grid.columns), len(grid.cells), len(grid.seeds)) == SIZES[name]
    assert grid.name == name
    assert grid.question.endswith("?")


def test_names_are_those_of_the_files():
    assert sorted(paper_grids()) == sorted(GRIDS)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", GRIDS)
def test_paper_cells_are_configs_with_every_preset(name, preset):
    layer = Layer(PRESETS[preset], preset)
    configs = [combine([layer, Layer(cell.settings, str(cell))]) for cell in paper_grid(name).cells]
    assert len({config.run_dir for config in configs}) == len(configs), "two cells are one run"


def test_layers_of_a_cell():
    grid = parse_grid("g", TINY.replace("{ moment_order = 1 }", "{ moment_order = 1, steps = 7 }"), source="g")
    settings = {(cell.row, cell.column): cell.settings for cell in grid.cells}
    assert list(settings) == [("a", "none"), ("a", "1st"), ("k", "1st")]
    assert settings["a", "none"]["steps"] == 2
    assert settings["a", "1st"]["steps"] == 7, "columns beat the grid"
    assert settings["k", "1st"]["head"] == "kmeans"
    assert "columns" not in settings["k", "1st"]


def test_columns_keep_the_order_of_the_file():
    assert paper_grid("table1").columns == ("none", "1st", "2nd", "3rd", "4th")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Tiny"', "", "title: got None"),
        ('title = "Tiny"', 'titel = "Tiny"', "unknown key 'titel'; did you mean 'title'"),
        ('metrics = ["accuracy"]', 'figures = ["accuracy"]', "unknown key 'figures'; did you mean 'metrics'"),
        ('["accuracy"]', '["acuracy"]', "g.toml: metrics: got the unknown metric 'acuracy'; did you mean 'accuracy'"),
        ('["accuracy"]', "[]", "metrics: got none"),
        ('["accuracy"]', '"accuracy"', "metrics: got 'accuracy', expected a list"),
        ("[0, 1]", "[0, 0]", "seeds: got"),
        ("[0, 1]", "[true]", "seeds: got"),
        ("[0, 1]", "[]", "seeds: got"),
        ("[0, 1]", "[-1]", "seeds: got"),
        ('["a", "none"]', '["k", "none"]', "baseline: got"),
        ('["a", "none"]', '["a"]', "baseline: got"),
        ('["a", "none"]', "[1, 2]", "baseline: got"),
        ('columns = ["1st"]', 'columns = ["1s"]', "unknown column '1s'; did you mean '1st'"),
        ('columns = ["1st"]', 'columns = "1st"', "columns: got '1st', expected a list"),
        ('{ head = "aagmm" }', "3", r"a: got 3, expected {"),
        ("steps = 2", "seed = 2", r"\[settings\]: got the setting 'seed'"),
        ('{ head = "aagmm" }', '{ run_dir = "x" }', r"\[rows\] 'a': got the setting 'run_dir'"),
        ("{ moment_order = 0 }", "{ overwrite = true }", r"\[columns\] 'none': got the setting 'overwrite'"),
        ("[columns]", "[rows.other]\n[columns.x]\n[column]", "unknown key 'column'"),
        ("[settings]", 'outliers = ["a", 3]\n[settings]', "outliers: got"),
        ("[settings]", "outliers = [[]]\n[settings]", "outliers: got"),
        ("[settings]", "[settings", "not valid TOML"),
    ],
)
def test_wrong_file_is_refused(old, new, message):
    assert old in TINY
    with pytest.raises(ValueError, match=message):
        parse_grid("g", TINY.replace(old, new), source="g.toml")


@pytest.mark.parametrize("part", ["rows", "columns"])
def test_grid_without_rows_or_columns_is_refused(part):
    text = TINY[: TINY.index("[rows]")] + ('[columns]\n"x" = {}\n' if part == "rows" else '[rows]\n"x" = {}\n')
    with pytest.raises(ValueError, match=rf"\[{part}\]: got none"):
        parse_grid("g", text, source="g.toml")


def test_alternatives_among_outliers():
    assert tiny('outliers = ["digits", ["mnist", "kmnist"]]').outliers == ("digits", ("mnist", "kmnist"))


def test_file_is_read_by_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TINY.encode())
    assert load_grid(str(path)) == tiny(name="mine")


def test_no_such_grid(tmp_path):
    with pytest.raises(FlagError, match=r"did you mean 'table1'.*or the path of a \.toml file"):
        load_grid("table")
    with pytest.raises(FlagError, match=r"expected one of .*table1"):
        load_grid("xyz")
    with pytest.raises(ValueError, match="got no such file"):
        load_grid(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not valid UTF-8"):
        load_grid(str(tmp_path / "bad.toml"))


def test_names_are_found_below_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("momatch.sweep.grid.CHECKOUT", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlagError, match=r"the paper's grids come with momatch's repository.*path of a \.toml file"):
        load_grid("tiny")
    (tmp_path / "reproduction" / "grids").mkdir(parents=True)
    (tmp_path / "reproduction" / "grids" / "tiny.toml").write_text(TINY)
    assert load_grid("tiny") == tiny()


PUBLISHED = """
[[published]]
source = "Smith 2020"
setup = "a large network"
metrics = ["accuracy", "ece"]
runs = 5
values.a = { "none" = [94.5, 0.07], "1st" = 93 }
values.other = { "1st" = "> 20.5" }
"""


def test_published_numbers():
    grid = parse_grid("g", TINY + PUBLISHED, source="g")
    first, second, third = grid.published_for("accuracy")
    shared = {"source": "Smith 2020", "setup": "a large network", "runs": 5}
    assert first == Published("accuracy", "a", "none", mean=94.5, std=0.07, **shared)
    assert second == Published("accuracy", "a", "1st", mean=93.0, **shared)
    assert third == Published("accuracy", "other", "1st", mean=20.5, is_bound=True, **shared)
    assert [number.text() for number in (first, second, third)] == ["94.50 ± 0.07 (5)", "93.00 (5)", "> 20.50 (5)"]
    assert len(grid.published_for("ece")) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "Smith 2020"', "", r"\[\[published\]\] 1: source: got None"),
        ("runs = 5", "runs = 0", "runs: got 0"),
        ("runs = 5", "run = 5", "unknown key 'run'; did you mean 'runs'"),
        ('"ece"', '"ace"', "unknown metric 'ace'"),
        ('"1st" = 93', '"1s" = 93', "unknown column '1s'; did you mean '1st'"),
        ("= 93", "= true", "'a', '1st': got True, expected a number"),
        ("= 93", '= "93"', "got '93', expected a number"),
        ("= 93", "= [1, 2, 3]", "expected a number"),
        ('values.a = { "none" = [94.5, 0.07], "1st" = 93 }', "values.a = 3", "values: a: got 3"),
        ("[[published]]", "[published]", r"published: got .* expected blocks that begin with \[\[published\]\]"),
    ],
)
def test_wrong_published_numbers_are_refused(old, new, message):
    assert old in PUBLISHED
    with pytest.raises(ValueError, match=message):
        parse_grid("g", TINY + PUBLISHED.replace(old, new), source="g.toml")


def test_grid_of_the_documents_can_be_planned(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(jobs_of(parse_grid("mine", text, source="docs"), runs=tmp_path, data_dir=str(tmp_path))) == 15


@pytest.mark.parametrize("name", ["", " ", "a\\nb", "a\\u001bb"])
def test_name_that_cannot_be_printed_is_refused(name):
    text = f'title = "t"\nquestion = "q"\nmetrics = ["accuracy"]\n[rows]\n"{name}" = {{}}\n[columns]\n"b" = {{}}\n'
    with pytest.raises(ValueError, match="expected one that can be printed"):
        parse_grid("g", text, source="g")
