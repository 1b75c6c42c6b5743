import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import momatch
from momatch.config import TrainConfig
from momatch.console.signals import StopSignals
from momatch.data.dataset import Dataset, Split
from momatch.data.load import load_dataset
from momatch.data.rows import PixelRows
from momatch.data.splits import PoolTruth, SemiSupervised
from momatch.inference.evaluate import evaluate_run
from momatch.storage.checkpoint import FOLDER, load_newest
from momatch.training.fit import DivergenceError, Interrupted, fit
from momatch.training.run import Run
from momatch.training.setup import build_training, choose_device, known_truth
from momatch.training.state import History, collect, restore

#: Shape checks cost more than these short runs; the tests of the step and of the judge have them on.
pytestmark = pytest.mark.usefixtures("unchecked")

CHANGING = {"seconds", "images_per_second", "peak_memory_mb"}


def config(folder, **settings):
    quick = TrainConfig(
        image_size=8,
        steps=12,
        labeled_batch_size=10,
        unlabeled_batch_size=20,
        log_interval=3,
        eval_interval=6,
        checkpoint_interval=4,
        progress=False,
        device="cpu",
        # Tests of the judge ask for it: it takes longer than these steps.
        judge="head",
        run_dir=str(folder),
    )
    return replace(quick, **settings)


def metrics_of(folder):
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in CHANGING} for line in lines]


def result_of(folder):
    result = json.loads((Path(folder) / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in CHANGING}


def assert_same_run(one, two):
    assert metrics_of(one) == metrics_of(two)
    assert result_of(one) == result_of(two)
    assert (Path(one) / "model.safetensors").read_bytes() == (Path(two) / "model.safetensors").read_bytes()
    first, second = load_newest(Path(one) / FOLDER), load_newest(Path(two) / FOLDER)
    assert first.tensors.keys() == second.tensors.keys()
    for name, value in first.tensors.items():
        assert torch.equal(value, second.tensors[name]), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""
    return fit(config(tmp_path_factory.mktemp("whole") / "run"))


def test_run_directory_holds_what_it_should(whole):
    names = {path.name for path in whole.directory.iterdir()}
    assert {
        "config.json",
        "metrics.jsonl",
        "result.json",
        "model.safetensors",
        "model.json",
        "run.log",
        FOLDER,
    } <= names
    assert not [
        path for path in whole.directory.rglob("*") if path.suffix in (".pt", ".pth", ".pkl", ".pickle", ".part")
    ]
    assert [line["step"] for line in whole.metrics()] == [3, 6, 9, 12]
    assert [line.get("test_accuracy") is not None for line in whole.metrics()] == [False, True, False, True]


def test_result_has_every_figure(whole):
    result = whole.result
    keys = {
        "test_accuracy",
        "best_test_accuracy",
        "compactness",
        "center_spread",
        "center_offset",
        "utilisation",
        "pseudo_label_accuracy",
        "steps",
        "seconds",
    }
    assert keys | {"images_per_second", "peak_memory_mb", "versions", "seed"} <= result.keys()
    assert 0 <= result["test_accuracy"] <= result["best_test_accuracy"] <= 1
    assert "oracle" in result["best_test_accuracy_note"]
    assert 0 <= result["utilisation"] <= 1
    assert 0 <= result["pseudo_label_accuracy"] <= 1
    assert result["steps"] == 12
    assert result["versions"]["torch"] == torch.__version__
    assert result["images_per_second"] == pytest.approx(12 * (10 + 2 * 20) / result["seconds"])
    assert result["peak_memory_mb"] > 50


def test_p_values_are_calibrated_on_the_test_images(whole):
    calibration = whole.model.calibration
    test = momatch.load_dataset("digits").test
    assert calibration.source == f"{len(test):,} test images"
    scores = whole.predict(test.images)
    # Ranked among themselves, the scores are spread evenly; rounding may move one by a rank.
    expected = torch.arange(2, len(test) + 2) / (len(test) + 1)
    torch.testing.assert_close(scores.p_value.sort().values, expected, rtol=0, atol=1.5 / (len(test) + 1))
    torch.testing.assert_close(scores.outlier_score.sort().values, calibration.scores, rtol=1e-3, atol=1e-3)
    noise = torch.randint(256, (50, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    assert whole.predict(noise).p_value.mean() < 0.5


@pytest.mark.parametrize(("fraction", "held_out"), [(None, 130), (0.2, 259), (0.0, 0)])
def test_without_test_images_part_of_the_pool_is_kept_out(tmp_path, fraction, held_out):
    dataset = replace(load_dataset("digits"), test=None)
    run = fit(config(tmp_path / "run", steps=1, calibration_fraction=fraction), dataset)
    assert run.result["unlabeled_images"] == len(dataset.train) - held_out
    if not held_out:
        assert run.model.calibration is None
        assert run.predict(dataset.train.images[:2]).p_value.isnan().all()
        return
    assert len(run.model.calibration.scores) == held_out
    assert run.model.calibration.source == f"{held_out} images of the pool, kept out of training"


def test_a_pool_that_nothing_can_be_kept_out_of_is_refused(tmp_path):
    digits = load_dataset("digits")
    dataset = replace(digits, train=Split(digits.train.images[:40], digits.train.labels[:40]), test=None)
    with pytest.raises(ValueError, match=r"calibration_fraction: got 0\.001 of a pool of 40"):
        fit(config(tmp_path / "run", labels_per_class=1, calibration_fraction=0.001), dataset)


def test_saved_model_is_the_averaged_one(whole):
    checkpoint = load_newest(whole.directory / FOLDER)
    for name, value in whole.classifier.state_dict().items():
        assert torch.equal(value, checkpoint.tensors[f"average.{name}"]), name
    assert whole.refitted_head is not None
    assert not torch.equal(whole.refitted_head.centers, whole.classifier.head.centers)
    test = momatch.load_dataset("digits").test
    with torch.no_grad():
        accuracy = (whole.classifier(test.images).argmax(-1) == test.labels).float().mean()
    assert float(accuracy) == pytest.approx(whole.result["test_accuracy"])


def test_same_seed_gives_the_same_run_and_another_seed_another(whole, tmp_path):
    assert_same_run(whole.directory, fit(config(tmp_path / "again")).directory)
    other = fit(config(tmp_path / "other", seed=1))
    assert metrics_of(other.directory) != metrics_of(whole.directory)
    before = torch.get_rng_state()
    fit(config(tmp_path / "third"))
    assert torch.equal(before, torch.get_rng_state())


def test_largest_seed_trains(tmp_path):
    assert fit(config(tmp_path / "run", seed=2**63 - 1, steps=2)).result["seed"] == 2**63 - 1


class StopAt:
    """A tracker that raises a signal, or an error, when a step is logged."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def log(self, step, metrics):
        if step >= self.step:
            self.action()

    def close(self):
        pass


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_and_says_how_to_go_on(number, code, whole, tmp_path):
    folder = tmp_path / "run"
    stop = StopAt(6, lambda: os.kill(os.getpid(), number))
    with pytest.raises(
        Interrupted, match=r"stopped at step 6 of 12 and saved; resume with: momatch train --resume"
    ) as caught:
        fit(config(folder), tracker=stop)
    assert caught.value.exit_code == code
    assert load_newest(folder / FOLDER).step == 6
    assert Run.load(folder).result is None
    fit(config(folder, resume=True))
    assert_same_run(whole.directory, folder)


def test_second_signal_stops_at_once():
    def two_signals():
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.received == signal.SIGINT
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(60)  # until the signal arrives

    with pytest.raises(KeyboardInterrupt):
        two_signals()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_outside_the_main_thread_leaves_signals_alone(tmp_path, whole):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(fit(config(tmp_path / "run"))))
    thread.start()
    thread.join()
    assert_same_run(whole.directory, runs[0].directory)


SETTINGS = {
    "a judge": {"judge": "stages"},
    "outliers judged by a refitted head": {"outliers": "percentile", "outlier_refit_interval": 5},
    "freematch": {"algorithm": "freematch"},
    "softmatch": {"algorithm": "softmatch", "optimizer": "adamw", "lr": 0.002},
    "float16": {"precision": "float16"},
    "supervised": {"algorithm": "supervised"},
    "meanteacher": {"algorithm": "meanteacher"},
    "remixmatch": {"algorithm": "remixmatch", "ramp_up": 0.1, "rotation_weight": 0.5},
    "comatch": {"algorithm": "comatch", "memory_size": 50},
    "simmatch": {"algorithm": "simmatch"},
    "simmatchv2": {"algorithm": "simmatchv2"},
    "linear": {"head": "linear", "embedding_dim": 0, "accumulate": 2},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_run_interrupted_twice_ends_as_if_it_had_not_been(settings, tmp_path):
    class FailureError(Exception):
        pass

    def fail():
        raise FailureError

    undisturbed = fit(config(tmp_path / "whole", **settings))
    folder = tmp_path / "run"
    for step, resume in ((3, False), (8, True)):
        with pytest.raises(FailureError):
            fit(config(folder, **settings, resume=resume), tracker=StopAt(step, fail))
    fit(config(folder, **settings, resume=True))
    assert_same_run(undisturbed.directory, folder)


def test_resumed_finished_run_is_returned_as_it_is(whole):
    before = (whole.directory / "result.json").read_bytes()
    again = fit(config(whole.directory, resume=True))
    assert again.result == whole.result
    assert (whole.directory / "result.json").read_bytes() == before


def test_resume_auto_starts_goes_on_and_returns_a_finished_run(whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(config(folder, resume="auto"), tracker=StopAt(6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    fit(config(folder, resume="auto"))
    assert "resumed at step 6" in (folder / "run.log").read_text()
    assert_same_run(whole.directory, folder)
    before = (folder / "result.json").read_bytes()
    assert fit(config(folder, resume="auto")).result["steps"] == 12
    assert (folder / "result.json").read_bytes() == before
    assert Run.load(folder).config.resume is False
    with pytest.raises(ValueError, match=r"steps: got 13, expected 12"):
        fit(config(folder, resume="auto", steps=13))


def test_checkpoint_of_another_release_is_refused(tmp_path):
    training = build_training(config(tmp_path / "run").resolved(), torch.device("cpu"))
    tensors, facts = collect(training, History())
    facts["history"]["figures"] = facts["history"].pop("metrics")
    with pytest.raises(ValueError, match="written by another release of momatch"):
        restore(training, tensors, facts)


def test_nothing_is_overwritten_unasked(whole, tmp_path):
    with pytest.raises(ValueError, match="a finished run with the same settings; choose another run_dir"):
        fit(config(whole.directory))
    with pytest.raises(ValueError, match="no run to resume"):
        fit(config(tmp_path / "none", resume=True))
    folder = tmp_path / "run"
    fit(config(folder, steps=3))
    assert fit(config(folder, overwrite=True, steps=4)).result["steps"] == 4


def test_other_settings_are_not_resumed(whole):
    with pytest.raises(ValueError, match=r"steps: got 13, expected 12, with which the run in .* was started"):
        fit(config(whole.directory, resume=True, steps=13))


def test_bad_data_leaves_no_directory(tmp_path):
    with pytest.raises(ValueError, match="no-such-data"):
        fit(config(tmp_path / "run", dataset="no-such-data"))
    assert not (tmp_path / "run").exists()


def test_damaged_checkpoint_is_passed_over(whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(config(folder), tracker=StopAt(9, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    newest = load_newest(folder / FOLDER)
    assert newest.step == 9
    state = newest.path / "state.safetensors"
    damaged = bytearray(state.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    state.write_bytes(damaged)
    fit(config(folder, resume=True))
    assert_same_run(whole.directory, folder)
    assert "skipped checkpoint" in (folder / "run.log").read_text()


WILD = [("aagmm", 1e6, 0), ("aagmm", 1e6, 1), ("aagmm", 30.0, 1), ("kmeans", 1e6, 2)]


@pytest.mark.parametrize(("head", "lr", "order"), WILD)
def test_diverged_run_stops_with_a_diagnosis(head, lr, order, tmp_path):
    wild = {"head": head, "lr": lr, "moment_order": order, "clip_norm": 0.0, "max_skipped_steps": 4, "steps": 40}
    with pytest.raises(
        DivergenceError, match=r"not finite for \d+ consecutive steps up to step .*lr .*start again with a lower"
    ) as caught:
        fit(config(tmp_path / "run", **wild, checkpoint_interval=0))
    checkpoint = load_newest(tmp_path / "run" / FOLDER)
    assert str(checkpoint.path) in str(caught.value)
    assert all(value.isfinite().all() for value in checkpoint.tensors.values() if value.is_floating_point())
    assert "not finite" in (tmp_path / "run" / "run.log").read_text()


def test_time_before_an_interruption_is_counted(tmp_path, monkeypatch):
    now = [50.0]

    def clock():
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr("momatch.training.fit.time.perf_counter", clock)

    def slow(step, metrics):
        if step == 3:
            now[0] += 1000.0
            os.kill(os.getpid(), signal.SIGTERM)

    tracker = StopAt(99, None)
    tracker.log = slow
    with pytest.raises(Interrupted):
        fit(config(tmp_path / "run"), tracker=tracker)
    run = fit(config(tmp_path / "run", resume=True))
    assert load_newest(tmp_path / "run" / FOLDER).facts["history"]["seconds"] > 1000.0
    assert 1000.0 < run.result["seconds"] < 1001.0


def test_own_dataset_without_test_images(tmp_path):
    torch.manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    labels = torch.arange(40) % 2
    labels[20:] = -1
    dataset = Dataset("mine", ("cat", "dog"), Split(images, labels), None)
    run = fit(config(tmp_path / "run", labels_per_class=0, steps=4), dataset=dataset)
    assert run.class_names == ("cat", "dog")
    assert run.result["test_accuracy"] is None
    assert run.result["labeled_images"] == 20
    assert run.classifier(images[:3]).shape == (3, 2)


def test_devices_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="device: got 'tpu', expected 'auto', 'cuda', 'mps', 'cpu'"):
        choose_device("tpu")


def test_pool_truth_tells_outliers_from_what_is_not_known():
    truth = PoolTruth(
        labels=torch.tensor([3, -1, -1, 2]),
        is_outlier=torch.tensor([False, False, True, False]),
        origin=torch.tensor([0, 0, 1, 0]),
        row=torch.tensor([0, 1, 3, 3]),
        origin_names=("train", "others"),
    )
    images = PixelRows([torch.zeros(4, 1, 2, 2, dtype=torch.uint8)])
    # The last image of the pool is the one whose label is shown.
    data = SemiSupervised(
        tuple("abcd"), images.select(torch.tensor([3])), torch.tensor([2]), torch.tensor([3]), images, truth
    )
    assert known_truth(data).tolist() == [3, -1, -2, -1]


@pytest.mark.parametrize("in_pool", [False, True])
def test_held_out_classes_are_not_known(in_pool, tmp_path):
    known = config(tmp_path / "run", steps=2, held_out_classes="8, 9", held_out_in_pool=in_pool)
    run = fit(known)
    digits = load_dataset("digits")
    strangers = int((digits.train.labels >= 8).sum())
    assert run.class_names == tuple("01234567")
    assert run.result["test_images"] == int((digits.test.labels < 8).sum())
    assert run.result["unlabeled_images"] == len(digits.train) - (0 if in_pool else strangers)
    assert len(run.metrics()[-1]["thresholds"]) == 8
    # A pseudo-label of an image of no known class is wrong, whatever it says.
    accuracy = run.metrics()[-1]["pseudo_label_accuracy"]
    assert accuracy is None or accuracy <= 1 - 0.5 * in_pool * strangers / len(digits.train)
    figures = evaluate_run(run)
    assert figures["n"] == run.result["test_images"]
    assert figures["outliers"]["held-out classes"]["n"] == int((digits.test.labels >= 8).sum())


@pytest.mark.parametrize(
    ("classes", "message"),
    [("8,eight", "held_out_classes: got 'eight', expected one of"), ("0,1,2,3,4,5,6,7,8", "leaves 1 of 10 classes")],
)
def test_held_out_classes_that_cannot_be_are_named(classes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(config(tmp_path / "run", held_out_classes=classes))
    assert not (tmp_path / "run").exists()


def test_batches_that_do_not_divide_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"labeled_batch_size: got 10, expected a multiple of 4"):
        fit(config(tmp_path / "run", accumulate=4))


def test_names_are_public(whole):
    assert momatch.fit is fit
    assert momatch.Run.load(whole.directory).config == whole.config
    assert momatch.TrainConfig is TrainConfig


def test_checkpoints_from_before_algorithms_held_the_policies_are_restored(tmp_path):
    settings = config(tmp_path / "run", algorithm="freematch").resolved()
    one, other = (build_training(settings, torch.device("cpu")) for _ in range(2))
    one.step(next(one.stream), lr=0.1, progress=0.0)
    tensors, facts = collect(one, History())
    old = {name.replace("objective.algorithm.policy.", "objective.policy."): value for name, value in tensors.items()}
    assert "objective.policy.tau" in old
    restore(other, old, facts)
    assert torch.equal(other.step.objective.algorithm.policy.tau, one.step.objective.algorithm.policy.tau)
