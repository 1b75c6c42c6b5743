"""Warnings of a command: printed after the work, one line each, on stderr."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_said(command: str) -> Iterator[None]:
    """Collect warnings and print them at the end; none are printed if an error is raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        say_warning(command, str(warning.message))


def say_warning(command: str, message: str) -> None:
    """Print one warning."""
    print(f"momatch {command}: warning: {message}", file=sys.stderr)
