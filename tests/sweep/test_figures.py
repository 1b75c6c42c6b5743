"""Figures are read from outcomes as they are named."""

import math

import pytest

from momatch.sweep.figures import FIGURES, SCORES, by_seed, figures_named, origins
from momatch.sweep.grid import SHIPPED, load_grid
from tests.sweep.made_records import density, make_outcome, make_record

#: Figure -> value in result.json and as it is shown.
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


def test_every_figure_is_tested():
    assert READ.keys() == FIGURES.keys()


@pytest.mark.parametrize("name", READ)
def test_is_read_in_its_unit(name):
    key, stored, shown = READ[name]
    assert FIGURES[name].read(make_outcome("a", "b", 0, result={key: stored})) == pytest.approx(shown)
    assert FIGURES[name].name == name


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "97", True])
def test_what_is_no_number_is_none(value):
    assert FIGURES["accuracy"].read(make_outcome("a", "b", 0, result={"test_accuracy": value})) is None


def test_failed_run_has_no_figure():
    assert all(figure.read(make_outcome("a", "b", 0, error="why")) is None for figure in FIGURES.values())


def test_auroc_by_name_and_as_a_group():
    record = density({("AAGMM 8-D", "1st", "refitted", "nearest"): 0.93}, noise=0.0)
    (figure,) = figures_named("auroc:held-out classes:refitted:nearest")
    assert by_seed(record, "AAGMM 8-D", "1st", figure) == pytest.approx({0: 0.93, 1: 0.93, 2: 0.93})
    assert by_seed(record, "Linear 8-D", "none", figure) == {}
    group = figures_named("auroc", record.outcomes)
    assert len(group) == 2 * 2 * len(SCORES)
    assert figure in group
    assert all(figures_named(one.name) == (one,) for one in group)
    assert figures_named("auroc") == ()


def test_origin_may_be_a_path_with_colons():
    (figure,) = figures_named("auroc:C:/data:as trained:density")
    assert figure.keys == ("evaluation", "C:/data", "as_trained", "density", "auroc")


def test_held_out_classes_come_first():
    outcomes = [make_outcome("a", "b", 0, evaluation={"a dataset": {}, "held-out classes": {}})]
    assert origins([make_outcome("a", "b", 1), *outcomes]) == ("held-out classes", "a dataset")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("acuracy", "did you mean 'accuracy'"),
        ("xyz", "known: accuracy"),
        ("auroc:mnist:refitted", "did you mean 'auroc'|known"),
        ("auroc:mnist:as_trained:nearest", "unknown figure"),
        ("auroc::refitted:nearest", "unknown figure"),
        ("", "known"),
    ],
)
def test_unknown_name(name, hint):
    with pytest.raises(ValueError, match=hint):
        figures_named(name)


def test_shipped_grids_ask_for_known_figures():
    for name in SHIPPED:
        for figure in load_grid(name).figures:
            figures_named(figure)


def test_failed_seeds_are_left_out():
    outcomes = [
        make_outcome("a", "b", 0, result={"test_accuracy": 0.5}),
        make_outcome("a", "b", 1, error="why"),
        make_outcome("a", "c", 2, result={"test_accuracy": 0.5}),
    ]
    assert by_seed(make_record("table1", outcomes), "a", "b", FIGURES["accuracy"]) == {0: 50.0}
