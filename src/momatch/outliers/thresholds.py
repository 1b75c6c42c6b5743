"""The chi-square threshold: the squared distance to a sample's own Gaussian cluster is chi-square distributed."""

import torch

from momatch.numerics.checks import check_fraction


def chi2_quantile(quantile: float, dof: int) -> float:
    """Quantile of the chi-square distribution, by bisection of its CDF; inf at 1."""
    check_fraction("quantile", quantile)
    if quantile == 1.0:
        return torch.inf
    half = torch.tensor(0.5 * dof, dtype=torch.float64)

    def below(x: float) -> float:
        return float(torch.special.gammainc(half, torch.tensor(0.5 * x, dtype=torch.float64)))

    low, high = 0.0, float(dof)
    while below(high) < quantile:
        low, high = high, 2.0 * high
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(middle) < quantile else (low, middle)
    return 0.5 * (low + high)
