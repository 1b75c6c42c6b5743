"""Collecting from directories that are empty, half done or damaged: what is left is shown, the rest named, nothing raises."""

import json
import random
import shutil
from dataclasses import replace

import pytest

from momatch.models.model_files import load_model, save_model
from momatch.report import latent_map
from momatch.report.collect import collect
from momatch.report.run_report import Missing, RunReport
from momatch.storage.checkpoint import load_newest, save_checkpoint
from momatch.storage.tensor_files import encode
from momatch.training.run import Run
from tests.report.small_runs import NAMES, train, write_dataset

#: Shape checks take a quarter of the time here, and damaged files have no shapes.
pytestmark = pytest.mark.usefixtures("unchecked")

PARTS = ("evaluation", "points", "clusters", "densities", "mistakes", "outlying")
FILES = ("config.json", "metrics.jsonl", "result.json", "model.json", "model.safetensors")
NEWEST = ("checkpoints/step-00000020/state.json", "checkpoints/step-00000020/state.safetensors")


@pytest.fixture(autouse=True)
def quick_maps(monkeypatch):
    monkeypatch.setattr(latent_map, "tsne", lambda z, start: start)


@pytest.fixture
def half(run_copy):
    """A run that was killed after step 20, where it had saved."""
    for name in ("result.json", "model.json", "model.safetensors"):
        (run_copy / name).unlink()
    shutil.rmtree(run_copy / "checkpoints" / "step-00000040")
    metrics = run_copy / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # a checkpoint is older than the last lines
    return run_copy


def missing_parts(report):
    return [part for part in PARTS if isinstance(getattr(report, part), Missing)]


def remove(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 0x41  # an opening bracket is one no longer
    path.write_bytes(data)


def noise(path):
    path.write_bytes(random.Random(0).randbytes(300))


def other_kind(path):
    path.write_text('{"format": "something else", "version": 1, "step": "x"}\n')


def a_list(path):
    path.write_text("[1, 2]\n")


def folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = (remove, empty, truncate, flip, noise, other_kind, a_list, folder)


# --- Finished runs ---


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_settings(run_copy, damage):
    damage(run_copy / "config.json")
    report = collect(run_copy)
    (problem,) = report.problems
    assert problem.startswith("The settings cannot be read: ")
    assert "config.json" in problem
    assert isinstance(report.config, Missing)
    assert len(report.metrics) == 4
    assert report.result["steps"] == 40
    assert report.class_names == NAMES  # the model knows them
    assert missing_parts(report) == list(PARTS)
    assert report.points.reason == "Without the settings, the dataset of the run is unknown."


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_metrics(run_copy, damage):
    damage(run_copy / "metrics.jsonl")
    report = collect(run_copy, most_points=5)
    assert report.problems
    assert all("metrics" in problem for problem in report.problems)
    assert all(type(line["step"]) is int for line in report.metrics)
    assert len(report.metrics) == {truncate: 2, flip: 3}.get(damage, 0)
    assert missing_parts(report) == []


def test_damaged_lines_of_metrics_are_counted(run_copy):
    path = run_copy / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"step": NaN}\n' + b"\xff\xfe\n" + b'{"step": true}\n' + b"\n" + lines[3])
    report = collect(run_copy, most_points=5)
    assert [line["step"] for line in report.metrics] == [10, 40]
    assert report.problems == (
        f"{path}: skipped 4 damaged lines of 6 (line 2, 3, 4, 5); delete them to silence this warning.",
    )


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_damaged_model_is_replaced_by_the_last_checkpoint(run_copy, name, damage):
    damage(run_copy / name)
    report = collect(run_copy, most_points=5)
    model, source = report.problems
    assert model.startswith("The model cannot be used: ")
    assert name in model
    assert model.endswith(
        f" To rewrite it from the last checkpoint, delete {run_copy / 'result.json'} and run: "
        f"momatch train --resume --run-dir {run_copy}"
    )
    assert source.startswith("This page shows the averaged model at step 40, from ")
    assert missing_parts(report) == []
    assert report.evaluation.accuracy == report.result["test_accuracy"]
    assert report.evaluation.ece == report.result["ece"]
    assert report.densities.log_density.keys() == {"judge", "as trained", "refitted"}
    shutil.rmtree(run_copy / "checkpoints")
    report = collect(run_copy)
    assert report.problems[0].startswith("The model cannot be used: ")
    assert "To rewrite it" not in report.problems[0]
    assert report.problems[1].startswith("There is no model to show: ")
    assert "there is no checkpoint" in report.problems[1]
    assert missing_parts(report) == list(PARTS)
    assert report.class_names == NAMES  # the dataset knows them


def test_an_earlier_checkpoint_is_not_held_against_the_result(run_copy):
    noise(run_copy / "model.json")
    noise(run_copy / "checkpoints/step-00000040/state.json")
    result = run_copy / "result.json"
    result.write_text(result.read_text().replace('"test_accuracy": ', '"test_accuracy": 0.125, "was": ', 1))
    report = collect(run_copy, most_points=5)
    assert len(report.problems) == 3  # the model, where it comes from, the checkpoint
    assert "at step 20" in report.problems[1]
    assert missing_parts(report) == []


def test_the_advice_for_a_damaged_model_is_right(run_copy):
    """It is what the sentence says to do."""
    from momatch.training.fit import fit

    accuracy = Run.load(run_copy).result["test_accuracy"]
    noise(run_copy / "model.safetensors")
    (run_copy / "result.json").unlink()
    fit(replace(Run.load(run_copy).config, resume=True, run_dir=str(run_copy)))
    assert collect(run_copy, most_points=5).problems == ()
    assert Run.load(run_copy).result["test_accuracy"] == accuracy


@pytest.mark.parametrize("damage", [empty, truncate, flip, noise, a_list, folder])
def test_a_damaged_result(run_copy, damage):
    damage(run_copy / "result.json")
    report = collect(run_copy, most_points=5)
    (problem,) = report.problems
    assert problem.startswith("The result cannot be read: ")
    assert "result.json" in problem
    assert "has not finished" not in problem
    assert report.result is None
    assert missing_parts(report) == []


def test_a_result_of_odd_values_is_handed_on(run_copy):
    odd = {"test_accuracy": "much", "steps": None, "seed": [1], "versions": 3}
    (run_copy / "result.json").write_text(json.dumps(odd))
    report = collect(run_copy, most_points=5)
    assert report.result == odd
    assert len(report.problems) == 2  # seed and steps are not those of the settings
    assert missing_parts(report) == []


def test_a_run_that_was_killed_before_its_result_was_written(run_copy):
    (run_copy / "result.json").unlink()
    report = collect(run_copy, most_points=5)
    (problem,) = report.problems
    assert problem == (
        "The run has not finished: its metrics end at step 40 of 40. If it is no longer running, continue it with: "
        f"momatch train --resume --run-dir {run_copy}"
    )
    assert missing_parts(report) == []


def test_what_a_finished_run_does_not_need(run_copy):
    shutil.rmtree(run_copy / "checkpoints")
    (run_copy / "run.log").unlink()
    (run_copy / "run.lock").unlink()
    report = collect(run_copy, most_points=5)
    assert report.problems == ()
    assert missing_parts(report) == []


@pytest.mark.parametrize(("name", "word"), [("config.json", "version 99"), ("model.json", "version 99")])
def test_files_of_another_release(run_copy, name, word):
    path = run_copy / name
    path.write_text(path.read_text().replace('"version": 1', '"version": 99', 1))
    report = collect(run_copy, most_points=5)
    assert f"got format {word}" in report.problems[0]
    assert "release" in report.problems[0]


def test_settings_that_this_release_does_not_know(run_copy):
    path = run_copy / "config.json"
    path.write_text(path.read_text().replace('"seed"', '"sed"', 1))
    report = collect(run_copy)
    assert "got the unknown key 'sed'; did you mean 'seed'?" in report.problems[0]


def test_a_whole_model_file_with_nothing_in_it(run_copy):
    weights, facts = encode("momatch model", {}, {})
    (run_copy / "model.safetensors").write_bytes(weights)
    (run_copy / "model.json").write_bytes(facts)
    report = collect(run_copy, most_points=5)
    assert report.problems[0].startswith("The model cannot be used: model spec: got None")
    assert missing_parts(report) == []


def test_a_backbone_that_raises_what_it_likes(run_copy, tmp_path, monkeypatch):
    (tmp_path / "odd_backbone.py").write_text("raise ZeroDivisionError('boom')\n")
    monkeypatch.syspath_prepend(tmp_path)
    saved = load_model(run_copy)
    spec = replace(saved.spec, backbone="odd_backbone:make")
    save_model(run_copy, saved.classifier, spec, saved.refitted_head)
    report = collect(run_copy, most_points=5, trust_code=True)
    assert "ZeroDivisionError: boom" in report.problems[0]
    assert missing_parts(report) == []  # the checkpoint is read with the network of the settings


@pytest.mark.parametrize("name", [*FILES, "checkpoints/step-00000040/state.json"])
@pytest.mark.parametrize("seed", range(4))
def test_random_damage_never_raises(run_copy, name, seed):
    draw, path = random.Random(f"{name} {seed}"), run_copy / name
    data = bytearray(path.read_bytes())
    for _ in range(1 + 3 * seed):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data[: draw.randrange(len(data))] if seed == 3 else data)
    report = collect(run_copy, most_points=5)
    assert isinstance(report, RunReport)
    assert all(problem.strip() and "\n" not in problem for problem in report.problems)
    if name.startswith("model"):
        assert report.problems


# --- Half-finished runs ---


def test_a_half_finished_run_is_shown_by_its_newest_checkpoint(half):
    report = collect(half, most_points=20)
    far, source = report.problems
    assert far.startswith("The run has not finished: its metrics end at step 30 of 40.")
    assert source == (f"This page shows the averaged model at step 20, from {half / 'checkpoints' / 'step-00000020'}.")
    assert missing_parts(report) == []
    assert report.result is None
    assert report.class_names == NAMES
    # The model is the one that was evaluated while it trained.
    recorded = {line["step"]: line.get("test_accuracy") for line in report.metrics}
    assert report.evaluation.accuracy == recorded[20]
    assert report.densities.log_density.keys() == {"judge", "as trained", "refitted"}


def test_a_half_finished_run_without_refit(tmp_path):
    run = train(tmp_path, refit=False, steps=20)
    for name in ("result.json", "model.json", "model.safetensors"):
        (run / name).unlink()
    assert collect(run, most_points=5).densities.log_density.keys() == {"judge", "as trained"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NEWEST)
def test_no_checkpoint_that_is_whole(half, name, damage):
    damage(half / name)
    report = collect(half)
    far, reason = report.problems
    assert far.startswith("The run has not finished")
    assert reason.startswith("There is no model to show: ")
    assert "expected an intact one" in reason
    assert missing_parts(report) == list(PARTS)
    assert report.points.reason == "There is no model to show (see the problems of this run)."
    assert len(report.metrics) == 3
    assert report.class_names == NAMES


def test_a_damaged_checkpoint_gives_way_to_the_one_before(run_copy, half):
    newer = half / "checkpoints" / "step-00000030"
    shutil.copytree(half / "checkpoints" / "step-00000020", newer)
    report = collect(half, most_points=5)
    assert len(report.problems) == 3
    assert "at step 20" in report.problems[1]
    assert report.problems[2].startswith(f"A checkpoint cannot be used: {newer}: got the state of step 20")
    assert missing_parts(report) == []


def test_a_run_before_its_first_step(half):
    checkpoint = load_newest(half / "checkpoints")
    shutil.rmtree(half / "checkpoints")
    (half / "metrics.jsonl").unlink()
    save_checkpoint(half / "checkpoints", 0, checkpoint.tensors, checkpoint.facts)
    report = collect(half)
    assert "its metrics end at step 0 of 40" in report.problems[0]
    assert "the checkpoint is from before the first step; let the run continue" in report.problems[1]
    (half / "checkpoints" / "step-00000010").mkdir()
    assert "before the first step; a newer one cannot be used: " in collect(half).problems[1]
    assert missing_parts(report) == list(PARTS)


def test_settings_alone(half):
    shutil.rmtree(half / "checkpoints")
    for name in ("metrics.jsonl", "run.log", "run.lock"):
        (half / name).unlink()
    report = collect(half)
    assert len(report.problems) == 2
    assert "there is no checkpoint" in report.problems[1]
    assert report.class_names == NAMES


def test_a_checkpoint_of_other_data_or_another_network_is_not_shown(half, tmp_path):
    config, record = half / "config.json", half / "data.json"
    text, recorded = config.read_text(), record.read_text()
    other = write_dataset(tmp_path / "other.npz", seed=9)
    record.write_text(recorded.replace(Run.load(half).config.dataset, str(other)))
    assert "data differ from what the run" in collect(half).problems[1]
    record.write_text(recorded)
    for old, new, word in (
        ('"embedding_dim": 4', '"embedding_dim": 3', "checkpoint: classifier does not match the config"),
        ('"optimizer": "sgd"', '"optimizer": "adamw"', "with another optimiser"),
    ):
        assert old in text
        config.write_text(text.replace(old, new))
        report = collect(half)
        assert word in report.problems[1]
        assert missing_parts(report) == list(PARTS)


def test_half_finished_and_the_dataset_gone(half, tmp_path):
    record = half / "data.json"
    record.write_text(record.read_text().replace(Run.load(half).config.dataset, str(tmp_path / "gone.npz")))
    report = collect(half)
    assert len(report.problems) == 2
    assert "gone.npz" in report.problems[1]
    assert report.class_names == ()
    assert missing_parts(report) == list(PARTS)


def test_why_a_run_stopped_is_told(half):
    (half / "run.log").write_bytes(b"2024-01-01T00:00:00+00:00 begun\n2024 stopped: loss was not finite \xff here\n")
    assert collect(half, most_points=5).problems[1] == "The last line of run.log says: loss was not finite \ufffd here."
    (half / "run.log").write_bytes(b"2024 stopped: once\n2025 resumed\n")
    assert "run.log" not in " ".join(collect(half, most_points=5).problems)


# --- No run at all ---


def test_an_empty_directory(tmp_path):
    report = collect(tmp_path)
    assert report.problems == (
        f"{tmp_path}: the directory is empty. Pass a run directory, as printed by momatch train.",
    )
    assert isinstance(report.config, Missing)
    assert (report.result, report.metrics, report.class_names) == (None, [], ())
    assert missing_parts(report) == list(PARTS)


def test_a_directory_that_is_no_run(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    (tmp_path / "checkpoints").write_bytes(b"a file of this name")
    report = collect(tmp_path)
    assert report.problems == (f"The settings cannot be read: {tmp_path}: no config.json, expected a run directory.",)
    assert missing_parts(report) == list(PARTS)


def test_names_with_odd_letters(trained_run, tmp_path):
    odd = tmp_path / "a b's <run> %s {x}\n"
    shutil.copytree(trained_run, odd)
    (odd / "result.json").unlink()
    report = collect(odd, most_points=5)
    assert report.name == odd.name
    assert "'\"'\"'" in report.problems[0]  # quoted for a shell
