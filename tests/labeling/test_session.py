"""A session: what is offered, how the model follows, and what training reads in the end."""

import time
from pathlib import Path

import numpy as np
import pytest

from momatch.data.dataset import UNLABELED
from momatch.data.load import load_dataset
from momatch.labeling.answers import Answer
from momatch.labeling.model import Model
from momatch.labeling.session import ConflictError, Paths
from momatch.suggestions import choice
from tests.labeling.setting import EACH, kind, open_session


def settled(session, patience=120.0):
    """The state once no fit is running or waiting."""
    end = time.monotonic() + patience
    while (state := session.state())["is_fitting"] or not state["is_ready"]:
        assert time.monotonic() < end, "the model takes too long"
        time.sleep(0.02)
    assert not state["problem"]
    return state


@pytest.fixture
def session(photos):
    opened = open_session(photos)
    yield opened
    opened.close()


def test_the_model_follows_the_labels_and_its_guesses_are_counted_before_it_knows(session, photos):
    state = settled(session)
    assert [one["labels"] for one in state["classes"]] == [2, 2], "those of the folders"
    for _ in range(8):
        (offer,) = session.offers(1)
        assert "unlabeled" in offer["name"]
        assert offer["guess"] in ("red", "blue")
        session.answer({offer["row"]: Answer(kind(offer["name"]), "labelled")})
        settled(session)
    state = session.state()
    assert sum(one["labels"] for one in state["classes"]) == 12
    assert state["guesses"] == 8
    assert 5 <= state["right"] <= 8
    dataset = load_dataset(photos / "labels.csv", size=16)
    assert (dataset.train.labels >= 0).sum() == 12
    assert len(dataset.train) == 4 + 2 * EACH


def test_a_grid_is_answered_and_undone_at_once(session):
    settled(session)
    offers = session.offers(6)
    assert len({offer["row"] for offer in offers}) == 6
    session.answer({offer["row"]: Answer(kind(offer["name"]), "labelled") for offer in offers})
    assert sum(one["labels"] for one in session.state()["classes"]) == 10
    again = session.undo()
    assert {offer["row"] for offer in again} == {offer["row"] for offer in offers}
    assert sum(one["labels"] for one in session.state()["classes"]) == 4


def test_a_label_that_the_model_has_seen_gives_no_guess(session):
    settled(session)
    (offer,) = session.offers(1)
    row = offer["row"]
    for _ in range(2):  # the second time the model may have seen the first
        session.answer({row: Answer("red", "labelled")})
        session._refit()
        settled(session)
        assert session._guess(row) == ""


def test_a_wrong_guess_counts_also_after_undo(session):
    settled(session)
    (offer,) = session.offers(1)
    wrong = {"red": "blue", "blue": "red"}[offer["guess"]]
    for _ in range(2):
        session.answer({offer["row"]: Answer(wrong, "labelled")})
        session._refit()
        state = settled(session)
        assert (state["guesses"], state["right"]) == (1, 0)
        session.undo()
        assert session.state()["guesses"] == 0


def test_a_manifest_that_contradicts_itself_is_said_until_it_is_mended(session, photos):
    settled(session)
    good = (photos / "labels.csv").read_text()
    row = next(row for row in range(4 + 2 * EACH) if session.image_path(row).name == "red5.png")
    (photos / "labels.csv").write_text(f"{good}unlabeled/red5.png,green,,,\n")
    bad = (photos / "labels.csv").read_text()
    with pytest.raises(ValueError, match="keep one of them"):
        session.answer({row: Answer("red", "labelled")})
    assert "keep one of them" in session.state()["problem"]
    assert (photos / "labels.csv").read_text() == bad
    (photos / "labels.csv").write_text(good)
    assert not session.state()["problem"]
    session.answer({row: Answer("red", "labelled")})


def test_skipped_and_none_are_not_offered_again(session, photos):
    settled(session)
    first, second = session.offers(2)
    session.answer({first["row"]: Answer("", "skipped"), second["row"]: Answer("", "none")})
    session._refit()
    state = settled(session)
    assert (state["skipped"], state["none"]) == (1, 1)
    rows = {offer["row"] for offer in session.offers(40)}
    assert not rows & {first["row"], second["row"]}
    assert len(rows) == 2 * EACH - 2
    # For training, what was skipped is unlabelled, and what is of no class is not there.
    of_features = load_dataset(photos / "features.npz", labels=photos / "labels.csv")
    for dataset in (load_dataset(photos / "labels.csv", size=16), of_features):
        assert (dataset.train.labels >= 0).sum() == 4
        assert len(dataset.train) == 4 + 2 * EACH - 1
        assert first["name"] in dataset.train.files
        assert dataset.no_class.files == (second["name"],)


def test_what_is_on_the_page_is_not_offered_and_what_was_answered_elsewhere_is_named(session):
    settled(session)
    (first,) = session.offers(1)
    (second,) = session.offers(1, [first["row"]])
    assert first["row"] != second["row"]
    session.answer({first["row"]: Answer("red", "labelled")})
    assert session.state([first["row"], second["row"]])["answered"] == [first["row"]]


def test_a_class_without_a_label_is_there_after_a_restart(photos):
    first = open_session(photos, ("green",))
    first.add_class('a "quoted" <b>class</b>')
    first.close()
    second = open_session(photos)
    second.close()
    names = [one["name"] for one in second.state()["classes"]]
    assert sorted(names) == sorted(["green", "blue", "red", 'a "quoted" <b>class</b>'])


def test_an_edited_manifest_is_followed(session, photos):
    settled(session)
    text = (photos / "labels.csv").read_text()
    (photos / "labels.csv").write_text(text.replace("unlabeled/red5.png,,", "unlabeled/red5.png,green,"))
    state = settled(session)
    assert {"name": "green", "labels": 1} in state["classes"]
    (photos / "labels.csv").write_text("nonsense")
    assert "expected path and label" in session.state()["problem"]
    with pytest.raises(ValueError, match="expected path and label"):
        session.answer({0: Answer("red", "labelled")})


@pytest.mark.parametrize("act", ["answer", "undo", "add_class"])
def test_a_class_that_is_new_in_the_manifest_appears_whatever_comes_first(session, photos, act):
    settled(session)
    row = session.offers(1)[0]["row"]
    text = (photos / "labels.csv").read_text()
    file = "unlabeled/blue5.png" if "red" in session.offers(1)[0]["name"] else "unlabeled/red5.png"
    (photos / "labels.csv").write_text(text.replace(f"{file},,", f"{file},green,"))
    if act == "answer":
        session.answer({row: Answer("green", "labelled")})
    elif act == "undo":
        session.undo()
    else:
        session.add_class("yellow")
    state = settled(session)
    assert {"name": "green", "labels": 1 + (act == "answer")} in state["classes"]
    assert "green" in session.paths.classes.read_text().split()


def test_a_manifest_that_was_repaired_is_no_problem_any_more(session, photos):
    settled(session)
    text = (photos / "labels.csv").read_text()
    (photos / "labels.csv").write_text("nonsense")
    assert session.state()["problem"]
    (photos / "labels.csv").write_text(text)
    settled(session)


def test_an_answer_that_another_page_gave_otherwise_is_not_overwritten(session, photos):
    settled(session)
    first, second = session.offers(2)
    known = {offer["row"]: offer["known"] for offer in (first, second)}
    session.answer({first["row"]: Answer("red", "labelled")}, known)
    before = (photos / "labels.csv").read_bytes()
    with pytest.raises(ConflictError, match=r"answered elsewhere meanwhile \(labelled: red\)"):
        session.answer({first["row"]: Answer("", "none"), second["row"]: Answer("red", "labelled")}, known)
    assert (photos / "labels.csv").read_bytes() == before
    session.undo()
    session.answer({first["row"]: Answer("", "none")}, known)
    with pytest.raises(ConflictError, match="taken back"):
        session.answer({second["row"]: Answer("red", "labelled")}, {second["row"]: "skipped"})


def test_none_of_these_counts_as_a_wrong_guess(session):
    settled(session)
    (offer,) = session.offers(1)
    assert offer["guess"]
    session.answer({offer["row"]: Answer("", "none")})
    state = session.state()
    assert (state["guesses"], state["right"]) == (1, 0)


def test_all_labels_count_also_of_images_that_were_not_drawn(photos, monkeypatch):
    monkeypatch.setattr(choice, "MOST_ROWS", 8)
    dataset = load_dataset(photos / "features.npz")
    size = len(dataset.train)
    drawn = choice.considered_rows(np.full(size, UNLABELED), n=1, seed=0).tolist()
    outside = [row for row in range(size) if row not in drawn]
    labels = np.full(size, UNLABELED)
    for name in ("red", "blue"):
        rows = [row for row in outside if kind(dataset.train.files[row]) == name]
        labels[rows] = dataset.class_names.index(name)
    fit = Model(dataset).fit(labels, 2)
    assert fit.posterior is not None
    assert not np.isnan(fit.posterior).any(), "those that were drawn and those with labels are all images"
    found = [dataset.class_names[fit.guess(row)[0]] for row in drawn]
    assert sum(name == kind(dataset.train.files[row]) for name, row in zip(found, drawn, strict=True)) >= 6
    assert set(fit.queue) <= set(drawn)


@pytest.mark.parametrize("answers", [{999: Answer("red", "labelled")}, {0: Answer("fish", "labelled")}])
def test_unknown_rows_and_classes_are_refused(session, answers):
    with pytest.raises(ValueError, match="expected"):
        session.answer(answers)


def test_commands_are_quoted(session):
    assert all(command.startswith("momatch ") for command in session.paths.commands())


def test_two_folders_of_one_name_do_not_replace_each_others_run(tmp_path, monkeypatch):
    folders = [tmp_path / "here/photos", tmp_path / "here/more/photos", tmp_path / "there/photos"]
    for folder in folders:
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    trained = [Paths(folder, folder / "labels.csv", folder / "features.npz").commands()[0] for folder in folders]
    runs = ["runs/photos", "runs/more-photos", "runs/there-photos"]
    assert [command.split("--run-dir ")[1].split()[0] for command in trained] == runs
    inside = Paths(Path("."), Path("labels.csv"), Path("features.npz"))
    assert "--run-dir runs/here " in inside.commands()[0]


def test_commands_can_be_run_again(session):
    train, predict, _ = session.paths.commands()
    assert train.endswith(" --overwrite")
    assert predict.endswith(" --overwrite")
