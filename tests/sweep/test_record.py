"""Records come back as they were written; anything else is refused by name."""

import json
import math
import subprocess
from dataclasses import replace

import pytest

from momatch.storage.machine import commit, machine_facts
from momatch.sweep.record import read_record, write_record
from tests.sweep.made_records import make_outcome, make_record, table1


@pytest.fixture
def record():
    failed = make_outcome("AAGMM 8-D", "1st", 3, error="killed by signal 9")
    there = make_outcome("AAGMM 8-D", "1st", 4, result={"test_accuracy": 0.1 + 0.2}, evaluation={"mnist": {"n": 3}})
    return make_record("table1", [failed, there], overrides={"steps": 20})


def test_comes_back(tmp_path, record):
    path = tmp_path / "new" / "folders" / "table1.json"
    write_record(path, record)
    assert read_record(path) == record
    assert [entry.name for entry in path.parent.iterdir()] == ["table1.json"]


def test_what_is_not_finite_is_null(tmp_path, record):
    outcome = make_outcome("a", "b", 0, result={"loss": math.nan, "ece": math.inf})
    write_record(tmp_path / "r.json", make_record("table1", [outcome]))
    (read,) = read_record(tmp_path / "r.json").outcomes
    assert read.result["loss"] is None
    assert read.result["ece"] is None


def test_old_one_stands_when_the_new_one_cannot_be_written(tmp_path, record):
    path = tmp_path / "r.json"
    write_record(path, record)
    with pytest.raises(TypeError):
        write_record(path, replace(record, overrides={"steps": object()}))
    assert read_record(path) == record


def _damage(content, keys, value):
    *way, last = keys
    for key in way:
        content = content[key]
    if value is None:
        del content[last]
    else:
        content[last] = value


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("format",), "momatch run", "it is no record"),
        (("format",), None, "it is no record"),
        (("version",), 2, "another momatch"),
        (("grid",), None, "got the keys"),
        (("extra",), 1, "got the keys"),
        (("seeds",), [True], "seed: got a bool"),
        (("seeds",), 3, "seeds: got a int"),
        (("outcomes",), [3], "outcome: got a int"),
        (("outcomes", 0, "seed"), "3", "seed: got a str"),
        (("outcomes", 0, "run"), None, "got the keys"),
        (("outcomes", 0, "result"), {}, "expected one of them"),
    ],
)
def test_damage_is_named(tmp_path, record, keys, value, message):
    path = tmp_path / "r.json"
    write_record(path, record)
    content = json.loads(path.read_text())
    _damage(content, keys, value)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as caught:
        read_record(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"format": "momatch sweep", "version": NaN}'])
def test_no_json_is_damaged(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match="damaged"):
        read_record(tmp_path / "r.json")


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        read_record(tmp_path / "r.json")


def test_every_cut_is_refused(tmp_path):
    path = tmp_path / "r.json"
    write_record(path, table1({("Linear 8-D", "none"): 97.0}, seeds=(0,)))
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 37):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged"):
            read_record(path)


def test_machine_facts_name_no_place(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    arguments = [
        "momatch",
        "sweep",
        "my grid.toml",
        "--data-dir",
        "/secret/place/data",
        "--out=/secret/out",
        "--runs",
        "~/r",
    ]
    facts = machine_facts(arguments, workers=3, threads=1)
    assert facts["command"] == "momatch sweep 'my grid.toml' --data-dir .../data --out=.../out --runs .../r"
    assert {"date", "commit", "cpu", "cores", "system", "python", "torch", "numpy", "momatch"} <= facts.keys()
    assert (facts["workers"], facts["threads"]) == (3, 1)
    assert "secret" not in json.dumps(facts)


def test_commit_is_that_of_tracked_files_only(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    assert commit(folder) is None
    git("init")
    assert commit(folder) is None
    git("add", ".")
    git("commit", "-m", "x")
    clean = commit(folder)
    assert clean is not None
    assert len(clean) >= 7
    (folder / "__init__.py").write_text("changed")
    assert commit(folder) == f"{clean} (modified)"


def test_commit_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) is None
