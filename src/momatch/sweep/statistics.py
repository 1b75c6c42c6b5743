"""Means over seeds and paired differences, each with its number of runs.

Runs of one seed share labelled set, initial weights, batches and views as far as their settings allow, so a difference is taken
seed by seed. The interval of its mean is Student's: mean ± t(0.975, n - 1) s / sqrt(n).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Confidence level of every interval.
LEVEL = 0.95
#: A standard deviation below this share of the values themselves is rounding error.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Summary:
    """Values over seeds.

    Attributes:
        mean: their mean.
        std: their standard deviation (n - 1 in the denominator); None for one value.
        n: how many.
    """

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Estimate:
    """A mean with its confidence interval.

    Attributes:
        mean: of the values.
        low: lower end of the 95 % interval; None if there is none.
        high: upper end.
        n: number of values; of pairs, for a difference.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    def is_above(self, bound: float) -> bool:
        """Whether the whole interval lies above `bound`; False without one."""
        return self.low is not None and self.low > bound

    def is_below(self, bound: float) -> bool:
        """Whether the whole interval lies below `bound`; False without one."""
        return self.high is not None and self.high < bound


def summary(values: Sequence[float]) -> Summary | None:
    """Mean, standard deviation and number of the values; None if there is no value."""
    if not values:
        return None
    n, mean = len(values), math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else None
    return Summary(mean, std, n)


def estimate(values: Sequence[float], *, size: float = 0.0) -> Estimate | None:
    """The mean of the values with its 95 % interval; None if there is no value.

    There is no interval for one value, nor for values that are all equal: accuracies on few test images can agree by chance,
    and an interval of zero width would claim certainty.

    Args:
        values: by seed.
        size: largest of the numbers that the values are differences of, to which rounding is relative.
    """
    found = summary(values)
    if found is None:
        return None
    size = max(size, *(abs(value) for value in values), 0.0)
    if found.std is None or found.std <= ROUNDING * size:
        return Estimate(found.mean, None, None, found.n)
    half = t_quantile(found.n) * found.std / math.sqrt(found.n)
    return Estimate(found.mean, found.mean - half, found.mean + half, found.n)


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate | None:
    """The mean of value minus baseline over the seeds that both have; None if they share none.

    Args:
        values: seed -> value.
        baseline: seed -> value.
    """
    seeds = sorted(values.keys() & baseline.keys())
    size = max((abs(of[seed]) for seed in seeds for of in (values, baseline)), default=0.0)
    return estimate([values[seed] - baseline[seed] for seed in seeds], size=size)


def paired_ratio(values: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate | None:
    """The geometric mean of value / baseline over the seeds that both have, with the interval of the logarithms.

    None if they share none, or a value is not positive.

    Args:
        values: seed -> value.
        baseline: seed -> value.
    """
    seeds = sorted(values.keys() & baseline.keys())
    if any(of[seed] <= 0 for seed in seeds for of in (values, baseline)):
        return None
    logs = estimate([math.log(values[seed] / baseline[seed]) for seed in seeds], size=1.0)
    if logs is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Estimate(math.exp(logs.mean), low, high, logs.n)


def t_quantile(n: int) -> float:
    """Half the width of the interval in standard errors, for n values.

    Raises:
        ValueError: if n is less than 2.
    """
    if n < 2:
        raise ValueError(f"n: got {n}, expected at least 2: one value has no spread")
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + LEVEL) / 2))
