"""Collects and restores the full training state: named tensors and plain values, as stored in a checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from momatch.training.optimizer import state_tensors
from momatch.training.setup import Training


@dataclass
class History:
    """State of the training loop.

    Attributes:
        test_accuracy: of the averaged model at the last evaluation.
        best_test_accuracy: maximum so far.
        seconds: spent in the loop, including before a resume.
        metrics: of the last log interval.
    """

    test_accuracy: float | None = None
    best_test_accuracy: float | None = None
    seconds: float = 0.0
    metrics: dict[str, float | None] = field(default_factory=dict)


def collect(training: Training, history: History) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The training state as tensors and plain values, for `restore`."""
    step = training.step
    tensors = {f"optimizer.{name}": value for name, value in state_tensors(step.optimizer).items()}
    for name, module in _modules(training).items():
        tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
    tensors["metrics"] = step.metrics
    facts = {
        "stream": training.stream.state_dict(),
        "history": asdict(history),
        "scaler": step.scaler.state_dict(),
        "data": training.data_digest,
        "processes": step.processes.world_size,
    }
    return tensors, facts


def restore(training: Training, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> History:
    """Load a collected state into a training that was built from the same config.

    Raises:
        ValueError: if the state belongs to another model or other data.
    """
    step = training.step
    if facts["history"].keys() != {entry.name for entry in fields(History)}:
        raise ValueError(
            "checkpoint: written by another release of momatch, expected this one; finish the run with the "
            "release that started it, or start a new run"
        )
    if facts["data"] != training.data_digest:
        raise ValueError(
            f"{training.input.dataset.name}: images, labels or classes have changed since the run was started, expected the "
            "same; restore them, or start a new run"
        )
    for name, module in _modules(training).items():
        prefix = f"{name}."
        part = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        # As checkpoints had it before algorithms held the policies.
        part = {f"algorithm.{key}" if key.startswith("policy.") else key: value for key, value in part.items()}
        try:
            module.load_state_dict(part)
        except RuntimeError as error:
            raise ValueError(f"checkpoint: {name} does not match the config: {error}") from error
    targets = {f"optimizer.{name}": value for name, value in state_tensors(step.optimizer).items()}
    with torch.no_grad():
        for name, target in {**targets, "metrics": step.metrics}.items():
            if name not in tensors:
                raise ValueError(
                    f"checkpoint: {name} is missing; it was written with another optimiser than the config's"
                )
            if target.shape != tensors[name].shape:
                raise ValueError(
                    f"checkpoint: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(target.shape)}: it was "
                    "written by another release of momatch; finish the run with that one, or start a new run"
                )
            target.copy_(tensors[name])
    training.stream.load_state_dict(facts["stream"])
    training.leave_out_outliers()
    if facts["scaler"]:
        step.scaler.load_state_dict(facts["scaler"])
    return History(**facts["history"])


def _modules(training: Training) -> dict[str, nn.Module]:
    step = training.step
    modules: dict[str, nn.Module] = {
        "classifier": step.classifier,
        "average": step.average.classifier,
        "objective": step.objective,
    }
    detector = step.objective.detector
    if detector is not None and detector.head not in (step.classifier.head, step.average.classifier.head):
        modules["outlier_head"] = detector.head
    return modules
