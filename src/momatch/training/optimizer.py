"""The optimiser: parameter groups, learning-rate schedule, and state initialised before the first step."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from momatch.config import OptimizerSettings
from momatch.heads import Head

Optimizer = torch.optim.SGD | torch.optim.AdamW


class _Eager:
    """An optimiser that is not compiled: torch wraps its methods to import the compiler first, which takes over a second.

    `step` has to be called without gradient.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class _SGD(_Eager, torch.optim.SGD):
    step = inspect.unwrap(torch.optim.SGD.step)


class _AdamW(_Eager, torch.optim.AdamW):
    step = inspect.unwrap(torch.optim.AdamW.step)


def build_optimizer(
    classifier: nn.Module, settings: OptimizerSettings, algorithm: nn.Module | None = None
) -> Optimizer:
    """Build the optimiser, with its state initialised so that it can be saved and rolled back from the first step on.

    Args:
        classifier: to train.
        settings: of the optimiser.
        algorithm: whose parameters are trained as well; None for none.
    """
    groups = parameter_groups(classifier, settings)
    groups += [] if algorithm is None else parameter_groups(algorithm, settings)
    optimizer: Optimizer
    if settings.optimizer == "sgd":
        nesterov = settings.momentum > 0
        optimizer = _SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=nesterov, foreach=True)
    else:
        # capturable keeps the step counter on the device, which avoids a host sync.
        capturable = next(classifier.parameters()).device.type == "cuda"
        optimizer = _AdamW(groups, lr=settings.lr, foreach=True, capturable=capturable)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = _initial_state(optimizer, group, parameter)
    return optimizer


def parameter_groups(classifier: nn.Module, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Group parameters by whether they have weight decay and whether they belong to the head.

    No decay: biases, norm layers (all one-dimensional) and the mixture's centers and variances. Each group's `lr_factor`
    multiplies the scheduled learning rate.
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
    """The learning rate at `step`: lr cos(7 pi s / (16 S)), never below 0, after a linear warm-up."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    return settings.lr * max(0.0, math.cos(7.0 * math.pi * step / (16.0 * settings.steps)))


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group to `lr` times its `lr_factor`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]


def state_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimiser's state tensors, named "<parameter number>.<state name>"."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(parameters)
        for name, value in optimizer.state[parameter].items()
    }


def _initial_state(optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter) -> dict[str, Tensor]:
    # As torch initialises it; zero momentum gives the same first step as none.
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] else {}
    device = parameter.device if group["capturable"] else torch.device("cpu")
    return {
        "step": torch.zeros((), dtype=torch.float32, device=device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
