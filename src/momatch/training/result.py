"""The result of a run, and when to stop a run that diverges."""

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
    """Loss or gradient were not finite for many steps in a row."""


def class_thresholds(step: TrainStep) -> dict[str, list[float]]:
    """`thresholds`: the confidence from which a pseudo-label of each class counts; nothing without pseudo-labels."""
    policy, head = step.objective.policy, step.classifier.head
    if policy is None:
        return {}
    return {"thresholds": policy.thresholds(head.num_classes).tolist()}


def check_progress(config: TrainConfig, step: TrainStep, done: int, run_dir: Path) -> None:
    """Stop a run that only skips steps.

    Raises:
        DivergenceError: with what is known about the cause, and the last good checkpoint.
    """
    in_a_row = step.longest_skip()
    if in_a_row < config.max_skipped_steps:
        return
    last = {name: float(value) for name, value in step.last_metrics.items()}
    parts = ", ".join(f"{name} {value:.4g}" for name, value in last.items() if name.endswith(("loss", "norm")))
    raise DivergenceError(
        f"loss, gradient or variances were not finite in {in_a_row} steps in a row up to step {done} ({parts}), and the steps "
        f"were skipped; lr {config.lr}, head_lr_factor {config.head_lr_factor}, precision {config.precision}, clip_norm "
        f"{config.clip_norm}, moment_weight {config.moment_weight}. The last good checkpoint is {last_good(run_dir / FOLDER)}. "
        f"{_remedy(last, config)}"
    )


def _remedy(last: dict[str, float], config: TrainConfig) -> str:
    bad = [name for name, value in last.items() if name.endswith("_loss") and not math.isfinite(value)]
    if "supervised_loss" in bad:
        return "The network's own output is not finite: look at the images and the backbone, or start again with a lower lr"
    if bad:
        return f"Only {', '.join(bad)} is not finite: start again with a lower weight for it, or a lower lr"
    if config.precision != "float32":
        return "The losses are finite, their gradients are not: start again with precision float32"
    if not math.isfinite(last["gradient_norm"]):
        return "The losses are finite, their gradients are not: start again with a lower lr and clip_norm 1"
    return "Losses and gradients are finite, but a step takes the head's variances out of range: start again with a lower lr"


def run_result(
    config: TrainConfig, training: Training, history: History, evaluation: Evaluation | None
) -> dict[str, Any]:
    """The contents of result.json; accuracies are fractions of 1, None where unknown."""
    images = config.steps * (config.labeled_batch_size + 2 * config.unlabeled_batch_size)
    return {
        "test_accuracy": None if evaluation is None else evaluation.accuracy,
        "test_accuracy_note": training.input.no_test
        if evaluation is None
        else "the averaged (EMA) model at the last step",
        "best_test_accuracy": history.best_test_accuracy,
        "best_test_accuracy_note": "an oracle: the largest over all evaluations on the test images; no model was chosen by it",
        "compactness": None if evaluation is None else evaluation.compactness,
        "compactness_true": None if evaluation is None else evaluation.compactness_true,
        "center_spread": None if evaluation is None else evaluation.center_spread,
        "center_offset": None if evaluation is None else evaluation.center_offset,
        "ece": None if evaluation is None else evaluation.ece,
        "per_class_accuracy": None if evaluation is None else list(evaluation.per_class),
        "test_images": None if evaluation is None else evaluation.n,
        "utilisation": history.metrics.get("utilisation"),
        "pseudo_label_accuracy": history.metrics.get("pseudo_label_accuracy"),
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
    """The most memory that was in use: of the GPU by tensors, else of this process; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in kilobytes, macOS in bytes.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
