"""The training loop: from a config to a finished run directory."""

import shlex
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from momatch.config import TrainConfig
from momatch.config.algorithms import is_custom
from momatch.console.signals import Interrupted, StopSignals
from momatch.console.wording import percentages
from momatch.data.dataset import Dataset
from momatch.data.feature_spec import FeatureSpec, read_feature_spec
from momatch.evaluation.evaluate import Evaluation, evaluate_classifier, evaluate_outputs, run_classifier
from momatch.models.backbones.custom import check_trusted, imports_code
from momatch.models.model_files import save_model
from momatch.models.saved_model import model_settings
from momatch.storage.checkpoint import FOLDER, load_newest
from momatch.storage.data_record import DATA, write_data_record
from momatch.storage.run_config import CONFIG
from momatch.storage.run_directory import RunDirectory
from momatch.training.allocator import explain_out_of_memory, keep_large_blocks
from momatch.training.data import data_notes, describe_data, describe_labels, resumed_data
from momatch.training.optimizer import learning_rate
from momatch.training.pool_outliers import find_outliers
from momatch.training.processes import Processes, joined_processes
from momatch.training.recorder import Recorder
from momatch.training.refit import (
    fit_to_outputs,
    refit_outlier_head,
    weigh_pool,
    weighing_steps,
)
from momatch.training.resolve import resolve_config
from momatch.training.result import DivergenceError, check_progress, class_thresholds, run_result
from momatch.training.run import Run
from momatch.training.setup import Training, build_training, choose_device
from momatch.training.state import History, restore
from momatch.training.threads import one_thread
from momatch.training.tracker import Tracker

__all__ = ["DivergenceError", "Interrupted", "fit"]


def fit(
    config: TrainConfig,
    dataset: Dataset | None = None,
    tracker: Tracker | None = None,
    *,
    trust_code: bool | str = False,
) -> Run:
    """Train a classifier. Under torchrun, call it in every process.

    Args:
        config: the settings. For a features file (``momatch embed``), fields at their defaults are taken from the preset
            ``features``, as in ``momatch train``, unless the config was made by `TrainConfig.preset`.
        dataset: the data; None to load `config.dataset`.
        tracker: additional destination of the metrics; None for `config.tracker`.
        trust_code: allow importing a backbone or algorithm of your own (``package.module:name``). Off by default, because its
            name may come from a run directory or a features file.

    Returns:
        The finished run.

    Raises:
        ValueError: if the data or settings are invalid, the run directory holds another run, or training diverges.
        OSError: if the run directory cannot be written; the last good checkpoint is intact.
        Interrupted: after Ctrl-C or SIGTERM, with a checkpoint saved.
    """
    config = _resolve(config, dataset)
    assert config.run_dir is not None, "resolved"
    # Fail before loading data and creating the run directory.
    check_trusted(config.backbone, _backbone_source(config, dataset), trust_code=trust_code)
    named_by = Path(config.run_dir) / CONFIG if config.resume else "the config"
    check_trusted(config.algorithm, named_by, trust_code=trust_code, kind="algorithm")
    directory = RunDirectory(config.run_dir)
    device = choose_device(config.device)
    if device.type == "cpu":
        keep_large_blocks()
    with explain_out_of_memory(), joined_processes(device.type) as processes, ExitStack() as stack:
        if device.type == "cpu" and _features_file(config, dataset) is not None:
            stack.enter_context(one_thread())
        # All processes check the run directory before loading data.
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
        data, changes = (dataset, []) if dataset is not None or not config.resume else resumed_data(config)
        training = build_training(config, device, processes, data, trust_code=trust_code)
        recorder = stack.enter_context(_open_recorder(config, processes, device, tracker))
        if processes.is_main and not (directory.path / DATA).exists():
            record = describe_data(config, training.input.dataset, given=dataset is not None)
            write_data_record(directory.path, record, describe_labels(training.input.dataset))
        signals = stack.enter_context(StopSignals())
        history, notes = _restore_newest(training, recorder) if config.resume else (History(), [])
        recorder.begin(training.stream.step, _describe_run(config, training))
        for note in [*([] if config.resume else data_notes(training.input.dataset)), *changes, *notes]:
            recorder.say(note)
        evaluation = _train(config, training, recorder=recorder, history=history, signals=signals)
        if processes.is_main:
            _finish(config, training, recorder=recorder, history=history, evaluation=evaluation)
        processes.wait()
    return Run.load(recorder.path, trust_code=trust_code)


def _resolve(config: TrainConfig, dataset: Dataset | None) -> TrainConfig:
    """Resolve the config; a given dataset determines `dataset` and `image_size`."""
    if dataset is None:
        return resolve_config(config)
    has_place = config.run_dir is not None
    config = resolve_config(replace(config, dataset=dataset.name), dataset.features)
    # Two datasets may have one name, so a directory that is named by the settings also needs the digest.
    run_dir = config.run_dir if has_place else f"{config.run_dir}-{dataset.digest()[:6]}"
    return replace(config, image_size=dataset.train.rows.side, run_dir=run_dir)


def _backbone_source(config: TrainConfig, dataset: Dataset | None) -> str | Path:
    """Where the backbone's name comes from, for the error message."""
    assert config.run_dir is not None, "resolved"
    features = _features_file(config, dataset)
    if features is not None:
        return features.path
    return Path(config.run_dir) / CONFIG if config.resume else "the config"


def _features_file(config: TrainConfig, dataset: Dataset | None) -> FeatureSpec | None:
    """How the features to train on were computed; None for images."""
    return read_feature_spec(config.dataset) if dataset is None else dataset.features


def _open_recorder(
    config: TrainConfig, processes: Processes, device: torch.device, tracker: Tracker | None
) -> Recorder:
    """Open the recorder; if the main process fails, all processes raise."""
    recorder, failure = None, None
    try:
        recorder = Recorder(config, processes, tracker)
    except (ValueError, OSError) as error:
        failure = error
    if processes.any(failure is not None, device) and failure is None:
        failure = ValueError("the main process could not open the run directory")
    if failure is not None:
        raise failure
    assert recorder is not None
    return recorder


def _train(
    config: TrainConfig, training: Training, *, recorder: Recorder, history: History, signals: StopSignals
) -> Evaluation | None:
    """Run the remaining steps; returns the last evaluation, None if there was none."""
    evaluation = None
    processes = training.step.processes
    images_per_step = config.labeled_batch_size + 2 * config.unlabeled_batch_size
    # Without pseudo-labels there is nothing to weigh.
    weighs = training.step.objective.inlier_probability is not None
    weighings = (
        weighing_steps(config, len(training.data.unlabeled), stages_change=training.input.stages_change)
        if weighs
        else frozenset()
    )
    refit_outliers = config.outlier_refit_interval > 0 and training.step.objective.detector is not None
    last_logged_step, last_logged_seconds = training.stream.step, history.seconds
    start_time = time.perf_counter() - history.seconds
    if training.stream.step == 0:
        if refit_outliers:
            refit_outlier_head(training, config.cutoff)
        # So that there is always a checkpoint to resume from.
        recorder.checkpoint(training, history)
    for step in range(training.stream.step, config.steps):
        if step in weighings:
            weigh_pool(training)
        training.step(next(training.stream), lr=learning_rate(config, step), progress=step / config.steps)
        step_count = step + 1
        if refit_outliers and _due(config.outlier_refit_interval, step_count):
            refit_outlier_head(training, config.cutoff)
        is_eval_step = step_count == config.steps or _due(config.eval_interval, step_count)
        is_log_step = is_eval_step or _due(config.log_interval, step_count)
        if is_eval_step and processes.is_main:
            evaluation = _evaluate(training, history)
        if is_log_step:
            # The only host sync.
            history.metrics = training.step.interval_metrics()
            history.seconds = time.perf_counter() - start_time
            line = {
                "step": step_count,
                **history.metrics,
                **class_thresholds(training.step),
                "lr": learning_rate(config, step),
            }
            if is_eval_step:
                line["test_accuracy"] = history.test_accuracy
            images, seconds = images_per_step * (step_count - last_logged_step), history.seconds - last_logged_seconds
            last_logged_step, last_logged_seconds = step_count, history.seconds
            recorder.metrics({**line, "seconds": history.seconds, "images_per_second": images / seconds}, images)
            check_progress(config, training.step, step_count, recorder.path)
        # Processes must stop at the same step; they agree at log steps, where they synchronise anyway.
        stop = signals.received is not None
        if processes.world_size > 1:
            stop = is_log_step and processes.any(stop, training.step.device)
        if stop or step_count == config.steps or _due(config.checkpoint_interval, step_count):
            history.seconds = time.perf_counter() - start_time
            recorder.checkpoint(training, history)
        if stop and step_count < config.steps:
            command = f"momatch train --resume --run-dir {shlex.quote(str(recorder.path))}"
            command += " --trust-code" * (imports_code(config.backbone) or is_custom(config.algorithm))
            if processes.world_size > 1:
                command = f"torchrun --nproc-per-node {processes.world_size} -m {command}"
            raise Interrupted(
                f"stopped at step {step_count} of {config.steps} and saved; resume with: {command}",
                signals.received or signal.SIGTERM,
            )
    return evaluation


def _due(interval: int, step_count: int) -> bool:
    return interval > 0 and step_count % interval == 0


def _evaluate(training: Training, history: History) -> Evaluation | None:
    if training.test is None:
        return None
    average = training.step.average.classifier
    outputs = run_classifier(average, training.test.rows)
    if not bool(outputs.log_joint.isfinite().all()):
        # Diverged; `check_progress` will report the cause.
        history.test_accuracy = None
        return None
    evaluation = evaluate_outputs(average.head, outputs, training.test.labels)
    history.test_accuracy = evaluation.accuracy
    history.best_test_accuracy = max(evaluation.accuracy, history.best_test_accuracy or 0.0)
    return evaluation


def _restore_newest(training: Training, recorder: Recorder) -> tuple[History, list[str]]:
    """Restore the newest intact checkpoint; returns the loop's history and notes for the user."""
    checkpoint = load_newest(recorder.path / FOLDER)
    if checkpoint is None:
        return History(), []
    notes = [f"skipped checkpoint: {reason}" for reason in checkpoint.rejected]
    history = restore(training, checkpoint.tensors, checkpoint.facts)
    before, now = checkpoint.facts["processes"], training.step.processes.world_size
    if before != now:
        notes.append(
            f"note: the run was started with {before} process(es) and resumes with {now}; batch norm sees different parts of "
            "the batch, so the result will differ from an uninterrupted run"
        )
    return history, notes


def _describe_run(config: TrainConfig, training: Training) -> str:
    data, source = training.data, training.input
    processes = training.step.processes
    resumed = f"resumed at step {training.stream.step}: " if training.stream.step else ""
    several = f", {processes.world_size} processes" if processes.world_size > 1 else ""
    guided = "" if training.evidence is None else f", guided by {percentages(training.evidence)}"
    return (
        f"{resumed}{source.dataset.name}: {source.words}{len(data.labels)} "
        f"labelled and {len(data.unlabeled):,} unlabelled images, {len(data.class_names)} classes; {config.backbone}, "
        f"{config.head}, {config.algorithm}{guided}, {config.steps:,} steps on {training.step.device.type}{several}; "
        f"run directory {config.run_dir}"
    )


def _finish(
    config: TrainConfig, training: Training, *, recorder: Recorder, history: History, evaluation: Evaluation | None
) -> None:
    """Evaluate the averaged model if the last step did not, save it and write the result."""
    fitted = fit_to_outputs(training, config)
    if training.test is not None and (evaluation is None or fitted.temperature != 1.0):
        average, test = training.step.average.classifier, training.test
        evaluation = evaluate_classifier(average, test.rows, test.labels, temperature=fitted.temperature)
    judge = None if fitted.judged is None else fitted.judged.judge
    outliers = find_outliers(training, fitted)
    result = run_result(config, training, history, evaluation)
    if outliers is not None:
        result |= outliers.result()
    save_model(
        recorder.path,
        training.model,
        training.spec,
        fitted.refitted,
        fitted.calibration,
        judge=judge,
        temperature=fitted.temperature,
        settings=model_settings(config, training.spec),
        result=result,
    )
    recorder.outliers(None if outliers is None else outliers.csv())
    recorder.result(result)
