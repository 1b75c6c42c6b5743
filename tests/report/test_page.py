"""The page: whole on its own, safe against any name, whatever of a run is missing, and small."""

import json
import os
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from momatch.config import TrainConfig
from momatch.report import write_page
from momatch.report.run_report import Missing, Picture
from tests.report.made_up_reports import (
    RESULT,
    make_evaluation,
    make_judged,
    make_metrics,
    make_outlier_list,
    make_points,
    make_report,
    nothing,
)

VOID = {"meta", "input"}
SILENT = {"style", "script"}
EVIL = '</td><script>alert("1")</script><b a=\'x'


class Page(HTMLParser):
    """Parses a page, fails where elements do not close, and keeps its text, its tags and its data."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.texts, self.data = [], [], [], ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []
        self.data = json.loads(self.data)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and self.tags[-1][1].get("id") == "data":
            self.data += data
        elif self.open and self.open[-1] not in SILENT:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def charts(self):
        return [attributes["data-chart"] for _, attributes in self.tags if "data-chart" in attributes]


@pytest.fixture
def page_of(tmp_path):
    return lambda *runs: Page(write_page(runs, tmp_path / "report.html"))


def test_a_finished_run_is_told_in_full(page_of):
    page = page_of(make_report())
    assert "95.0 % of test images classified correctly" in page.text
    assert "3 of 60 test images misclassified." in page.text
    assert "93.0 % of pairs for held-out classes" in page.text
    assert "81.2 % of unlabelled images were used at the end; 96.3 % of their pseudo-labels were correct." in page.text
    assert "3 steps skipped" in page.text
    for metric in ("92.8 %", "81.2 %", "47 s", "7,634", "512 MB", "2.13.0", "0.07", "0.930", "0.410"):
        assert metric in page.text, metric
    assert "median over the classes: order 1 (constrained): 4.0 , order 2: 4.0" in page.text
    assert "The map shows a part of the images." in page.text
    for kind in (
        "curves",
        "thresholds",
        "map",
        "moments",
        "cells",
        "quantiles",
        "confusion",
        "calibration",
        "densities",
    ):
        assert kind in page.charts()
    curves = page.data["curves"]
    assert [chart["title"] for chart in curves] == ["Loss", "Pseudo-labels", "Test accuracy"]
    # No curve for the fairness loss, which was always 0.
    assert [line["name"] for line in curves[0]["lines"]] == ["labelled", "pseudo-labels", "constraint"]
    assert page.data["runs"][0]["thresholds"]["y"][2][-1] == 0.95


def test_the_page_needs_nothing_but_itself(tmp_path):
    source = write_page([make_report()], tmp_path / "report.html").read_text(encoding="utf-8")
    assert source.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in source
    page = Page(tmp_path / "report.html")
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "img", "object", "base"}
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
    styles = source[source.index("<style>") : source.index("</style>")]
    assert styles.count("url(") == styles.count("url(data:image/")
    assert "@import" not in styles


def test_every_link_leads_to_a_section(page_of):
    page = page_of(nothing())
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == [f"#{attributes['id']}" for tag, attributes in page.tags if tag == "section"]


def test_names_are_text_and_never_markup(page_of):
    config = replace(TrainConfig().resolved(), dataset=EVIL, backbone="<i>net</i>:make")
    names = (EVIL, "a & b", "{style}", "😀" * 40)
    page = page_of(make_report(names, name=EVIL, config=config, problems=(EVIL,), notes=(EVIL,)), nothing(EVIL))
    assert "i" not in {tag for tag, attributes in page.tags if "class" not in attributes}
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert not [attributes for _, attributes in page.tags if any(name.startswith("on") for name in attributes)]
    assert EVIL in page.text
    assert "<b>odd</b>" in page.text
    assert page.data["runs"][0]["classes"] == list(names)


def test_a_name_that_is_no_text_does_not_stop_the_page(page_of):
    page = page_of(make_report(("caf\udce9", "b"), name="\udce9"))
    assert "caf?" in page.text
    assert page.data["runs"][0]["classes"][0] == "caf\udce9"


def test_what_is_missing_is_said(page_of):
    page = page_of(nothing())
    assert "There is no readable run here" in page.text
    assert "1 problem with this run The directory is empty." in page.text
    assert page.text.count("There is no model to show.") == 8
    assert "There is no config.json." in page.text
    assert "No training metrics were recorded." in page.text
    assert "There are no metrics yet" in page.text
    assert page.charts() == []


def test_a_run_under_way(page_of):
    half = replace(nothing(), config=TrainConfig().resolved(), metrics=make_metrics()[:7])
    page = page_of(half)
    assert "This run has not finished" in page.text
    assert "it reached step 140 of 1,200" in page.text
    assert page.charts() == ["curves"] * 3


def test_parts_may_be_missing_one_by_one(page_of):
    gone = Missing("This is gone.")
    for part, charts in {
        "evaluation": {"confusion", "calibration"},
        "points": {"map"},
        "clusters": {"moments", "cells", "quantiles"},
        "densities": {"densities"},
        "mistakes": set(),
        "outlying": set(),
        "config": set(),
    }.items():
        page = page_of(make_report(**{part: gone}))
        assert "This is gone." in page.text
        assert not charts & set(page.charts())


def test_metrics_that_are_none_or_no_numbers_are_left_out(page_of):
    result = dict.fromkeys(RESULT) | {"compactness": float("nan"), "steps": 20, "skipped_steps": 0}
    lines = [{"step": 20, "supervised_loss": float("nan"), "utilisation": float("inf")}, {"step": 40}, {}]
    lines += [{"step": 60, "thresholds": [0.1, None, 0.2]}, {"step": "x", "thresholds": []}]
    page = page_of(make_report(result=result, metrics=lines, evaluation=Missing("No labels.")))
    assert "nan" not in page.text.lower()
    assert "skipped because" not in page.text
    assert "Training finished; there were no labelled test images" in page.text
    assert "No training metrics were recorded." in page.text


def test_images_that_are_not_finite_are_drawn_nowhere(page_of):
    points = make_points(3)
    places = points.maps["PCA"].clone()
    places[0, 0], places[1, 1] = torch.nan, torch.inf
    found = page_of(make_report(points=replace(points, maps={"PCA": places}))).data["runs"][0]["map"]
    assert found["maps"]["PCA"]["x"][0] is None
    assert found["maps"]["PCA"]["y"][1] is None


@pytest.mark.parametrize("K", [2, 20, 21, 100])
def test_any_number_of_classes(page_of, K):
    page = page_of(make_report([f"class-{k}" for k in range(K)]))
    assert ("The 20 weakest of" in page.text) == (K > 20)
    assert (f"{K} pairs of classes were confused" in page.text) == (K > 20)
    assert page.data["runs"][0]["thresholds"]["heatmap"] == (K > 20)


def test_a_class_without_test_images_and_a_faultless_model(page_of):
    found = make_evaluation(3)
    confusion = torch.diag(torch.tensor([20, 20, 0]))
    page = page_of(
        make_report(evaluation=replace(found, n=40, accuracy=1.0, per_class=(1.0, 1.0, None), confusion=confusion))
    )
    assert "1 of 3 classes has no test images." in page.text
    assert "No test image was misclassified." in page.text
    assert "weakest" not in page.text


def test_several_runs_side_by_side(page_of):
    other = replace(TrainConfig(lr=0.03, head="linear", run_dir="elsewhere").resolved(), keep_checkpoints=9)
    result = RESULT | {"pseudo_label_accuracy": 0.99, "seconds": 99.0}
    page = page_of(make_report(name="first"), make_report(name="second", config=other, result=result), nothing("third"))
    assert "3 runs: 95.0 % of test images classified correctly" in page.text
    text = page.text[page.text.index("Metrics A B C") :]
    assert "lr 0.07 0.03 -" in text
    assert "head aagmm linear -" in text
    assert "Pseudo-label accuracy 96.3 % 99.0 % -" in text
    assert "AUROC, other, distance (energy for a linear head) 0.410 0.410 -" in text
    # Where and how a run was carried out is no difference to its result.
    assert "keep_checkpoints" not in text[: text.index("Training")]
    loss = next(chart for chart in page.data["curves"] if chart["title"] == "Loss on pseudo-labels")
    assert [line["run"] for line in loss["lines"]] == [0, 1]
    assert page.charts().count("map") == 2


def test_without_a_judge_the_head_scores_outliers(page_of):
    page = page_of(make_report())
    assert "judge" not in page.text.replace("judge stages", "")  # a setting
    assert "come from the refitted mixture if there is one; the centers shown are the learned ones." in page.text
    assert "of each image under the model; outliers should" in page.text
    assert "The score is the distance to the nearest center in standard deviations" in page.text
    assert "(AUROC of the distance to the nearest center of the refitted mixture; 50 % is chance)" in page.text
    assert "outliers.csv" not in page.text
    assert not page.data["runs"][0]["judged"]


def test_a_judge_scores_outliers(page_of):
    page = page_of(make_judged())
    assert "come from the judge, a Gaussian model of what the network saw at several depths. The centers" in page.text
    assert "of each image under the judge or the head; outliers should" in page.text
    assert "The judge's score adds how far an image is from the nearest class" in page.text
    assert "97.0 % of pairs for held-out classes , 97.0 % of pairs for other (AUROC of the judge's score" in page.text
    assert "refitted mixture" not in page.text
    assert "An estimated 7.8 % of the unlabelled pool are outliers." in page.text
    assert "Outliers in the pool, estimated 7.8 %" in page.text
    assert "held-out classes judge other judge held-out classes head as trained" in page.text
    run = page.data["runs"][0]
    assert run["judged"]
    assert list(run["densities"]) == ["judge", "as trained", "refitted"]


def test_runs_with_and_without_a_judge_side_by_side(page_of):
    page = page_of(make_judged(name="first"), make_report(name="second"))
    assert "at several depths; without a judge, from the refitted mixture if there is one." in page.text
    assert "Without a judge, the score is the distance to the nearest center" in page.text
    assert "AUROC, other, the judge's score, or distance (energy for a linear head) 0.970 0.410" in page.text
    both = page_of(make_judged(name="first"), make_judged(name="second"))
    assert "AUROC, other, the judge's score 0.970 0.970" in both.text
    assert "ithout a judge" not in both.text


def test_the_list_of_outliers(page_of):
    page = page_of(make_judged())
    assert "30 images look unlike the labelled ones: P(inlier) is below 0.5. They are listed in" in page.text
    assert "runs/made-up/outliers.csv , most outlying first. The first 20:" in page.text
    assert "Rank Image File or row Predicted Score P(inlier) Outlier 1 pool/<0>.png dog inf < 0.001 no" in page.text
    assert "2 pool/<1>.png dog 75.0 % 19.8 0.010 yes" in page.text
    assert "20 pool/<19>.png" in page.text
    assert "21 pool/<20>.png" not in page.text
    labels = [attributes.get("aria-label") for _, attributes in page.tags]
    assert "number 20 of the list" in labels


def test_lists_of_outliers_of_every_kind(page_of):
    few = make_judged(outlier_list=make_outlier_list(1, images=False, files=False))
    one = page_of(replace(few, result=few.result | {"likely_outliers": 1, "unlabeled_images": 4000}))
    assert (
        "1 image of 400 drawn from the pool looks unlike the labelled ones: P(inlier) is below 0.5. It is" in one.text
    )
    assert "Rank File or row Predicted Score P(inlier) 1 row 0 dog inf < 0.001" in one.text
    none = page_of(make_judged(outlier_list=make_outlier_list(0)))
    assert "No unlabelled image looks unlike the labelled ones" in none.text
    assert "Training left out" not in none.text
    unsure = make_judged(outlier_list=make_outlier_list(0))
    left_out = page_of(replace(unsure, result=unsure.result | {"left_out_share": 0.3}))
    assert "Training left out 30.0 % of the pool as likely outliers, by weaker evidence" in left_out.text
    assert "Left out of training 30.0 %" in left_out.text
    # The list does not need the model, nor the result.
    gone = page_of(make_judged(outlying=Missing("There is no model."), result=None))
    assert "There is no model. 30 images look unlike the labelled ones" in gone.text
    truth = {"true_outlier_share": 0.2, "outlier_precision": 0.875, "outlier_recall": None}
    known = page_of(make_judged(result=RESULT | {"estimated_outlier_share": 0.19} | truth))
    assert "An estimated 19.0 % of the unlabelled pool are outliers (the truth is 20.0 %)." in known.text
    assert "Outlier precision 87.5 %" in known.text
    assert "Outlier recall" not in known.text


def test_the_same_findings_give_the_same_bytes(tmp_path):
    runs = [make_report()]
    paths = [write_page(runs, tmp_path / name) for name in ("a.html", "b.html")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.slow
def test_five_thousand_noisy_images_stay_under_ten_megabytes(tmp_path):
    """The worst case: noise cannot be compressed."""
    points = make_points(10, n=4000, strangers=500)
    points = replace(points, images=torch.randint(0, 256, (5000, 3, 32, 32), dtype=torch.uint8))
    noise = torch.randint(0, 256, (80, 3, 64, 64), dtype=torch.uint8)
    pictures = tuple(Picture(image, "a", "b", 0.9, 3.0) for image in noise)
    names = [f"class number {k}" for k in range(10)]
    report = make_report(names, points=points, mistakes=pictures[:40], outlying=pictures[40:])
    assert write_page([report], tmp_path / "report.html").stat().st_size < 10_000_000


def test_long_runs_stay_small(page_of, tmp_path):
    page_of(make_report(metrics=make_metrics(steps=80_000, interval=40, K=10), names=[str(k) for k in range(10)]))
    assert (tmp_path / "report.html").stat().st_size < 2_400_000


def test_runs_of_the_same_images_share_their_pictures(tmp_path):
    report = make_report(size=(3, 32, 32), points=make_points(3, n=200, size=(3, 32, 32)))
    one = write_page([report], tmp_path / "one.html").stat().st_size
    two = write_page([report, replace(report, name="again")], tmp_path / "two.html").stat().st_size
    images = 200 * 32 * 32
    assert two - one < images


def test_nothing_but_a_report_is_replaced(tmp_path):
    foreign = tmp_path / "report.html"
    foreign.write_text("<title>my own page</title>")
    with pytest.raises(ValueError, match="is not a momatch report"):
        write_page([make_report()], foreign)
    assert foreign.read_text() == "<title>my own page</title>"
    with pytest.raises(ValueError, match="got a directory"):
        write_page([make_report()], tmp_path)
    with pytest.raises(ValueError, match="got none"):
        write_page([], tmp_path / "other.html")


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = write_page([nothing()], tmp_path / "report.html")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_page([nothing("other")], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
