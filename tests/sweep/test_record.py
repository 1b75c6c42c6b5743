"""Records come back as they were written; anything else is refused by name."""

import json
import math
from dataclasses import replace

import pytest

from momatch.sweep.record import read_record, write_record
from tests.sweep.records import make_outcome, make_record, table1


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
        (("format",), "momatch run", "not the record of a sweep"),
        (("format",), None, "not the record of a sweep"),
        (("version",), 2, "another version of momatch"),
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


def test_an_outcome_that_stands_twice_is_damage(tmp_path, record):
    path = tmp_path / "r.json"
    write_record(path, record)
    content = json.loads(path.read_text())
    content["outcomes"].append({**content["outcomes"][0], "run": "another"})
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="twice, expected it once; the file is damaged"):
        read_record(path)


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
