"""Warnings as a command says them: after the work, a line each, on stderr."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_said(command: str) -> Iterator[None]:
    """Keep the warnings that come up inside and say them at the end; an error is said alone."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        say_warning(command, str(warning.message))


def say_warning(command: str, message: str) -> None:
    """Say one."""
    print(f"momatch {command}: warning: {message}", file=sys.stderr)
