"""Counts, shares and durations in words."""

from collections.abc import Mapping


def plural(n: int, noun: str) -> str:
    """A count and its noun: "1 step", "2,000 steps"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def percentages(shares: Mapping[str, float]) -> str:
    """Name and percentage of each, such as "linear, weak 70%; graph 23%"."""
    return "; ".join(f"{name} {share:.0%}" for name, share in shares.items())


def format_duration(seconds: float) -> str:
    """A duration as "0.4 s", "45 s", "3 min 05 s", "2 h 07 min" or "3 d 04 h"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest:02} s"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02} h" if days else f"{hours} h {minutes:02} min"
