"""The manifest of answers: on disk at once, edited by a person, never lost."""

import csv
import errno

import pytest

from momatch.data.report import DataError, LoadOptions
from momatch.data.sources.manifest import read_manifest
from momatch.labeling import answers as room
from momatch.labeling.answers import Answer, Answers, check_class_name

FILES = ("a.png", "b.png", "c,d.png")


def make(tmp_path, labels=("cat", "", "")) -> Answers:
    return Answers(tmp_path / "labels.csv", FILES, labels)


def rows(tmp_path) -> dict[str, dict[str, str]]:
    with open(tmp_path / "labels.csv", newline="", encoding="utf-8") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def test_all_images_are_listed_from_the_start(tmp_path):
    answers = make(tmp_path)
    assert [row["label"] for row in rows(tmp_path).values()] == ["cat", "", ""]
    assert answers["a.png"] == Answer("cat", "labelled")
    assert answers["b.png"] == Answer()


def test_an_answer_is_on_disk_when_it_is_given(tmp_path):
    answers = make(tmp_path)
    answers.give({"b.png": Answer("dog", "labelled", "cat"), "c,d.png": Answer("", "none")})
    found = rows(tmp_path)
    assert (found["b.png"]["label"], found["b.png"]["guess"]) == ("dog", "cat")
    assert (found["c,d.png"]["label"], found["c,d.png"]["status"]) == ("", "none")
    again = make(tmp_path)
    assert again["b.png"] == Answer("dog", "labelled", "cat")
    assert again["c,d.png"].status == "none"


def test_undo_takes_back_what_was_given_together_even_after_a_restart(tmp_path):
    answers = make(tmp_path)
    answers.give({"b.png": Answer("dog", "labelled")})
    answers.give({"a.png": Answer("dog", "labelled"), "c,d.png": Answer("", "skipped")})
    again = make(tmp_path)
    assert set(again.undo()) == {"a.png", "c,d.png"}
    assert again.undo() == ("b.png",)
    assert again.undo() == ()
    assert again["b.png"] == again["a.png"] == Answer()


def test_undo_passes_over_images_that_are_gone(tmp_path):
    answers = make(tmp_path)
    answers.give({"a.png": Answer("dog", "labelled")})
    answers.give({"b.png": Answer("dog", "labelled")})
    without = Answers(tmp_path / "labels.csv", ("a.png", "c,d.png"), ("", ""))
    assert without.undo() == ("a.png",)
    assert without.undo() == ()
    assert rows(tmp_path)["b.png"]["label"] == "dog", "kept as it is"


def test_none_of_these_is_a_decision_and_skipped_is_not(tmp_path):
    answers = make(tmp_path)
    answers.give({"b.png": Answer("", "none", "cat")})
    answers.give({"c,d.png": Answer("", "skipped", "cat")})
    assert answers.last_decided() == [Answer("", "none", "cat")]


def test_an_edit_by_hand_is_read_and_other_columns_are_kept(tmp_path):
    answers = make(tmp_path)
    (tmp_path / "labels.csv").write_text("path,label,split,note\nb.png,dog,test,mine\na.png,-1,,\n")
    assert answers.refresh()
    assert answers["b.png"].label == "dog"
    assert answers["a.png"] == Answer()
    assert answers["c,d.png"] == Answer()
    answers.give({"c,d.png": Answer("cat", "labelled")})
    found = rows(tmp_path)
    assert (found["b.png"]["split"], found["b.png"]["note"]) == ("test", "mine")
    assert found["c,d.png"]["label"] == "cat"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file,label\na.png,cat\n", "expected path and label"),
        (b"path,label\na.png\n", "line 2: expected 2 fields"),
        (b"path,label\n\xff,cat\n", "UTF-8"),
        (b'path,label\n"a.png,cat\n', "repair it"),
        (b"path,label\na.png,None\n", "expected another name"),
        (
            b"path,label\na.png,cat\nb.png,\n./a.png,dog\n",
            r"lines 2 and 4 give .*different labels \('cat' and 'dog'\); keep",
        ),
        (b"path,label,note\na.png,cat,mine\na.png,cat,yours\n", "lines 2 and 3 give a.png different values of note"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_not_overwritten(tmp_path, content, message):
    answers = make(tmp_path)
    (tmp_path / "labels.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        answers.give({"b.png": Answer("dog", "labelled")})
    assert (tmp_path / "labels.csv").read_bytes() == content


def test_a_plain_repeat_is_dropped(tmp_path):
    (tmp_path / "labels.csv").write_text("path,label\n./b.png,dog\nb.png, dog\na.png,-1\na.png,\n")
    answers = make(tmp_path)
    assert answers["b.png"].label == "dog"
    assert answers["a.png"] == Answer()
    assert sorted(rows(tmp_path)) == ["./b.png", "a.png", "c,d.png"]


def test_the_first_guess_stays_whatever_happens_to_the_answer(tmp_path):
    answers = make(tmp_path)
    answers.give({"b.png": Answer("dog", "labelled", "cat")})
    answers.undo()
    assert answers["b.png"] == Answer("", "", "cat")
    assert not answers.last_decided()
    for guess in ("dog", ""):  # of a model that knows the answer
        answers.give({"b.png": Answer("dog", "labelled", guess)})
        assert answers.last_decided() == [Answer("dog", "labelled", "cat")]


def test_a_full_disk_changes_nothing(tmp_path, monkeypatch):
    answers = make(tmp_path)

    def full(contents):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(room, "replace_files", full)
    with pytest.raises(OSError, match="space"):
        answers.give({"b.png": Answer("dog", "labelled")})
    assert answers["b.png"] == Answer()


@pytest.mark.parametrize("name", ["", "  ", "none", "NaN", "-1", "a\nb", "x" * 101, "cat"])
def test_names_that_a_manifest_cannot_hold_are_refused(name):
    with pytest.raises(ValueError, match="class: got"):
        check_class_name(name, ["cat"])


def test_names_with_signs_survive_the_way_to_training(tmp_path):
    names = ['"quoted", with commas', "</script><img src=x onerror=alert(1)>", "Zürich 東京 🐱"]
    for file in FILES:
        (tmp_path / file).write_bytes(b"")
    answers = make(tmp_path, ("", "", ""))
    answers.give(
        {file: Answer(check_class_name(name, []), "labelled") for file, name in zip(FILES, names, strict=True)}
    )
    assert set(read_manifest(tmp_path / "labels.csv", LoadOptions()).class_names) == set(names)


def test_file_names_that_a_manifest_cannot_hold_are_refused(tmp_path):
    with pytest.raises(DataError, match="rename it"):
        Answers(tmp_path / "labels.csv", ("\udcff.png",), ("",))
