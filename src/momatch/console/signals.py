"""How Ctrl-C and SIGTERM are answered: with a sentence and the exit code that a shell expects, never with a traceback.

- `command_signals` stands around a whole command. The first signal raises `Interrupted`, so that files are closed and workers
  ended; the second says so, the third ends the process at once, and so does any that comes while modules are imported.
- `StopSignals` stands around a loop that can save itself. The first signal is noted: the loop finishes its step, saves and
  stops. The next one stops it without saving. Whatever is being written then is whole or not there (`momatch.storage.durable`).
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The work was stopped by a signal.

    Attributes:
        signal_number: of the signal.
        exit_code: what the shell expects of a program that was stopped by this signal.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


@contextmanager
def command_signals(command: str, *, ends_process: bool) -> Iterator[None]:
    """While entered, a signal ends the command with a sentence.

    Args:
        command: that is running, for the sentence.
        ends_process: the process ends with the command: signals that come after it are ignored, because its exit code is
            settled.

    Raises:
        Interrupted: at the first signal.
    """
    count = 0

    def answer(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        # An exception inside an import can come out as another one, or leave half a module behind.
        if count > 2 or _is_importing(frame):
            _say(f"momatch {command}: interrupted")
            os._exit(128 + number)
        if count == 2:
            _say(f"momatch {command}: stopping; once more to quit at once")
            return
        raise Interrupted("interrupted", number)

    before = _install(answer)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ends_process else handler)


def _install(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Let `handler` answer the signals; returns what did before. Outside the main thread nothing is changed."""
    try:
        return {number: signal.signal(number, handler) for number in _SIGNALS}
    except ValueError:  # signals arrive in the main thread only
        return {}


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _say(text: str) -> None:
    """Write a line past the stream of Python, which the signal may have found in the middle of a line of its own."""
    if speaks():
        os.write(2, f"{text}\n".encode())


def speaks() -> bool:
    """True in the first of the processes that torchrun started, and where there is only one."""
    return os.environ.get("RANK", "0") == "0"


class StopSignals:
    """While entered, notes the first signal instead of dying of it; from then on signals do what they did before.

    Outside the main thread signals cannot be caught, and nothing is changed.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._before = _install(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()
        if speaks():
            print("\nstopping after this step; once more to stop at once, without saving", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
