"""The optimiser: which parameter decays and learns how fast, the learning rate over time, and its state from the start."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from momatch.config import OptimizerSettings
from momatch.heads import Head

Optimizer = torch.optim.SGD | torch.optim.AdamW


def build_optimizer(classifier: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """The optimiser of all parameters that train, its state initialised.

    A state that exists before the first step can be saved, restored and rolled back like any other.
    """
    groups = parameter_groups(classifier, settings)
    optimizer: Optimizer
    if settings.optimizer == "sgd":
        nesterov = settings.momentum > 0
        optimizer = torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=nesterov, foreach=True)
    else:
        # The step counter on the device: the host would have to wait to read it.
        capturable = next(classifier.parameters()).device.type == "cuda"
        optimizer = torch.optim.AdamW(groups, lr=settings.lr, foreach=True, capturable=capturable)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = _initial_state(optimizer, group, parameter)
    return optimizer


def parameter_groups(classifier: nn.Module, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Parameters by whether they decay and whether they are the head's.

    Biases, norm layers (all one-dimensional) and the mixture's centers and variances do not decay. Each group carries
    `lr_factor`, by which the schedule's learning rate is multiplied.
    """
    undecayed = {
        id(parameter)
        for module in classifier.modules()
        if isinstance(module, Head)
        for parameter in module.undecayed_parameters()
    }
    head = {id(parameter) for parameter in getattr(classifier, "head", nn.Module()).parameters()}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in classifier.parameters():
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and id(parameter) not in undecayed
            groups.setdefault((decays, id(parameter) in head), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": settings.weight_decay if decays else 0.0,
            "lr_factor": settings.head_lr_factor if is_head else 1.0,
        }
        for (decays, is_head), parameters in groups.items()
    ]


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """The learning rate of `step`: lr cos(7 pi s / (16 S)), never below 0, after a linear warm-up."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    return settings.lr * max(0.0, math.cos(7.0 * math.pi * step / (16.0 * settings.steps)))


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Give every group its share of `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]


def state_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by name: the number of the parameter and what it is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(parameters)
        for name, value in optimizer.state[parameter].items()
    }


def _initial_state(optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter) -> dict[str, Tensor]:
    # What the optimiser itself would begin with; a zero momentum and none at all give the same first step.
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] else {}
    device = parameter.device if group["capturable"] else torch.device("cpu")
    return {
        "step": torch.zeros((), dtype=torch.float32, device=device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
