"""Figures of a run: what a log interval came to, what the whole run came to, and when it is no use going on."""

import math
import sys
from pathlib import Path
from typing import Any

import torch

from momatch.config import TrainConfig
from momatch.evaluation.evaluate import Evaluation
from momatch.storage.checkpoint import FOLDER, last_good
from momatch.storage.versions import versions
from momatch.training.setup import Training
from momatch.training.state import History
from momatch.training.step import METRICS, TrainStep

_LOSSES = METRICS[: METRICS.index("utilisation")]
_GOOD = METRICS.index("good_steps")


class DivergenceError(ValueError):
    """Loss or gradient were not finite for many steps in a row."""


def interval_figures(step: TrainStep) -> dict[str, float | None]:
    """Means over the steps since the last call, read from the device; None where there is nothing to take a mean of."""
    sums = dict(zip(METRICS, step.metrics.tolist(), strict=True))
    step.metrics[: _GOOD + 1] = 0.0
    good = sums["good_steps"]
    names = _LOSSES if step.objective.policy is None else (*_LOSSES, "utilisation", "outlier_share")
    figures: dict[str, float | None] = {name: sums[name] / good if good else None for name in names}
    known = sums["known_weight"]
    figures["pseudo_label_accuracy"] = sums["correct_weight"] / known if known > 0 else None
    return {**figures, "skipped_steps": sums["skipped_steps"]}


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
    in_a_row = int(step.metrics[METRICS.index("longest_skip")])
    if in_a_row < config.max_skipped_steps:
        step.metrics[METRICS.index("longest_skip")] = step.metrics[METRICS.index("skipped_in_a_row")]
        return
    last = {name: float(value) for name, value in step.last_figures.items()}
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
        return (
            "The network's own output is not finite: look at the images and the backbone, or begin anew with a lower lr"
        )
    if bad:
        return f"Only {', '.join(bad)} is not finite: begin anew with a lower weight for it, or a lower lr"
    if config.precision != "float32":
        return "The losses are finite, their gradients are not: begin anew with precision float32"
    if not math.isfinite(last["gradient_norm"]):
        return "The losses are finite, their gradients are not: begin anew with a lower lr and clip_norm 1"
    return "Losses and gradients are finite, but a step takes the head's variances out of range: begin anew with a lower lr"


def run_result(
    config: TrainConfig, training: Training, history: History, evaluation: Evaluation | None
) -> dict[str, Any]:
    """What result.json holds; accuracies are fractions of 1, None where nothing is known."""
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
        "utilisation": history.figures.get("utilisation"),
        "pseudo_label_accuracy": history.figures.get("pseudo_label_accuracy"),
        "loss": history.figures.get("loss"),
        "skipped_steps": int(history.figures.get("skipped_steps") or 0),
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
