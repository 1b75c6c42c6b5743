"""The moment losses by their definition, cell by cell: slow, obvious, and what the real code is tested against."""

from itertools import product
from math import prod

import torch

PAPER_WEIGHTS = (1.0, 0.5, 0.25, 0.125)


def to_weights(assignment, K, dtype):
    """Hard labels as one-hot weights; weights as they are."""
    if assignment.is_floating_point():
        return assignment
    return torch.nn.functional.one_hot(assignment.long(), K).to(dtype)


def normal_moment(cell):
    """Product over the distinct indices of (q - 1)!! for an even multiplicity q, 0 if any is odd."""
    multiplicities = [cell.count(d) for d in set(cell)]
    return prod(0 if q % 2 else prod(range(1, q, 2)) for q in multiplicities)


def naive_moment_loss(z, centers, assignment, order, *, variances=None, order_weights=PAPER_WEIGHTS):
    """sum_k n_k/n * sum_p w_p * mean over classes of the mean over the class's cells of (M - T)^2."""
    weights = to_weights(assignment, len(centers), z.dtype)
    total = 0.0 * z.sum()
    for k in range(len(centers)):
        n_k = weights[:, k].sum()
        if n_k == 0:
            continue
        u = z - centers[k]
        u = u if variances is None else u / variances[k].sqrt()
        for p in range(1, order + 1):
            classes = {}
            for cell in product(range(z.shape[1]), repeat=p):
                moment = (weights[:, k] * torch.stack([u[:, d] for d in cell]).prod(0)).sum() / n_k
                key = tuple(sorted(cell.count(d) for d in set(cell)))
                classes.setdefault(key, []).append((moment - normal_moment(cell)) ** 2)
            of_order = sum(sum(cells) / len(cells) for cells in classes.values()) / len(classes)
            total = total + n_k / len(z) * order_weights[p - 1] * of_order
    return total


def naive_published_loss(z, centers, labels, order):
    """The published code's orders 1 and 2, transcribed from its formula with loops."""
    n, D = z.shape

    def bend(x, p):
        a = 1 / p
        c, b = a ** (1 / (1 - a)), a ** (a / (1 - a))
        sign = 1.0 if x >= 0 else -1.0
        return sign * ((abs(x) + c) ** a - b)

    penalty = 0.0 * z.sum()
    for k in range(len(centers)):
        members = [z[i] - centers[k] for i in range(n) if labels[i] == k]
        count = len(members) + 1e-7
        share = len(members) / n
        for d in range(D):
            moment = sum((u[d] for u in members), 0.0 * z.sum()) / count
            penalty = penalty + share / D * moment**2
        if order < 2:
            continue
        for d, e in product(range(D), repeat=2):
            if d != e:  # the diagonal has weight 0, and its half of the weight is lost
                moment = sum((u[d] * u[e] for u in members), 0.0 * z.sum()) / count
                penalty = penalty + 0.5 * share * 0.5 / (D * (D - 1)) * (bend(moment, 2) - bend(0.0, 2)) ** 2
    return penalty**2
