"""momatch report: one page about runs, whatever state they are in."""

import shutil

import pytest

from momatch.cli.main import main
from momatch.cli.report import has_content, unique_names
from momatch.report.page import MARKER, report_run
from momatch.training.run import Run
from tests.report.made_up_reports import make_report, nothing
from tests.report.small_runs import train


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("small"))


@pytest.fixture
def made_up(monkeypatch):
    """Collecting takes long and is tested elsewhere; what was asked for is kept."""
    asked = []

    def collect(run, **options):
        asked.append((run, options))
        options["log"]("looking")
        if "empty" in run.name:
            return nothing(options["name"])
        return make_report(name=options["name"], problems=("A line is damaged.",) if "bad" in run.name else ())

    monkeypatch.setattr("momatch.report.collect.collect", collect)
    return asked


def folders(place, *found):
    for name in found:
        (place / name).mkdir(parents=True)
    return [str(place / name) for name in found]


def test_a_real_run_from_its_directory(small_run, tmp_path, capsys):
    run = shutil.copytree(small_run, tmp_path / "run")
    assert main(["report", str(run), "--points", "30"]) == 0
    said = capsys.readouterr()
    assert said.out == f"report: {run / 'report.html'}\n"
    assert "momatch report: run: computing t-SNE of" in said.err
    source = (run / "report.html").read_text(encoding="utf-8")
    assert MARKER in source
    assert "of test images classified correctly" in source
    # Again: the page is its own to replace.
    assert report_run(Run.load(run)) == run / "report.html"


def test_options_reach_the_work(tmp_path, made_up):
    (run,) = folders(tmp_path, "run")
    out = tmp_path / "page.html"
    words = ["--out", str(out), "--outliers", "mnist", "--outliers", "x y", "--data-dir", "d", "--points", "7"]
    assert main(["report", run, *words]) == 0
    assert out.exists()
    assert not (tmp_path / "run" / "report.html").exists()
    options = made_up[0][1]
    assert {key: options[key] for key in ("outliers", "data_dir", "most_points", "name")} == {
        "outliers": ("mnist", "x y"),
        "data_dir": "d",
        "most_points": 7,
        "name": "run",
    }


def test_several_runs_make_one_page_here(tmp_path, monkeypatch, made_up, capsys):
    runs = folders(tmp_path, "a/run", "b/run", "bad", "empty")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *runs]) == 0
    said = capsys.readouterr()
    assert said.out == "report: report.html\n"
    assert "momatch report: warning: " in said.err
    assert "A line is damaged." in said.err
    assert "a/run: looking" in said.err
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "4 runs: 95.0" in source
    assert "b/run" in source


def test_nothing_to_show_is_an_error_and_no_page(tmp_path, made_up, capsys):
    (run,) = folders(tmp_path, "empty")
    assert main(["report", run]) == 1
    said = capsys.readouterr().err
    assert "The directory is empty." in said
    assert "there is nothing to show" in said
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "got no run"),
        (["missing"], "missing: there is no such directory"),
        (["file"], "file: got a file"),
        (["run", "--points", "0"], "--points: got 0"),
        (["run", "--out", "missing/page.html"], "in an existing directory"),
        (["run", "--out", "file"], "is not a momatch report"),
        (["run", "--out", "run"], "got a directory"),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(tmp_path, monkeypatch, made_up, capsys, words, message):
    folders(tmp_path, "run")
    (tmp_path / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 1
    assert message in capsys.readouterr().err
    assert made_up == []
    assert (tmp_path / "file").read_text() == "mine"


def test_names_differ(tmp_path):
    a, b, c = (tmp_path / name for name in ("a/run", "b/run", "other"))
    assert unique_names([a, c]) == ["run", "other"]
    assert unique_names([a, b]) == ["a/run", "b/run"]
    assert unique_names([a, a, c]) == ["run", "run (2)", "other"]
    assert unique_names([a, b, a]) == ["run", "run (2)", "run (3)"]


def test_what_counts_as_something():
    assert has_content(make_report())
    assert not has_content(nothing())
