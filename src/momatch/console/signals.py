"""Handling of Ctrl-C and SIGTERM: a message and the exit code that a shell expects, never a traceback.

- `command_signals` wraps a whole command. The first signal raises `Interrupted`, so that files are closed and workers stopped.
  The second prints a message. The third ends the process at once, as does any signal while modules are being imported.
- `StopSignals` wraps a loop that can save its state. The first signal is recorded: the loop finishes its step, saves and
  stops. The next one stops it without saving; files are written atomically (`momatch.storage.durable`).
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
        signal_number: number of the signal.
        exit_code: 128 + `signal_number`, as shells expect.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


@contextmanager
def command_signals(command: str, *, ends_process: bool) -> Iterator[None]:
    """Let a signal end the command with a message.

    Args:
        command: name of the command, for the message.
        ends_process: the process ends with the command, so signals after it are ignored.

    Raises:
        Interrupted: at the first signal.
    """
    count = 0

    def answer(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        # An exception during an import can be replaced by another one, or leave a module half imported.
        if count > 2 or _is_importing(frame):
            _say(f"momatch {command}: interrupted")
            os._exit(128 + number)
        if count == 2:
            _say(f"momatch {command}: stopping; press Ctrl-C again to quit at once")
            return
        raise Interrupted("interrupted", number)

    before = _install(answer)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ends_process else handler)


def _install(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Install `handler` and return the previous handlers. Does nothing outside the main thread."""
    try:
        return {number: signal.signal(number, handler) for number in _SIGNALS}
    except ValueError:  # only the main thread can handle signals
        return {}


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _say(text: str) -> None:
    """Write a line directly to stderr: the signal may have interrupted a write to Python's stream."""
    if speaks():
        os.write(2, f"{text}\n".encode())


def speaks() -> bool:
    """Whether this process prints messages: the first one started by torchrun, or the only one."""
    return os.environ.get("RANK", "0") == "0"


class StopSignals:
    """Records the first signal instead of raising, then restores the previous handlers.

    Does nothing outside the main thread, where signals cannot be handled.
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
            print(
                "\nstopping after this step; press Ctrl-C again to stop at once without saving",
                file=sys.stderr,
                flush=True,
            )

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
