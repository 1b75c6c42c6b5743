"""Metrics are read from outcomes by their names."""

import math

import pytest

from momatch.sweep.metrics import METRICS, SCORES, metrics_named, origins
from tests.sweep.records import density, make_outcome, make_record

#: Metric -> value in result.json and as it is shown.
READ = {
    "accuracy": ("test_accuracy", 0.9728, 97.28),
    "compactness": ("compactness", 0.97, 0.97),
    "compactness_true": ("compactness_true", 0.99, 0.99),
    "center_offset": ("center_offset", 1.9, 1.9),
    "center_spread": ("center_spread", 0.3, 0.3),
    "utilisation": ("utilisation", 0.5, 50.0),
    "pseudo_label_accuracy": ("pseudo_label_accuracy", 0.99, 99.0),
    "ece": ("ece", 0.016, 1.6),
    "seconds": ("seconds", 70.5, 70.5),
    "peak_memory": ("peak_memory_mb", 460.5, 460.5),
}


def test_every_metric_is_tested():
    assert READ.keys() == METRICS.keys()


@pytest.mark.parametrize("name", READ)
def test_is_read_in_its_unit(name):
    key, stored, shown = READ[name]
    assert METRICS[name].read(make_outcome("a", "b", 0, result={key: stored})) == pytest.approx(shown)
    assert METRICS[name].name == name


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "97", True])
def test_what_is_no_number_is_none(value):
    assert METRICS["accuracy"].read(make_outcome("a", "b", 0, result={"test_accuracy": value})) is None


def test_failed_run_has_no_metric():
    assert all(metric.read(make_outcome("a", "b", 0, error="why")) is None for metric in METRICS.values())


def test_auroc_by_name_and_as_a_group():
    record = density({("AAGMM 8-D", "1st", "refitted", "nearest"): 0.93}, noise=0.0)
    (metric,) = metrics_named("auroc:held-out classes:refitted:nearest")
    assert metric.by_seed(record, "AAGMM 8-D", "1st") == pytest.approx({0: 0.93, 1: 0.93, 2: 0.93})
    assert metric.by_seed(record, "Linear 8-D", "none") == {}
    group = metrics_named("auroc", record.outcomes)
    assert len(group) == 2 * 2 * len(SCORES)
    assert metric in group
    assert all(metrics_named(one.name) == (one,) for one in group)
    assert metrics_named("auroc") == ()


def test_origin_may_be_a_path_with_colons():
    (metric,) = metrics_named("auroc:C:/data:as trained:density")
    assert metric.keys == ("evaluation", "C:/data", "as_trained", "density", "auroc")


def test_held_out_classes_come_first():
    outcomes = [make_outcome("a", "b", 0, evaluation={"a dataset": {}, "held-out classes": {}})]
    assert origins([make_outcome("a", "b", 1), *outcomes]) == ("held-out classes", "a dataset")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("acuracy", "did you mean 'accuracy'"),
        ("xyz", "known: accuracy"),
        ("auroc:mnist:refitted", "did you mean 'auroc'|known"),
        ("auroc:mnist:as_trained:nearest", "unknown metric"),
        ("auroc::refitted:nearest", "unknown metric"),
        ("", "known"),
    ],
)
def test_unknown_name(name, hint):
    with pytest.raises(ValueError, match=hint):
        metrics_named(name)


def test_failed_seeds_are_left_out():
    outcomes = [
        make_outcome("a", "b", 0, result={"test_accuracy": 0.5}),
        make_outcome("a", "b", 1, error="why"),
        make_outcome("a", "c", 2, result={"test_accuracy": 0.5}),
    ]
    assert METRICS["accuracy"].by_seed(make_record("table1", outcomes), "a", "b") == {0: 50.0}
