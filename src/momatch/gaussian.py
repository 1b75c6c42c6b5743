"""Axis-aligned Gaussians as free functions: log densities of all clusters at once, and Mahalanobis distances.

The squared Mahalanobis distance is two matrix products, d^2 = z^2 @ (1/var)^T - 2 z @ (mu/var)^T + sum(mu^2/var)
(docs/method.md, "Heads"). In float32 that form loses digits when embeddings and centers lie far from the origin, so both are
first moved by a common point, the mean of the centers: no distance changes, and the numbers that cancel become small.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from momatch.validation import is_readable

LOG_2PI = math.log(2.0 * math.pi)

#: Up to this many numbers a sample, distances are taken from the differences themselves: exact also at a center.
DIRECT_CELLS = 4096


def gaussian_log_density(
    z: Float[Tensor, "*batch D"], centers: Float[Tensor, "K D"], log_variances: Float[Tensor, "K D"]
) -> Float[Tensor, "*batch K"]:
    """log N(z; mu_k, diag(var_k)) for every cluster k, up to the constant -D/2 log(2 pi), which the caller adds.

    In eager mode value and gradient come from `_FusedLogDensity`; under compilation, export and ``torch.func`` from the plain
    formula, which those can transform.
    """
    if z.numel() == 0 or torch.compiler.is_compiling() or _is_transformed(z, centers, log_variances):
        return _plain_log_density(z, centers, log_variances)
    flat = z.reshape(-1, z.shape[-1])
    return _fused_log_density(flat, centers, log_variances).reshape(*z.shape[:-1], len(centers))


def unit_gaussian_log_density(z: Float[Tensor, "*batch D"], centers: Float[Tensor, "K D"]) -> Float[Tensor, "*batch K"]:
    """`gaussian_log_density` with every variance 1: one matrix product, because z^2 counts alike for all clusters."""
    shift = centers.detach().mean(0)
    z, centers = z - shift, centers - shift
    linear = F.linear(z, centers, -0.5 * centers.square().sum(-1))
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


def _is_transformed(*tensors: Tensor) -> bool:
    """True inside ``torch.func`` transforms, which cannot see into an autograd function."""
    return any(tensor.device.type == "cpu" and not is_readable(tensor) for tensor in tensors)


def _plain_log_density(z: Tensor, centers: Tensor, log_variances: Tensor) -> Tensor:
    shift = centers.detach().mean(0)
    z, centers = z - shift, centers - shift
    precisions = torch.exp(-log_variances)
    weighted = centers * precisions
    bias = -0.5 * (centers * weighted + log_variances).sum(-1)
    return F.linear(z, weighted, bias) + F.linear(z.square(), -0.5 * precisions)


class _FusedLogDensity(torch.autograd.Function):
    """`_plain_log_density` of (n, D) with its gradient written out: same numbers, fewer passes over memory.

    Plain autograd takes about 2.7 times as long as ``nn.Linear``, this 2.0 times (docs/decisions/0001-fused-head.md). With
    G the incoming gradient, m the moved centers, P the precisions and t = G^T z - (sum_i G_i) m:

        dz = G (m P) - z (G P),   dm = t P,   dlogvar = (P (G^T z^2 - m (G^T z + t)) - sum_i G_i) / 2
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, centers: Tensor, log_variances: Tensor) -> Tensor:
        shift = centers.mean(0)
        moved, m = z - shift, centers - shift
        squares, precisions = moved * moved, torch.exp(-log_variances)
        weighted = m * precisions
        bias = torch.addcmul(log_variances, m, weighted).sum(-1).mul_(-0.5)
        ctx.save_for_backward(z, centers, log_variances, moved, squares, m, precisions, weighted)
        return torch.addmm(bias, moved, weighted.t()).addmm_(squares, precisions.t(), alpha=-0.5)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        z, centers, log_variances, moved, squares, m, precisions, weighted = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted: the plain formula has one
            inputs = [x for x, wanted in zip((z, centers, log_variances), ctx.needs_input_grad, strict=True) if wanted]
            output = _plain_log_density(z, centers, log_variances)
            gradients = iter(torch.autograd.grad(output, inputs, gradient, create_graph=True))
            return tuple(next(gradients) if wanted else None for wanted in ctx.needs_input_grad)
        dz = dm = dlog_variances = None
        if ctx.needs_input_grad[0]:
            dz = (gradient @ precisions).mul_(moved).addmm_(gradient, weighted, beta=-1)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            total = gradient.sum(0).unsqueeze(1)
            first = gradient.t() @ moved
            t = torch.addcmul(first, total, m, value=-1)
            if ctx.needs_input_grad[2]:
                second = torch.addcmul(gradient.t() @ squares, m, first.add_(t), value=-1)
                dlog_variances = second.mul_(precisions).sub_(total).mul_(0.5)
            dm = t.mul_(precisions)
        return dz, dm, dlog_variances


_fused_log_density: Callable[[Tensor, Tensor, Tensor], Tensor] = _FusedLogDensity.apply
