"""The report: a whole page on its own, safe against any name, whatever of the run is missing."""

import os
from html.parser import HTMLParser

import pytest
import torch

from momatch import AAGMM, Classifier, KMeans, Linear
from momatch.config import TrainConfig
from momatch.evaluate import Outputs, evaluate_outputs
from momatch.report import write_report
from momatch.report.classes import confused_pairs
from momatch.report.pictures import project
from momatch.report.svg import class_color, ticks
from momatch.report.words import duration
from momatch.training.model_files import ModelFacts, save_model
from momatch.training.run import Run
from momatch.training.run_directory import RunDirectory

D = 5
VOID = {"meta", "br"}
RESULT = {
    "test_accuracy": 0.9134,
    "best_test_accuracy": 0.9277,
    "utilisation": 0.8125,
    "pseudo_label_accuracy": 0.9631,
    "steps": 600,
    "seconds": 47.3,
    "images_per_second": 7634.2,
    "peak_memory_mb": 512.3,
    "skipped_steps": 3,
    "versions": {"torch": "2.13.0", "<b>odd</b>": "&1"},
    "seed": 0,
}


class Page(HTMLParser):
    """Parses a page, fails where elements do not close, and keeps its text and tags."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def make_metrics(steps=600, interval=20):
    lines = []
    for step in range(interval, steps + 1, interval):
        share = step / steps
        line = {
            "step": step,
            "loss": 3 - share,
            "supervised_loss": 2 - share,
            "unlabeled_loss": 1.5,
            "fairness_loss": 0.0,
        }
        line |= {"constraint_loss": 0.5, "utilisation": share, "pseudo_label_accuracy": None if step < 60 else 0.9}
        if step % 100 == 0:
            line["test_accuracy"] = 0.5 + 0.4 * share
        lines.append(line)
    return lines


def make_facts(names):
    return ModelFacts(
        backbone="mlp",
        head="aagmm",
        embedding_dim=D,
        class_names=tuple(names),
        in_channels=1,
        image_size=(4, 4),
        normalization=((0.5,), (0.5,)),
        dataset="made up",
    )


class FakeRun(Run):
    """A run that is nowhere on disk."""

    def __init__(self, directory, config, result, names, classifier, lines):
        self.directory, self.config, self.result, self._lines = directory, config, result, lines
        self._model = (classifier, make_facts(names), None)

    def metrics(self):
        return self._lines


def make_run(directory, names=("cat", "dog", "owl"), head=AAGMM, result=RESULT, metrics=None, **settings):
    classifier = Classifier.build(
        "mlp", num_classes=len(names), embedding_dim=D, in_channels=1, image_size=4, normalization=((0.5,), (0.5,))
    )
    classifier.head = head(D, len(names))
    lines = make_metrics() if metrics is None else metrics
    return FakeRun(directory, TrainConfig(**settings).resolved(), result, names, classifier, lines)


def make_test_data(run, n=120):
    K, head = len(run.class_names), run.classifier.head
    labels = torch.randint(0, K, (n,))
    with torch.no_grad():
        z = 4 * torch.randn(K, D)[labels] + torch.randn(n, D)
        outputs = Outputs(z, head(z))
    return {"evaluation": evaluate_outputs(head, outputs, labels), "outputs": outputs, "labels": labels}


def read(path):
    return Page(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("head", [AAGMM, KMeans, Linear])
def test_a_finished_run_is_told_in_full(tmp_path, head):
    run = make_run(tmp_path, head=head, lr=0.07)
    data = make_test_data(run)
    path = write_report(run, **data)
    assert path == tmp_path / "report.html"
    page, evaluation = read(path), data["evaluation"]
    assert f"{100 * evaluation.accuracy:.1f} % of test images classified correctly" in page.text
    figures = (
        "92.8 %",
        "81.2 %",
        "96.3 %",
        "47.3 s",
        "7,634",
        "512 MB",
        f"{100 * evaluation.ece:.1f} %",
        "2.13.0",
        "0.07",
    )
    for figure in figures:
        assert figure in page.text, figure
    assert "Best test accuracy (oracle)" in page.text
    assert "3 steps were skipped" in page.text
    assert ("Compactness" in page.text) == (head is not Linear)
    assert ("this head has no centers" in page.text) == (head is Linear)
    assert page.count("svg") == 5  # three charts of curves, calibration, embeddings
    assert page.count("polyline") == 3 + 2 + 1  # no curve for the fairness loss, which was always 0
    for name in run.class_names:
        assert name in page.text


def test_a_run_on_disk_before_and_after_it_finished(tmp_path):
    fake, folder = make_run(tmp_path), tmp_path / "run"
    with RunDirectory.create(folder, fake.config) as files:
        files.append_metrics(make_metrics()[0])
        assert "This run has not finished" in read(write_report(Run.load(folder))).text
        with pytest.raises(ValueError, match="the run is not finished"):
            write_report(Run.load(folder), **make_test_data(fake))
        save_model(folder, fake.classifier, make_facts(fake.class_names), None)
        files.write_result(RESULT)
    page = read(write_report(Run.load(folder), **make_test_data(fake)))
    assert "owl" in page.text
    assert "Best test accuracy (oracle)" in page.text


def test_the_page_needs_nothing_but_itself(tmp_path):
    run = make_run(tmp_path)
    path = write_report(run, **make_test_data(run))
    source = path.read_text(encoding="utf-8").lower()
    for reference in (
        "http:",
        "https:",
        "//",
        "url(",
        "@import",
        "src=",
        "href",
        "<link",
        "<script",
        "<iframe",
        "<img",
    ):
        assert reference not in source, reference
    assert "prefers-color-scheme: dark" in source
    assert source.startswith("<!doctype html>")


def test_names_are_text_and_never_markup(tmp_path):
    evil = '</td><script>alert("1")</script><b a=\'x'
    run = make_run(tmp_path, names=(evil, "a & b", "{style}", "😀" * 40), dataset=evil, backbone="<i>net</i>:make")
    page = read(write_report(run, **make_test_data(run)))
    assert {"script", "i"} & {tag for tag, _ in page.tags} == set()
    assert not [attributes for _, attributes in page.tags if any(name.startswith("on") for name in attributes)]
    assert evil in page.text
    assert "{style}" in page.text
    assert "<b>odd</b>" in page.text


def test_a_name_that_is_no_text_does_not_stop_the_report(tmp_path):
    run = make_run(tmp_path, names=("caf\udce9", "b"))
    assert "caf?" in read(write_report(run, **make_test_data(run))).text


def test_what_is_missing_is_said(tmp_path):
    page = read(write_report(make_run(tmp_path, result=None, metrics=[])))
    assert "This run has not finished" in page.text
    assert page.text.count("Nothing was recorded.") == 3
    assert page.text.count("There is no evaluation on labelled test images") == 3
    assert "there is no map of embeddings" in page.text
    assert "No figures yet" in page.text
    assert page.count("svg") == 0


def test_figures_that_are_none_or_no_numbers_are_left_out(tmp_path):
    result = dict.fromkeys(RESULT) | {"compactness": float("nan"), "steps": 20, "skipped_steps": 0}
    lines = [{"step": 20, "supervised_loss": float("nan"), "utilisation": float("inf")}, {"step": 40}, {}]
    page = read(write_report(make_run(tmp_path, result=result, metrics=lines)))
    assert "nan" not in page.text.lower()
    assert "skipped because" not in page.text
    assert "Training finished; there were no labelled test images" in page.text
    assert page.text.count("Nothing was recorded.") == 3


def test_unlabelled_test_images_are_coloured_by_prediction(tmp_path):
    run = make_run(tmp_path)
    outputs = make_test_data(run)["outputs"]
    for labels in (None, torch.full((len(outputs),), -1)):
        assert "coloured by predicted class" in read(write_report(run, outputs=outputs, labels=labels)).text
    some = torch.full((len(outputs),), -1).index_fill(0, torch.arange(5), 1)
    page = read(write_report(run, outputs=outputs, labels=some))
    assert "coloured by true class" in page.text
    assert page.count("path") == 2 + 2 * 3  # dots of the unlabelled and of one class, and three crosses of two strokes


@pytest.mark.parametrize("K", [2, 20, 21, 100])
def test_any_number_of_classes(tmp_path, K):
    run = make_run(tmp_path, names=[f"class-{k}" for k in range(K)])
    data = make_test_data(run, n=10 * K)
    page = read(write_report(run, **data))
    has_matrix = any(attributes.get("class") == "matrix" for _, attributes in page.tags)
    assert has_matrix == (K <= 20)
    assert ("The 20 weakest of" in page.text) == (K > 20)
    assert len({class_color(k) for k in range(-1, K)}) == K + 1


def test_confusion_cells_hold_the_counts(tmp_path):
    run = make_run(tmp_path, names=("a", "b"), head=Linear)
    log_joint = torch.tensor([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 4)
    outputs = Outputs(torch.randn(11, D), log_joint)
    evaluation = evaluate_outputs(run.classifier.head, outputs, torch.tensor([0] * 5 + [1] * 2 + [0] * 1 + [1] * 3))
    page = read(write_report(run, evaluation=evaluation))
    assert "a 5 1 b 2 3" in page.text
    assert "b was taken for a : 2 times" in page.text
    assert "It was wrong on 3 of 11 test images." in page.text
    assert confused_pairs(evaluation.confusion) == [(2, 1, 0), (1, 0, 1)]


def test_a_class_without_test_images_and_a_faultless_model(tmp_path):
    run = make_run(tmp_path, head=Linear)
    outputs = Outputs(torch.randn(4, D), torch.eye(3)[[0, 0, 1, 1]] * 50)
    evaluation = evaluate_outputs(run.classifier.head, outputs, torch.tensor([0, 0, 1, 1]))
    page = read(write_report(run, evaluation=evaluation))
    assert "1 of 3 classes have no test image." in page.text
    assert "No test image was taken for another class." in page.text
    assert "weakest" not in page.text


def test_one_sample_and_one_dimension(tmp_path):
    run = make_run(tmp_path)
    run.classifier.head = AAGMM(1, 3)
    page = read(write_report(run, outputs=Outputs(torch.zeros(1, 1), torch.zeros(1, 3))))
    assert "1 test images" in page.text
    nothing = Outputs(torch.full((2, 1), torch.nan), torch.zeros(2, 3))
    assert "No embedding is finite" in read(write_report(run, outputs=nothing)).text


def test_long_runs_and_large_test_sets_stay_small(tmp_path):
    run = make_run(tmp_path, metrics=make_metrics(steps=200_000, interval=40))
    path = write_report(run, **make_test_data(run, n=20_000))
    assert path.stat().st_size < 200_000
    assert "3,000 of 20,000 test images" in read(path).text


def test_what_does_not_fit_is_refused(tmp_path):
    run, other = make_run(tmp_path), make_run(tmp_path, names=("a", "b"))
    data, foreign = make_test_data(run), make_test_data(other)
    for arguments, message in (
        ({"evaluation": foreign["evaluation"]}, "evaluation: got 2 classes, expected the 3"),
        ({"outputs": foreign["outputs"]}, "outputs: got 2 classes, expected the 3"),
        ({"labels": data["labels"]}, "expected outputs as well"),
        ({"outputs": data["outputs"], "labels": data["labels"][:5]}, "one for each of the 120 outputs"),
    ):
        with pytest.raises(ValueError, match=message):
            write_report(run, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    path = write_report(run)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(make_run(tmp_path, seed=7))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# --- Parts ---


def test_projection_is_along_the_largest_variance():
    z = torch.randn(200, D).double() * torch.tensor([1.0, 9.0, 1.0, 5.0, 1.0])
    flat, centers, explained = project(z, z[:3])
    torch.testing.assert_close(centers, flat[:3])
    values = torch.linalg.svdvals(z - z.mean(0)).square()
    assert explained == pytest.approx(float(values[:2].sum() / values.sum()))
    torch.testing.assert_close(flat.square().sum(0), values[:2])
    # The picture does not turn round when samples come in another order.
    order = torch.randperm(200)
    torch.testing.assert_close(project(z[order], z[:3])[0], flat[order])


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.0, 3.2), (-0.004, 0.02), (0.0, 1e6), (0.0, 1e-9), (0.0, 600.0)]
)
def test_ticks_are_few_round_numbers_in_range(low, high):
    values = ticks(low, high)
    assert 3 <= len(values) <= 7
    assert all(low - 1e-9 * high <= value <= high * (1 + 1e-9) for value in values)


def test_durations_as_a_person_says_them():
    assert [duration(seconds) for seconds in (3.21, 59.94, 61.0, 7325.0)] == [
        "3.2 s",
        "59.9 s",
        "1 min 1 s",
        "2 h 2 min",
    ]


def test_settings_that_do_not_change_the_result_are_no_difference(tmp_path):
    page = read(write_report(make_run(tmp_path, run_dir="elsewhere", keep_checkpoints=9)))
    assert "All settings are the defaults." in page.text
    assert "elsewhere" in page.text
