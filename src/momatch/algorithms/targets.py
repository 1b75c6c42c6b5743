"""Soft targets: sharpening, cross-entropy and squared error against them, and the ramp of a weight."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from momatch.heads import log_posterior


def sharpen(posterior: Float[Tensor, "u K"], temperature: float) -> Float[Tensor, "u K"]:
    """p^(1/T), normalised; in log space, so that small probabilities do not underflow."""
    return torch.softmax(posterior.log() / temperature, -1)


def soft_cross_entropy(log_joint: Float[Tensor, "n K"], target: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """-sum_k target_k log p_k of each sample."""
    return -(target * log_posterior(log_joint)).sum(-1)


def squared_error(log_joint: Float[Tensor, "n K"], target: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """mean_k (p_k - target_k)^2 of each sample."""
    return (log_posterior(log_joint).exp() - target).square().mean(-1)


def one_hot(labels: Integer[Tensor, " n"], like: Float[Tensor, "u K"]) -> Float[Tensor, "n K"]:
    """Labels as distributions over the classes of `like`, in its dtype."""
    return F.one_hot(labels, like.shape[-1]).to(like.dtype)


def ramp(progress: float, length: float) -> float:
    """Rises linearly from 0 to 1 over the first `length` of the training; 1 throughout for length 0."""
    return 1.0 if length == 0 else min(1.0, progress / length)
