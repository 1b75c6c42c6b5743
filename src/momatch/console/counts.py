"""Counts and shares of things, in words."""

from collections.abc import Mapping


def plural(n: int, noun: str) -> str:
    """A count and its noun: "1 step", "2,000 steps"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def percentages(shares: Mapping[str, float]) -> str:
    """Name and percentage of each, such as "linear, weak 70%; graph 23%"."""
    return "; ".join(f"{name} {share:.0%}" for name, share in shares.items())
