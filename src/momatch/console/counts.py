"""Counts of things, in words."""


def plural(n: int, noun: str) -> str:
    """A count and its noun: "1 step", "2,000 steps"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
