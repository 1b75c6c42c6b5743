"""The result of a run, and the check for divergence."""

import math
import sys
from pathlib import Path
from typing import Any

import torch

from momatch.config import TrainConfig
from momatch.evaluation.evaluate import Evaluation
from momatch.storage.checkpoint import FOLDER, last_good
from momatch.storage.machine import versions
from momatch.training.setup import Training
from momatch.training.state import History
from momatch.training.step import TrainStep


class DivergenceError(ValueError):
    """Loss or gradient were not finite for many consecutive steps."""


def class_thresholds(step: TrainStep) -> dict[str, list[float]]:
    """The metric `thresholds`: minimum confidence of a pseudo-label, by class; empty if the algorithm has none."""
    thresholds = step.objective.algorithm.thresholds(step.classifier.head.num_classes)
    return {} if thresholds is None else {"thresholds": thresholds.tolist()}


def check_progress(config: TrainConfig, step: TrainStep, done: int, run_dir: Path) -> None:
    """Stop a run that keeps skipping steps.

    Raises:
        DivergenceError: with the likely cause and the last good checkpoint.
    """
    in_a_row = step.longest_skip()
    if in_a_row < config.max_skipped_steps:
        return
    last = {name: float(value) for name, value in step.last_metrics.items()}
    parts = ", ".join(f"{name} {value:.4g}" for name, value in last.items() if name.endswith(("loss", "norm")))
    raise DivergenceError(
        f"training diverged: loss, gradient or variances were not finite for {in_a_row} consecutive steps up to step {done} "
        f"({parts}), which were skipped; lr {config.lr}, head_lr_factor {config.head_lr_factor}, precision "
        f"{config.precision}, clip_norm {config.clip_norm}, moment_weight {config.moment_weight}. The last good checkpoint is "
        f"{last_good(run_dir / FOLDER)}. {_remedy(last, config)}"
    )


def _remedy(last: dict[str, float], config: TrainConfig) -> str:
    bad = [name for name, value in last.items() if name.endswith("_loss") and not math.isfinite(value)]
    if "supervised_loss" in bad:
        return "The network's output is not finite: check the images and the backbone, or start again with a lower lr"
    if bad:
        return f"Only {', '.join(bad)} is not finite: start again with a lower weight for it, or a lower lr"
    if config.precision != "float32":
        return "The losses are finite but their gradients are not: start again with precision float32"
    if not math.isfinite(last["gradient_norm"]):
        return "The losses are finite but their gradients are not: start again with a lower lr and clip_norm 1"
    return "Losses and gradients are finite, but a step pushes the head's variances out of range: start again with a lower lr"


def run_result(
    config: TrainConfig, training: Training, history: History, evaluation: Evaluation | None
) -> dict[str, Any]:
    """The contents of result.json. Accuracies are fractions of 1, or None if unknown."""
    images = config.steps * (config.labeled_batch_size + 2 * config.unlabeled_batch_size)
    return {
        "test_accuracy": None if evaluation is None else evaluation.accuracy,
        "test_accuracy_note": training.input.no_test
        if evaluation is None
        else "the averaged (EMA) model at the last step",
        "best_test_accuracy": history.best_test_accuracy,
        "best_test_accuracy_note": "oracle: the highest test accuracy of any evaluation; not used to select a model",
        "compactness": None if evaluation is None else evaluation.compactness,
        "compactness_true": None if evaluation is None else evaluation.compactness_true,
        "center_spread": None if evaluation is None else evaluation.center_spread,
        "center_offset": None if evaluation is None else evaluation.center_offset,
        "ece": None if evaluation is None else evaluation.ece,
        "per_class_accuracy": None if evaluation is None else list(evaluation.per_class),
        "test_images": None if evaluation is None else evaluation.n,
        "utilisation": history.metrics.get("utilisation"),
        "pseudo_label_accuracy": history.metrics.get("pseudo_label_accuracy"),
        "left_out_share": training.left_out_share,
        "evidence": training.evidence,
        "loss": history.metrics.get("loss"),
        "skipped_steps": int(history.metrics.get("skipped_steps") or 0),
        "steps": config.steps,
        "seconds": history.seconds,
        "images_per_second": images / history.seconds if history.seconds else None,
        "peak_memory_mb": peak_memory_mb(training.step.device),
        "labeled_images": len(training.data.labels),
        "unlabeled_images": len(training.data.unlabeled),
        "parameters": sum(parameter.numel() for parameter in training.step.classifier.parameters()),
        "seed": config.seed,
        "device": training.step.device.type,
        "processes": training.step.processes.world_size,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **training.input.result(),
    }


def peak_memory_mb(device: torch.device) -> float | None:
    """Peak memory of tensors on the GPU, or of this process on other devices; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux reports kilobytes, macOS bytes.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
