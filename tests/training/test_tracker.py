import re
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from momatch.config.settings import RunSettings
from momatch.training.tracker import TRACKERS, TensorBoardTracker, Tracker

DOCUMENT = Path(__file__).parents[2] / "docs" / "trackers.md"


@pytest.fixture
def curves():
    """Reads the curves as TensorBoard would show them."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(directory):
        events = accumulators.EventAccumulator(str(directory))
        events.Reload()
        return {
            name: [(point.step, round(point.value, 4)) for point in events.Scalars(name)]
            for name in events.Tags()["scalars"]
        }

    return read


def test_every_tracker_of_the_config_is_known():
    assert set(TRACKERS) == set(get_args(RunSettings.__annotations__["tracker"]))


def test_none_tracks_nothing(tmp_path):
    assert TRACKERS["none"](tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_a_curve_for_each_metric(tmp_path, curves):
    tracker = TRACKERS["tensorboard"](tmp_path)
    assert isinstance(tracker, Tracker)
    tracker.log(20, {"loss": 0.5, "utilisation": 0.25})
    tracker.log(40, {"loss": float("inf"), "test_accuracy": 0.75})
    tracker.close()
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
    assert curves(tmp_path / "tensorboard") == {
        "loss": [(20, 0.5), (40, float("inf"))],
        "utilisation": [(20, 0.25)],
        "test_accuracy": [(40, 0.75)],
    }


def test_a_killed_run_has_its_curves(tmp_path, curves):
    tracker = TensorBoardTracker(tmp_path)
    tracker.log(20, {"loss": 0.5})
    assert curves(tmp_path) == {"loss": [(20, 0.5)]}  # and it was not closed
    tracker.close()


def test_steps_done_again_after_a_resume_are_shown_once(tmp_path, curves):
    first = TensorBoardTracker(tmp_path)
    for step in (20, 40, 60, 80):
        first.log(step, {"loss": 1.0})
    first.close()
    second = TensorBoardTracker(tmp_path)
    for step in (60, 80, 100):
        second.log(step, {"loss": 2.0})
    second.close()
    assert curves(tmp_path) == {"loss": [(20, 1.0), (40, 1.0), (60, 2.0), (80, 2.0), (100, 2.0)]}


def test_a_run_that_ends_before_the_first_line_leaves_no_file(tmp_path):
    TensorBoardTracker(tmp_path / "tensorboard").close()
    assert list(tmp_path.iterdir()) == []


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'momatch\[tensorboard\]'"):
        TRACKERS["tensorboard"](tmp_path)


class Calls(ModuleType):
    """A module that takes any call and remembers it."""

    def __init__(self, name):
        super().__init__(name)
        self.made = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments, **options):
            self.made.append((name, *arguments, options))
            return self

        return call


@pytest.mark.parametrize(
    ("package", "made", "logged"),
    [("wandb", ("project", "run-1"), "log"), ("mlflow", ("experiment",), "log_metrics")],
)
def test_documented_trackers_fit_the_interface(monkeypatch, package, made, logged):
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), flags=re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if f"import {package}" in block)
    calls = Calls(package)
    monkeypatch.setitem(sys.modules, package, calls)
    namespace = {}
    exec(compile(code, str(DOCUMENT), "exec"), namespace)
    (kind,) = (value for name, value in namespace.items() if name.endswith("Tracker"))
    tracker = kind(*made)
    assert isinstance(tracker, Tracker)
    tracker.log(20, {"loss": 0.5})
    tracker.close()
    assert (logged, {"loss": 0.5}, {"step": 20}) in calls.made
    assert calls.made[-1][0] in ("finish", "end_run")
