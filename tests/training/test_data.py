"""What a run was trained on is written with it, and read from there by whatever looks at it later."""

import json
from dataclasses import replace

import pytest
import torch

from momatch import Dataset, Run, Split, TrainConfig, evaluate_run, fit, load_dataset, report_run
from momatch.inference.export.parity import own_images
from momatch.report.collect import collect
from momatch.report.run_report import Missing
from momatch.storage.data_record import read_data_record
from momatch.training.data import load_run_data


def trained(directory, dataset=None, **settings):
    small = {"steps": 2, "device": "cpu", "progress": False, "eval_interval": 0, "run_dir": str(directory)}
    return fit(TrainConfig(**{**small, **settings}), dataset)


@pytest.fixture(scope="module")
def small_digits():
    """A Dataset at its own 8 pixels, where training by name enlarges the digits to 16."""
    return load_dataset("digits")


@pytest.fixture(scope="module")
def on_object(tmp_path_factory, small_digits):
    return trained(tmp_path_factory.mktemp("object"), small_digits)


@pytest.fixture(scope="module")
def renamed(small_digits):
    return replace(small_digits, name="mine")


@pytest.fixture(scope="module")
def on_renamed(tmp_path_factory, renamed):
    return trained(tmp_path_factory.mktemp("renamed"), renamed)


def test_record_says_what_was_loaded_and_how(tmp_path, on_object, small_digits):
    run = trained(tmp_path / "run")
    record = read_data_record(run.directory)
    assert (record.source, record.image_size, record.given) == ("digits", 16, False)
    assert (record.contents, record.train, record.test) == ("images: 16x16, gray, uint8", 1297, 500)
    assert record.class_names == tuple("0123456789")
    loaded = load_run_data(run.directory)
    assert loaded.digest() == record.digest == load_dataset("digits", size=16).digest()
    own = read_data_record(on_object.directory)
    assert (own.image_size, own.given, own.digest) == (8, True, small_digits.digest())
    assert str(tmp_path) not in json.dumps(json.loads((run.directory / "data.json").read_text()))


def test_a_dataset_that_was_handed_over_is_evaluated_as_it_was(on_object, small_digits):
    assert on_object.config.image_size == 8
    wanted = on_object.result["test_accuracy"]
    assert evaluate_run(on_object)["accuracy"] == wanted
    assert evaluate_run(on_object, dataset=small_digits)["accuracy"] == wanted
    assert evaluate_run(Run.load(on_object.directory), dataset="digits")["accuracy"] == wanted
    assert collect(on_object.directory).evaluation.accuracy == wanted
    images = own_images(on_object)
    assert images.shape[1:] == (1, 8, 8)


def test_without_the_dataset_a_run_says_that_it_needs_it(on_renamed, renamed):
    needed = (
        r"neither a built-in dataset nor an existing path; in Python, pass the Dataset it was trained on \(dataset="
    )
    with pytest.raises(ValueError, match=needed):
        evaluate_run(on_renamed)
    assert evaluate_run(on_renamed, dataset=renamed)["accuracy"] == on_renamed.result["test_accuracy"]
    findings = collect(on_renamed.directory)
    assert isinstance(findings.evaluation, Missing)
    assert any("pass the Dataset" in problem for problem in findings.problems)
    assert collect(on_renamed.directory, dataset=renamed).evaluation.accuracy == on_renamed.result["test_accuracy"]
    assert report_run(on_renamed, dataset=renamed).exists()
    assert own_images(on_renamed) is None


def test_data_that_have_changed_are_refused(tmp_path, small_digits):
    images, labels = small_digits.train.images, small_digits.train.labels
    changed = Dataset("digits", small_digits.class_names, Split(images.flip(-1), labels), small_digits.test)
    run = trained(tmp_path, changed)
    with pytest.raises(ValueError, match=r"digits: data differ from what the run in .* was trained on"):
        evaluate_run(run)
    assert evaluate_run(run, dataset=changed)["accuracy"] == run.result["test_accuracy"]
    # Named, the dataset is taken as it is now.
    assert evaluate_run(run, dataset="digits")["n"] == 500
    findings = collect(run.directory, dataset=small_digits)
    assert any("data differ from what the run" in problem for problem in findings.problems)


def test_another_dataset_object_is_evaluated_by_class_names(on_object, small_digits):
    few = torch.arange(50)
    other = Dataset(
        "few", small_digits.class_names, Split(small_digits.test.images[few], small_digits.test.labels[few]), None
    )
    found = evaluate_run(on_object, dataset=other)
    assert (found["dataset"], found["images"], found["n"]) == ("few", "all labelled images", 50)


def test_a_run_without_a_record_is_refused(tmp_path, on_object):
    with pytest.raises(
        ValueError, match=r"data.json: there is no such file, so the training data of the run are unknown"
    ):
        read_data_record(tmp_path)
    (tmp_path / "data.json").write_text('{"format": "momatch data", "version": 9}')
    with pytest.raises(ValueError, match="version 9, expected 'momatch data', version 1"):
        read_data_record(tmp_path)
    (tmp_path / "data.json").write_text('{"format": "momatch data", "version": 1, "source": "x"}')
    with pytest.raises(ValueError, match="the file is damaged"):
        read_data_record(tmp_path)


def test_digest_tells_datasets_apart(small_digits):
    digest = small_digits.digest()
    assert replace(small_digits, name="other").digest() == digest
    swapped = replace(small_digits, class_names=tuple("1023456789"))
    without_test = replace(small_digits, test=None)
    labels = small_digits.train.labels.clone()
    labels[-1] = -1
    relabelled = replace(small_digits, train=Split(small_digits.train.images, labels))
    assert len({digest, *(other.digest() for other in (swapped, without_test, relabelled))}) == 4


def test_two_datasets_of_one_name_are_two_runs(tmp_path, monkeypatch, small_digits):
    monkeypatch.chdir(tmp_path)
    other = replace(small_digits, train=Split(small_digits.train.images.flip(-1), small_digits.train.labels))
    small = TrainConfig(steps=2, device="cpu", progress=False, eval_interval=0)
    first, second = fit(small, small_digits), fit(small, other)
    assert first.directory != second.directory
    assert fit(replace(small, resume=True), small_digits).directory == first.directory
