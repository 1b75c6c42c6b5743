"""The training loop: from a config to a finished run directory."""

import shlex
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from momatch.config import TrainConfig
from momatch.console.signals import Interrupted, StopSignals
from momatch.data.dataset import Dataset
from momatch.data.feature_spec import read_feature_spec
from momatch.evaluation.evaluate import Evaluation, evaluate_classifier, evaluate_outputs, run_classifier
from momatch.models.backbones.custom import check_trusted
from momatch.models.model_files import save_model
from momatch.models.saved_model import model_settings
from momatch.storage.checkpoint import FOLDER, load_newest
from momatch.storage.data_record import DATA, write_data_record
from momatch.storage.run_config import CONFIG
from momatch.storage.run_directory import RunDirectory
from momatch.training.allocator import explain_out_of_memory, keep_large_blocks
from momatch.training.data import describe_data
from momatch.training.optimizer import learning_rate
from momatch.training.processes import Processes, joined_processes
from momatch.training.recorder import Recorder
from momatch.training.refit import calibration, refit_outlier_head, refitted_head
from momatch.training.resolve import resolve_config
from momatch.training.result import DivergenceError, check_progress, class_thresholds, run_result
from momatch.training.run import Run
from momatch.training.setup import Training, build_training, choose_device
from momatch.training.state import History, restore
from momatch.training.tracker import Tracker

__all__ = ["DivergenceError", "Interrupted", "fit"]


def fit(
    config: TrainConfig,
    dataset: Dataset | None = None,
    tracker: Tracker | None = None,
    *,
    trust_code: bool = False,
) -> Run:
    """Train a classifier.

    Under torchrun every process calls it, and together they train as one.

    Args:
        config: the settings. Where the dataset is a features file (``momatch embed``), fields that equal their defaults count
            as not given and come from the preset ``features``, as in ``momatch train``, unless `TrainConfig.preset` made it.
        dataset: the data, if it is not to be loaded by `config.dataset`.
        tracker: where metrics go beside metrics.jsonl, if not where `config.tracker` says.
        trust_code: import a backbone of the form ``package.module:factory``. Settings may come from a run directory or a
            features file, and no file may run code by itself.

    Returns:
        The finished run.

    Raises:
        ValueError: if the data or settings cannot be used, the run directory holds another run, or the training diverged.
        OSError: if the run directory cannot be written; the last good checkpoint is intact.
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    config = _settle(config, dataset)
    assert config.run_dir is not None, "resolved"
    # Before minutes of loading, and before a run directory is made.
    check_trusted(config.backbone, _named_by(config, dataset), trust_code=trust_code)
    directory = RunDirectory(config.run_dir)
    device = choose_device(config.device)
    if device.type == "cpu":
        keep_large_blocks()
    with explain_out_of_memory(), joined_processes(device.type) as processes, ExitStack() as stack:
        # Refused now, by all processes alike, rather than after minutes of loading.
        if config.resume == "auto":
            config = replace(config, resume=directory.exists)
        if config.resume:
            directory.check_resumed(config)
            if directory.finished:
                return Run.load(directory.path, trust_code=trust_code)
        else:
            directory.check_new(config, config.overwrite)
        processes.wait()
        if device.type == "cuda":
            device = torch.device("cuda", processes.local_rank)
            torch.cuda.set_device(device)
        stack.enter_context(torch.random.fork_rng([device.index] if device.type == "cuda" else []))
        training = build_training(config, device, processes, dataset, trust_code=trust_code)
        recorder = stack.enter_context(_open_recorder(config, processes, device, tracker))
        if processes.is_main and not (directory.path / DATA).exists():
            record = describe_data(config, training.input.dataset, given=dataset is not None)
            write_data_record(directory.path, record)
        signals = stack.enter_context(StopSignals())
        history, remarks = _resume(training, recorder) if config.resume else (History(), [])
        recorder.begin(training.stream.step, _introduction(config, training))
        for remark in remarks:
            recorder.say(remark)
        evaluation = _train(config, training, recorder=recorder, history=history, signals=signals)
        if processes.is_main:
            _finish(config, training, recorder=recorder, history=history, evaluation=evaluation)
        processes.wait()
    return Run.load(recorder.path, trust_code=trust_code)


def _settle(config: TrainConfig, dataset: Dataset | None) -> TrainConfig:
    """The resolved settings; those about a dataset that was handed over are what it is."""
    if dataset is None:
        return resolve_config(config)
    config = resolve_config(replace(config, dataset=dataset.name), dataset.features)
    return replace(config, image_size=dataset.train.rows.side)


def _named_by(config: TrainConfig, dataset: Dataset | None) -> str | Path:
    """Where the name of the backbone comes from."""
    assert config.run_dir is not None, "resolved"
    features = read_feature_spec(config.dataset) if dataset is None else dataset.features
    if features is not None:
        return features.path
    return Path(config.run_dir) / CONFIG if config.resume else "the config"


def _open_recorder(
    config: TrainConfig, processes: Processes, device: torch.device, tracker: Tracker | None
) -> Recorder:
    """The recorder; where the first process cannot make it, no other one goes on alone."""
    recorder, failure = None, None
    try:
        recorder = Recorder(config, processes, tracker)
    except (ValueError, OSError) as error:
        failure = error
    if processes.any(failure is not None, device) and failure is None:
        failure = ValueError("the first process could not open the run directory")
    if failure is not None:
        raise failure
    assert recorder is not None
    return recorder


def _train(
    config: TrainConfig, training: Training, *, recorder: Recorder, history: History, signals: StopSignals
) -> Evaluation | None:
    """Make the steps that are left; returns the evaluation at the last one, None if that was made before or there is none."""
    evaluation = None
    processes = training.step.processes
    images_a_step = config.labeled_batch_size + 2 * config.unlabeled_batch_size
    refits_outliers = config.outlier_refit_interval > 0 and training.step.objective.detector is not None
    last_line, seconds_then = training.stream.step, history.seconds
    clock = time.perf_counter() - history.seconds
    if training.stream.step == 0:
        if refits_outliers:
            refit_outlier_head(training, config.cutoff)
        # From here on there always is a state to go back to.
        recorder.checkpoint(training, history)
    for step in range(training.stream.step, config.steps):
        training.step(next(training.stream), lr=learning_rate(config, step), progress=step / config.steps)
        done = step + 1
        if refits_outliers and _due(config.outlier_refit_interval, done):
            refit_outlier_head(training, config.cutoff)
        evaluating = done == config.steps or _due(config.eval_interval, done)
        logging = evaluating or _due(config.log_interval, done)
        if evaluating and processes.is_main:
            evaluation = _evaluate(training, history)
        if logging:
            # The one place where the host waits for the device.
            history.metrics = training.step.interval_metrics()
            history.seconds = time.perf_counter() - clock
            line = {
                "step": done,
                **history.metrics,
                **class_thresholds(training.step),
                "lr": learning_rate(config, step),
            }
            if evaluating:
                line["test_accuracy"] = history.test_accuracy
            images, seconds = images_a_step * (done - last_line), history.seconds - seconds_then
            last_line, seconds_then = done, history.seconds
            recorder.metrics({**line, "seconds": history.seconds, "images_per_second": images / seconds}, images)
            check_progress(config, training.step, done, recorder.path)
        # Several processes must stop at the same step, and agree where they wait for each other anyway.
        stop = signals.received is not None
        if processes.world_size > 1:
            stop = logging and processes.any(stop, training.step.device)
        if stop or done == config.steps or _due(config.checkpoint_interval, done):
            history.seconds = time.perf_counter() - clock
            recorder.checkpoint(training, history)
        if stop and done < config.steps:
            command = f"momatch train --resume --run-dir {shlex.quote(str(recorder.path))}"
            command += " --trust-code" * (":" in config.backbone)
            if processes.world_size > 1:
                command = f"torchrun --nproc-per-node {processes.world_size} -m {command}"
            raise Interrupted(
                f"stopped at step {done} of {config.steps} and saved; go on with: {command}",
                signals.received or signal.SIGTERM,
            )
    return evaluation


def _due(interval: int, done: int) -> bool:
    return interval > 0 and done % interval == 0


def _evaluate(training: Training, history: History) -> Evaluation | None:
    if training.test is None:
        return None
    average = training.step.average.classifier
    outputs = run_classifier(average, training.test.rows)
    if not bool(outputs.log_joint.isfinite().all()):
        # Diverged: there is no accuracy, and the steps that follow will tell the cause.
        history.test_accuracy = None
        return None
    evaluation = evaluate_outputs(average.head, outputs, training.test.labels)
    history.test_accuracy = evaluation.accuracy
    history.best_test_accuracy = max(evaluation.accuracy, history.best_test_accuracy or 0.0)
    return evaluation


def _resume(training: Training, recorder: Recorder) -> tuple[History, list[str]]:
    """Restore the newest checkpoint that is whole; returns what the loop knew and what the user should know."""
    checkpoint = load_newest(recorder.path / FOLDER)
    if checkpoint is None:
        return History(), []
    remarks = [f"checkpoint not used: {reason}" for reason in checkpoint.rejected]
    history = restore(training, checkpoint.tensors, checkpoint.facts)
    before, now = checkpoint.facts["processes"], training.step.processes.world_size
    if before != now:
        remarks.append(
            f"note: the run was trained by {before} process(es) so far and goes on with {now}; batch norm sees other parts of "
            "the batch, so the result is not that of an undisturbed run"
        )
    return history, remarks


def _introduction(config: TrainConfig, training: Training) -> str:
    data, source = training.data, training.input
    begun, processes = training.stream.step, training.step.processes
    several = f", {processes.world_size} processes" if processes.world_size > 1 else ""
    return (
        f"{'resumed at step ' + str(begun) + ': ' if begun else ''}{source.dataset.name}: {source.words}{len(data.labels)} "
        f"labelled and {len(data.unlabeled):,} unlabelled images, {len(data.class_names)} classes; {config.backbone}, "
        f"{config.head}, {config.policy}, {config.steps:,} steps on {training.step.device.type}{several}; "
        f"run directory {config.run_dir}"
    )


def _finish(
    config: TrainConfig, training: Training, *, recorder: Recorder, history: History, evaluation: Evaluation | None
) -> None:
    """Save the averaged model and write the result; evaluate the model first, where the last step has not just done so."""
    average = training.step.average.classifier
    if evaluation is None and training.test is not None:
        evaluation = evaluate_classifier(average, training.test.rows, training.test.labels)
    refitted = refitted_head(training, config.cutoff) if config.refit else None
    result = run_result(config, training, history, evaluation)
    save_model(
        recorder.path,
        training.model,
        training.spec,
        refitted,
        calibration(training, refitted),
        settings=model_settings(config, training.spec),
        result=result,
    )
    recorder.result(result)
