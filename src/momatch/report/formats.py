"""Numbers as text for a reader, and as short JSON values for the page's scripts."""

import math
from collections.abc import Iterable
from typing import TypeGuard


def is_number(value: object) -> TypeGuard[float | int]:
    """True for a finite number; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # A damaged file may hold an integer that is too large for a float.
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def percent(value: float | int) -> str:
    """A fraction as a percentage with one digit; a no-break space keeps the sign on the same line."""
    return f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def decimal(value: float | int) -> str:
    """A number with three significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def count(value: float | int) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def letter(number: int) -> str:
    """The letter of a run: A, B, ..., Z, AA, AB, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def rounded(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """Values with a few significant digits, to keep the page small; None for a value that is not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]
