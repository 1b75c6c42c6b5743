"""Axis-aligned Gaussians: log densities of all clusters at once, and Mahalanobis distances.

The squared Mahalanobis distance is two matrix products, d^2 = z^2 @ (1/var)^T - 2 z @ (mu/var)^T + sum(mu^2/var)
(docs/method.md, "Heads"). In float32 this form loses digits far from the origin, so the mean of the centers is first
subtracted from embeddings and centers, which changes no distance.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from momatch.numerics.checks import is_traced

LOG_2PI = math.log(2.0 * math.pi)

#: Up to this many center coordinates (K * D), distances are computed from differences, which is exact even at a center.
DIRECT_CELLS = 4096
#: The same limit for log joints, which are on the hot path; 10 classes in 8 dimensions are below it.
DIRECT_LOG_JOINT = 128


def gaussian_log_joint(
    z: Float[Tensor, "*batch D"],
    centers: Float[Tensor, "K D"],
    log_variances: Float[Tensor, "K D"],
    log_prior: Float[Tensor, " K"],
) -> Float[Tensor, "*batch K"]:
    """log p(y=k) + log N(z; mu_k, diag(var_k)) for every cluster k.

    Small problems are computed directly, which is exact. Larger ones use `_FusedLogJoint` in eager mode, and the plain formula
    under compilation, export, ``torch.func`` and forward-mode differentiation, which can transform it. Both lose digits as
    (distance between clusters / sigma)^2 grows.
    """
    constants = log_prior - 0.5 * z.shape[-1] * LOG_2PI
    if centers.numel() <= DIRECT_LOG_JOINT:
        return _direct_log_joint(z, centers, log_variances, constants)
    if is_traced() or forward_ad._current_level >= 0:
        return _plain_log_joint(z, centers, log_variances, constants)
    if z.ndim == 2:
        return _fused_log_joint(z, centers, log_variances, constants)
    flat = z.reshape(-1, z.shape[-1])
    return _fused_log_joint(flat, centers, log_variances, constants).reshape(*z.shape[:-1], len(centers))


def unit_gaussian_log_joint(
    z: Float[Tensor, "*batch D"], centers: Float[Tensor, "K D"], log_prior: Float[Tensor, " K"]
) -> Float[Tensor, "*batch K"]:
    """`gaussian_log_joint` with every variance 1: one matrix product, because z^2 is the same for all clusters."""
    constants = log_prior - 0.5 * z.shape[-1] * LOG_2PI
    if centers.numel() <= DIRECT_LOG_JOINT:
        return constants - 0.5 * (z.unsqueeze(-2) - centers).square().sum(-1)
    shift = centers.detach().mean(0)
    z, centers = z - shift, centers - shift
    linear = F.linear(z, centers, constants - 0.5 * centers.square().sum(-1))
    return linear - 0.5 * z.square().sum(-1, keepdim=True)


def mahalanobis_distance(
    z: Float[Tensor, "*batch D"], centers: Float[Tensor, "K D"], variances: Float[Tensor, "K D"]
) -> Float[Tensor, "*batch K"]:
    """d_k = sqrt(sum_d (z_d - mu_kd)^2 / var_kd), with a zero (not NaN) gradient at a center."""
    if centers.numel() <= DIRECT_CELLS:
        distance: Tensor = torch.linalg.vector_norm((z.unsqueeze(-2) - centers) * variances.rsqrt(), dim=-1)
        return distance
    shift = centers.detach().mean(0)
    z, centers = z - shift, centers - shift
    precisions = variances.reciprocal()
    weighted = centers * precisions
    constant = (centers * weighted).sum(-1)
    squared = F.linear(z.square(), precisions, constant) - 2.0 * F.linear(z, weighted)
    return squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()


def _direct_log_joint(z: Tensor, centers: Tensor, log_variances: Tensor, constants: Tensor) -> Tensor:
    squared = (z.unsqueeze(-2) - centers).square() * torch.exp(-log_variances)  # (..., K, D)
    return constants - 0.5 * (squared + log_variances).sum(-1)


def _plain_log_joint(z: Tensor, centers: Tensor, log_variances: Tensor, constants: Tensor) -> Tensor:
    shift = centers.detach().mean(0)
    z, centers = z - shift, centers - shift
    precisions = torch.exp(-log_variances)
    weighted = centers * precisions
    bias = constants - 0.5 * (centers * weighted + log_variances).sum(-1)
    return F.linear(z, weighted, bias) + F.linear(z.square(), -0.5 * precisions)


class _FusedLogJoint(torch.autograd.Function):
    """`_plain_log_joint` of (n, D) with a hand-written gradient: same numbers, fewer passes over memory.

    Speed-up over autograd: docs/decisions/0001-fused-head.md and benchmarks/heads.py. With G the incoming gradient, z and m
    the shifted embeddings and centers, P the precisions and t = G^T z - (sum_i G_i) m:

        dz = G (m P) - z (G P),   dm = t P,   dlogvar = (P (G^T z^2 - m (G^T z + t)) - sum_i G_i) / 2
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, centers: Tensor, log_variances: Tensor, constants: Tensor) -> Tensor:
        shift = centers.mean(0)
        moved, m = z - shift, centers - shift
        squares, precisions = moved * moved, torch.exp(-log_variances)
        weighted = m * precisions
        bias = torch.sub(constants, torch.addcmul(log_variances, m, weighted).sum(-1), alpha=0.5)
        ctx.save_for_backward(z, centers, log_variances, constants, moved, squares, m, precisions, weighted)
        return torch.addmm(bias, moved, weighted.t()).addmm_(squares, precisions.t(), alpha=-0.5)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        *inputs, moved, squares, m, precisions, weighted = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():  # double backward: the plain formula is differentiable twice
            leaves = [tensor for tensor, want in zip(inputs, wanted, strict=True) if want]
            gradients = iter(torch.autograd.grad(_plain_log_joint(*inputs), leaves, gradient, create_graph=True))
            return tuple(next(gradients) if want else None for want in wanted)
        dz = dm = dlog_variances = total = None
        if wanted[0]:
            dz = (gradient @ precisions).mul_(moved).addmm_(gradient, weighted, beta=-1)
        if any(wanted[1:]):
            total = gradient.sum(0)
        if total is not None and (wanted[1] or wanted[2]):
            first = gradient.t() @ moved
            t = torch.addcmul(first, total.unsqueeze(1), m, value=-1)
            if wanted[2]:
                second = torch.addcmul(gradient.t() @ squares, m, first.add_(t), value=-1)
                dlog_variances = torch.addcmul(-0.5 * total.unsqueeze(1), second, precisions, value=0.5)
            dm = t.mul_(precisions)
        return dz, dm, dlog_variances, total


_fused_log_joint: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _FusedLogJoint.apply
