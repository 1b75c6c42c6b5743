"""Warnings of a command, one line each, on stderr: after the work, or at once if the work takes long."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from momatch.console.signals import speaks


@contextmanager
def warnings_said(command: str) -> Iterator[None]:
    """Collect warnings and print them at the end; none are printed if an error is raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        say_warning(command, str(warning.message))


@contextmanager
def warnings_said_at_once(command: str) -> Iterator[None]:
    """Print warnings as they come; of several processes only the first does."""

    def say(message: Warning | str, *_where: object, **_also: object) -> None:
        if speaks():
            say_warning(command, str(message))

    with warnings.catch_warnings():  # puts back what is replaced here
        warnings.showwarning = say
        yield


def say_warning(command: str, message: str) -> None:
    """Print one warning."""
    print(f"momatch {command}: warning: {message}", file=sys.stderr)
