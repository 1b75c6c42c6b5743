"""Made-up reports: a page needs no run."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from momatch.config import TrainConfig
from momatch.evaluation.evaluate import Evaluation
from momatch.evaluation.metrics import Calibration
from momatch.report.run_report import (
    ClusterMoments,
    Densities,
    MapPoints,
    Missing,
    MomentRow,
    OutlierList,
    Picture,
    RunReport,
)
from momatch.report.tables import MAX_LISTED
from momatch.training.pool_outliers import ListedOutlier

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
CELLS = {"(1)": 0.0, "(2)": 1.0, "(1,1)": 0.0, "(3)": 0.0, "(2,1)": 0.0, "(4)": 3.0, "(2,2)": 1.0, "(1,1,1,1)": 0.0}
SCORES = ("nearest", "assigned", "farthest", "density", "confidence")
WHY = Missing("There is no model to show.")


def make_metrics(steps=600, interval=20, K=0):
    lines = []
    for step in range(interval, steps + 1, interval):
        share = step / steps
        line = {"step": step, "supervised_loss": 2 - share, "unlabeled_loss": 1.5, "fairness_loss": 0.0}
        line |= {"constraint_loss": 0.5, "utilisation": share, "pseudo_label_accuracy": None if step < 60 else 0.9}
        if step % 100 == 0:
            line["test_accuracy"] = 0.5 + 0.4 * share
        if K:
            line["thresholds"] = [0.95 * share * (k + 1) / K for k in range(K)]
        lines.append(line)
    return lines


def make_evaluation(K, each=20):
    """Of every class all images are right but for one, which is taken for the next class."""
    confusion = each * torch.eye(K, dtype=torch.long)
    for k in range(K):
        confusion[k, k] -= 1
        confusion[k, (k + 1) % K] += 1
    n = each * K
    count = torch.zeros(15, dtype=torch.long)
    count[14], count[7] = n - K, K
    bins = Calibration(count, torch.linspace(0.02, 0.99, 15).double(), torch.linspace(0, 1, 15).double())
    share = (each - 1) / each
    return Evaluation(
        n=n,
        accuracy=share,
        per_class=(share,) * K,
        confusion=confusion,
        nll=0.21,
        calibration=bins,
        compactness=0.8,
        compactness_true=0.9,
        center_spread=3.1,
        center_offset=0.4,
    )


def make_points(K, n=120, strangers=30, size=(1, 8, 8)):
    """Test images of K classes, and images of two other origins; a picture is of one shade, which tells its place."""
    total = n + 2 * strangers
    labels = torch.cat([torch.arange(n) % K, torch.full((2 * strangers,), -1)])
    origin = torch.cat([torch.zeros(n), torch.ones(strangers), torch.full((strangers,), 2.0)]).long()
    angles = 2 * torch.pi * labels / K
    places = torch.stack([angles.cos(), angles.sin()], 1) * (labels >= 0).unsqueeze(1) * 10 + torch.randn(total, 2)
    centers = 10 * torch.stack(
        [torch.cos(2 * torch.pi * torch.arange(K) / K), torch.sin(2 * torch.pi * torch.arange(K) / K)], 1
    )
    predicted = labels.clamp_min(0)
    predicted[0] = 1
    return MapPoints(
        maps={"t-SNE": places, "PCA": places.flip(1)},
        centers={"t-SNE": centers, "PCA": centers.flip(1)},
        origin_names=("test images", "held-out classes", "other"),
        origin=origin,
        labels=labels,
        predicted=predicted,
        confidence=torch.linspace(0.5, 1, total),
        log_density=torch.linspace(0, -40, total),
        distance=torch.linspace(0, 9, total),
        flagged=origin > 0,
        images=(torch.arange(total) % 251).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *size).clone(),
        explained=0.61,
    )


def make_clusters(names):
    levels = torch.linspace(0.5, 20, 40)
    rows = tuple(
        MomentRow(cells, sum(map(int, cells[1:-1].split(","))), target, target + 0.1, 0.2, 0.05)
        for cells, target in CELLS.items()
    )
    return tuple(ClusterMoments(name, 20, rows, levels, levels * (1 + 0.02 * k)) for k, name in enumerate(names))


def make_densities():
    inliers, outliers = torch.randn(300), torch.randn(200) - 4
    by_origin = {"test images": inliers, "held-out classes": outliers, "other": outliers * 50}
    apart = {score: {"auroc": 0.93, "fpr95": 0.2} for score in SCORES}
    strangers = {"held-out classes": apart, "other": {name: {**each, "auroc": 0.41} for name, each in apart.items()}}
    far = {name: values - 7 for name, values in by_origin.items()}
    return Densities({"as trained": far, "refitted": by_origin}, {"as trained": strangers, "refitted": strangers})


def make_outlier_list(n=30, *, images=True, files=True):
    """The first is at an infinite distance; every third is no outlier, and of the last it is not known."""
    listed = tuple(
        ListedOutlier(
            path=f"pool/<{i}>.png" if files else "",
            row=7 * i,
            label="dog",
            confidence=math.nan if i == 0 else 0.75,
            outlier_score=math.inf if i == 0 else 20.0 - 0.25 * i,
            p_inlier=0.01 * i,
            is_outlier=None if i == n - 1 else i % 3 > 0,
        )
        for i in range(n)
    )
    shown = tuple(torch.full((1, 8, 8), 5 * i, dtype=torch.uint8) for i in range(min(n, MAX_LISTED)))
    return OutlierList(Path("runs") / "made-up" / "outliers.csv", listed, shown if images else ())


def make_judged(**changed):
    """RunReport about a run with a judge and a list of outliers."""
    found = make_densities()
    near = {name: values - 100 for name, values in found.log_density["refitted"].items()}
    apart = {score: {"auroc": 0.97, "fpr95": 0.1} for score in ("judge", "nearest", "density")}
    strangers = {"held-out classes": apart, "other": apart}
    densities = Densities({"judge": near, **found.log_density}, {"judge": strangers, **found.separation})
    counts = {"likely_outliers": 30, "judged_images": 400, "unlabeled_images": 400, "estimated_outlier_share": 0.0777}
    parts = {"has_judge": True, "densities": densities, "outlier_list": make_outlier_list(), "result": RESULT | counts}
    return make_report(**(parts | changed))


def make_pictures(names, n=6, size=(3, 16, 16)):
    return tuple(
        Picture(
            torch.full(size, 40 * i, dtype=torch.uint8),
            names[0] if i % 2 else None,
            names[-1],
            0.99 - 0.01 * i,
            5.5 + i,
        )
        for i in range(n)
    )


def make_report(names=("cat", "dog", "owl"), *, name="a run", metrics=None, size=(1, 8, 8), n=120, **changed):
    """RunReport about a finished run in which nothing is missing, with `changed` parts."""
    names = tuple(names)
    K = len(names)
    parts = {
        "name": name,
        "directory": Path("runs") / "made-up",
        "problems": (),
        "config": TrainConfig(lr=0.07).resolved(),
        "result": RESULT,
        "metrics": make_metrics(K=K) if metrics is None else metrics,
        "class_names": names,
        "evaluation": make_evaluation(K),
        "points": make_points(K, n=n, size=size),
        "clusters": make_clusters(names),
        "densities": make_densities(),
        "mistakes": make_pictures(names),
        "outlying": make_pictures(names),
        "to_label": make_pictures(names),
        "notes": ("The map shows a part of the images.",),
    }
    return RunReport(**(parts | changed))


def nothing(name="nothing", **changed):
    """RunReport about a directory in which nothing can be read."""
    gone = dict.fromkeys(("evaluation", "points", "clusters", "densities", "mistakes", "outlying", "to_label"), WHY)
    empty = make_report(name=name, config=Missing("There is no config.json."), result=None, metrics=[], **gone)
    return replace(empty, class_names=(), problems=("The directory is empty.",), notes=(), **changed)
