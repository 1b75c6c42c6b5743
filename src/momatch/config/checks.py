"""The kinds of numbers that settings are, and the checks of their values. Does not import torch."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

#: Larger counts overflow a 32-bit integer.
MAX_COUNT = 2**31 - 1
#: No machine has memory for larger batches.
MAX_BATCH = 2**20
#: Images with a longer side do not fit in memory.
MAX_SIDE = 2**14
#: Larger rates and weights are mistakes. The product of three such numbers is still finite in float32.
MAX_NUMBER = 1e6


def within(default: float | int | None, low: float | int, high: float | int) -> Any:
    """A setting from `low` to `high`."""
    return field(default=default, metadata={"low": low, "high": high, "expected": f"{low} to {high}"})


def at_least(default: float | int | None, low: int, high: float | int = MAX_COUNT) -> Any:
    """A setting of at least `low`; `high` is a technical limit."""
    return field(default=default, metadata={"low": low, "high": high, "expected": f"at least {low}"})


def positive(default: float) -> Any:
    """A setting above 0."""
    return field(default=default, metadata={"low": math.ulp(0.0), "high": MAX_NUMBER, "expected": "a positive number"})


def check_type(name: str, value: object, expected: Any) -> None:
    """Check that `value` matches the annotation `expected`: a type, a Literal or a union of those.

    Raises:
        ValueError: starting with `name`; suggests a close match for a misspelt choice.
    """
    options = get_args(expected) if get_origin(expected) in (UnionType, Union) else (expected,)
    types = [option for option in options if get_origin(option) is not Literal]
    # Not isinstance: True must not pass as an int.
    if type(value) in types or (float in types and type(value) is int):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: got {value}, expected a finite number")
        return
    literal = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    if isinstance(value, str) and value in literal:
        return
    if literal:
        choices = [*((False, True) if bool in types else ()), *literal]
        close = difflib.get_close_matches(str(value), map(str, literal), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(map(repr, choices))}{hint}")
    names = " or ".join("None" if option is NoneType else option.__name__ for option in types)
    raise ValueError(f"{name}: got {value!r} of type {type(value).__name__}, expected {names}")


def check_range(name: str, value: float | int, bounds: Mapping[str, Any]) -> None:
    """Check that `value` lies within the `bounds` of `within`, `at_least` or `positive`.

    Raises:
        ValueError: starting with `name`.
    """
    low, high, expected = bounds["low"], bounds["high"], bounds["expected"]
    if not low <= value <= high:
        is_limit = value > high and " to " not in expected
        raise ValueError(f"{name}: got {value}, expected {f'at most {high:,.15g}' if is_limit else expected}")


def refuse_if(is_wrong: bool, message: str) -> None:
    """Raise ValueError with the message if `is_wrong`."""
    if is_wrong:
        raise ValueError(message)
