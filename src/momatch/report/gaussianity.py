"""How Gaussian each class is around its center: its sample moments against those of a Gaussian, quantiles of the distance.

The D^p cells of a moment tensor are never built. For two samples u and v let P_r = sum_d u_d^r v_d^r. The sum over the cells
of a partition of the product of both samples' monomials is a polynomial in P_1 to P_4 (`PAIRS`; docs/method.md, "The Gram
identity"), so

    sum over cells of M^2 = its mean over all pairs of samples,   sum over cells of M = its mean with v = (1, ..., 1),

and sum (M - T)^2 = sum M^2 - 2 T sum M + T^2 cells, in float64.
"""

from collections.abc import Callable
from math import isfinite, prod, sqrt

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.constraints.cells import NORMAL_MOMENTS, Partition, cell_counts
from momatch.heads import Head
from momatch.report.run_report import ClusterMoments, MomentRow

#: Pairs of samples in one batch.
PAIRS_AT_ONCE = 1 << 20
#: Points of a Q-Q plot.
MAX_QUANTILES = 100

PAIRS: dict[Partition, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    (1,): lambda p1, p2, p3, p4: p1,
    (2,): lambda p1, p2, p3, p4: p2,
    (1, 1): lambda p1, p2, p3, p4: p1**2 - p2,
    (3,): lambda p1, p2, p3, p4: p3,
    (2, 1): lambda p1, p2, p3, p4: 3 * (p2 * p1 - p3),
    (1, 1, 1): lambda p1, p2, p3, p4: p1**3 - 3 * p1 * p2 + 2 * p3,
    (4,): lambda p1, p2, p3, p4: p4,
    (3, 1): lambda p1, p2, p3, p4: 4 * (p3 * p1 - p4),
    (2, 2): lambda p1, p2, p3, p4: 3 * (p2**2 - p4),
    (2, 1, 1): lambda p1, p2, p3, p4: 6 * (p2 * p1**2 - p2**2 - 2 * p3 * p1 + 2 * p4),
    (1, 1, 1, 1): lambda p1, p2, p3, p4: p1**4 - 6 * p1**2 * p2 + 8 * p1 * p3 + 3 * p2**2 - 6 * p4,
}


def moment_rows(u: Float[Tensor, "n D"]) -> tuple[MomentRow, ...]:
    """Sample moments of order 1 to 4 of residuals, for each partition that has cells in D dimensions.

    Args:
        u: finite residuals, at least one row.

    Raises:
        ValueError: if their fourth powers overflow.
    """
    n, D = u.shape
    u = u.double()
    sums = {partition: float(value.mean()) for partition, value in _polynomials(u, torch.ones_like(u[:1])).items()}
    squares = dict.fromkeys(PAIRS, 0.0)
    for rows in u.split(max(1, PAIRS_AT_ONCE // n)):
        for partition, values in _polynomials(rows, u).items():
            squares[partition] += float(values.sum()) / n**2
    if not all(isfinite(value) for value in (*sums.values(), *squares.values())):
        raise ValueError("The fourth powers of the embeddings overflow: the model has diverged")
    found = []
    for partition, cells in cell_counts(D).items():
        if cells == 0:
            continue
        target, mean = NORMAL_MOMENTS.get(partition, 0.0), sums[partition] / cells
        # Rounding may leave a small negative number.
        error = sqrt(max(0.0, squares[partition] / cells - 2 * target * mean + target**2))
        name = f"({','.join(map(str, partition))})"
        found.append(MomentRow(name, sum(partition), target, mean, error, moment_noise(partition, n)))
    return tuple(found)


def moment_noise(partition: Partition, n: int) -> float:
    """Root mean square error of a sample moment of `n` draws of N(0, I): sqrt(variance of the monomial / n)."""
    target = NORMAL_MOMENTS.get(partition, 0.0)
    # E[x^(2q)] = (2q - 1)!!
    return sqrt((prod(prod(range(1, 2 * q, 2)) for q in partition) - target**2) / n)


def distance_quantiles(d2: Float[Tensor, " n"], dimensions: int) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    """Quantiles of the chi-square distribution and of squared Mahalanobis distances `d2`, at (i - 1/2) / q."""
    from scipy.stats import chi2

    q = min(len(d2), MAX_QUANTILES)
    levels = (np.arange(q) + 0.5) / q
    observed = np.quantile(d2.double().numpy(), levels, method="hazen")
    return torch.from_numpy(chi2.ppf(levels, dimensions)), torch.from_numpy(observed)


@torch.no_grad()
def cluster_moments(
    head: Head,
    z: Float[Tensor, "n D"],
    labels: Int64[Tensor, " n"],
    names: tuple[str, ...],
    *,
    whiten: bool,
) -> tuple[ClusterMoments, ...]:
    """Moments and distances of each class around its center; classes without samples are left out.

    Args:
        head: as trained.
        z: finite embeddings.
        labels: true classes, -1 if unknown.
        names: class names.
        whiten: measure moments in the head's standard deviations.
    """
    centers, deviations = head.centers.cpu().double(), head.variances.cpu().double().sqrt()
    found = []
    for k, name in enumerate(names):
        u = z[labels == k].double() - centers[k]
        if len(u) == 0:
            continue
        scaled = u / deviations[k]
        expected, observed = distance_quantiles(scaled.square().sum(1), u.shape[1])
        found.append(ClusterMoments(name, len(u), moment_rows(scaled if whiten else u), expected, observed))
    return tuple(found)


def _polynomials(rows: Float[Tensor, "m D"], columns: Float[Tensor, "n D"]) -> dict[Partition, Tensor]:
    grams = [rows**r @ (columns**r).T for r in range(1, 5)]
    return {partition: polynomial(*grams) for partition, polynomial in PAIRS.items()}
