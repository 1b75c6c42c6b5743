"""Progress on stderr: one live line on a terminal, plain lines in a file or pipe.

`Progress` is for training runs, `CountProgress` for anything that is counted, such as images to predict.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOBase
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from momatch.console.wording import format_duration

#: Metric -> short name of that part of the loss.
LOSS_PARTS = {"supervised_loss": "sup", "unlabeled_loss": "unl", "constraint_loss": "mom", "fairness_loss": "fair"}
#: Speed and time left are computed over this many updates: enough to smooth over an evaluation, few enough to forget a slow
#: start.
_WINDOW = 20
#: Seconds between plain lines of `CountProgress`.
_INTERVAL = 30.0
#: Seconds between redraws of the live line of `CountProgress`; redrawing it for every image would be too slow.
_LIVE_INTERVAL = 0.1
Metrics = Mapping[str, float | int | None]


class _Terminal(Console):
    """A console that does not hide the cursor, which a kill would leave hidden, and survives a closed pipe."""

    def show_cursor(self, show: bool = True) -> bool:
        """Do nothing."""
        return False

    def on_broken_pipe(self) -> None:
        """Stop printing."""
        self.quiet = True


class _Line:
    """One line that is rewritten on a terminal, or a new line per update elsewhere. A closed stream is not an error."""

    def __init__(self, stream: TextIO | TextIOBase | None, live: bool | None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live: Live | None = None
        self.is_live = self._stream.isatty() if live is None else live
        if self.is_live:
            # mypy: rich is annotated with IO[str] but needs only write and flush.
            console = _Terminal(file=self._stream, force_terminal=True, highlight=False)  # type: ignore[arg-type]
            self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def show(self, pieces: Sequence[str]) -> None:
        """Show the line, truncated to the width of the terminal."""
        if self._live is None:
            self.message("  ".join(pieces))
            return
        with suppress(OSError, ValueError):
            self._live.start()
            self._live.update(Text("  ".join(pieces), no_wrap=True, overflow="ellipsis"), refresh=True)

    def message(self, text: str) -> None:
        """Write a separate line, above the live line if there is one."""
        with suppress(OSError, ValueError):
            if self._live is not None:
                self._live.console.print(text, markup=False, soft_wrap=True)
            else:
                self._stream.write(text + "\n")
                self._stream.flush()

    def close(self) -> None:
        """End the live line; its last state stays visible."""
        if self._live is not None:
            with suppress(OSError, ValueError):
                self._live.stop()
            self._live = None


class _Pace:
    """Speed and time left, from the latest updates of this process."""

    def __init__(self, total: int | None, done: int) -> None:
        self._total = total
        self._begin = time.monotonic()
        # (time, done, total items) of the latest updates.
        self._history = deque([(self._begin, done, 0)], maxlen=_WINDOW + 1)

    def update(self, done: int, items: int) -> None:
        """Record that `done` is done, with `items` more items processed."""
        self._history.append((time.monotonic(), done, self._history[-1][2] + items))

    def pieces(self, unit: str) -> list[str]:
        """Time left (or at the end, time taken) and speed; empty until known."""
        (then, first, items_then), (now, last, items) = self._history[0], self._history[-1]
        if now <= then or last <= first:
            return []
        speed = (items - items_then) / (now - then)
        rate = f"{speed:,.0f} {unit}/s" if speed >= 10 else f"{speed:.1f} {unit}/s"
        if self._total is None:
            return [rate]
        if last >= self._total:
            return [f"took {format_duration(now - self._begin)}", rate]
        return [f"{format_duration((self._total - last) * (now - then) / (last - first))} left", rate]


class CountProgress:
    """Progress of a count; without a terminal, a plain line every 30 seconds.

    Args:
        total: None if unknown.
        label: name of the task.
        unit: what is counted.
        done: count from an earlier process.
        enabled: False shows nothing.
    """

    def __init__(
        self, total: int | None, *, label: str, unit: str = "image", done: int = 0, enabled: bool = True
    ) -> None:
        self.done = self._shown = done
        self._total, self._label, self._unit = total, label, unit
        self._line = _Line(None, None) if enabled else None
        self._pace = _Pace(total, done)
        self._interval = _LIVE_INTERVAL if self._line is not None and self._line.is_live else _INTERVAL
        self._last_line = time.monotonic()

    def add(self, count: int) -> None:
        """Add `count` to the number done."""
        self.done += count
        if self._line is None:
            return
        now = time.monotonic()
        if now - self._last_line >= self._interval or (self._line.is_live and self.done == self._total):
            self._last_line = now
            self._pace.update(self.done, self.done - self._shown)
            self._shown = self.done
            of_all = "" if self._total is None else f" of {self._total:,}"
            counted = f"{self._label}: {self.done:,}{of_all} {self._unit}s"
            self._line.show([counted, *self._pace.pieces(self._unit)])

    def close(self) -> None:
        """End the line."""
        if self._line is not None:
            self._line.close()

    def __enter__(self) -> "CountProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Progress:
    """Progress of a training run.

    The most important parts come first, because a narrow terminal truncates the line (wrapped here):

        step 1200/5000  test 96.4%  5 min 42 s left  1,043 img/s  loss 0.412 = sup 0.210 + unl 0.180 + mom 0.022
        81.2% of pseudo-labels used, 97.9% correct

    Missing metrics and NaN accuracies are omitted; a NaN loss is shown. The last known test accuracy stays.
    Speed and time left count only this process's steps, so they are right after a resume. A closed stream does not end the run.

    Args:
        total_steps: total number of steps.
        start_step: steps done by earlier processes.
        stream: where to write; None for stderr.
        live: rewrite one line (True) or write a new line per update (False); None for live on a terminal.
        unit: of what goes through the network.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        stream: TextIO | TextIOBase | None = None,
        live: bool | None = None,
        unit: str = "img",
    ) -> None:
        self._total = total_steps
        self._unit = unit
        self._line = _Line(stream, live)
        self._pace = _Pace(total_steps, start_step)
        self._test_accuracy: float | None = None

    def update(self, step: int, metrics: Metrics, images: int) -> None:
        """Show the state of the run.

        Args:
            step: total steps done, including those of earlier processes.
            metrics: by name, as in metrics.jsonl; others than those shown are ignored.
            images: images that went through the network since the last update, counting every view.
        """
        self._pace.update(step, images)
        accuracy = _known(metrics.get("test_accuracy"))
        self._test_accuracy = self._test_accuracy if accuracy is None else accuracy
        pieces = [f"step {step}/{self._total}"]
        if self._test_accuracy is not None:
            pieces.append(f"test {self._test_accuracy:.1%}")
        self._line.show([*pieces, *self._pace.pieces(self._unit), *_metric_pieces(metrics)])
        if step >= self._total:
            # Later messages go below the line.
            self._line.close()

    def message(self, text: str) -> None:
        """Write a separate line, above the live line; below it once the last step is done."""
        self._line.message(text)

    def close(self) -> None:
        """End the live line; its last state stays visible."""
        self._line.close()


def _metric_pieces(metrics: Metrics) -> list[str]:
    pieces = []
    loss = metrics.get("loss")
    if loss is not None:
        pieces.append(f"loss {_number(loss)}{_loss_parts(loss, metrics)}")
    used, right = _known(metrics.get("utilisation")), _known(metrics.get("pseudo_label_accuracy"))
    if used is not None:
        pieces.append(f"{used:.1%} of pseudo-labels used" + ("" if right is None else f", {right:.1%} correct"))
    if metrics.get("skipped_steps"):
        pieces.insert(0, f"{metrics['skipped_steps']:.0f} steps skipped")
    return pieces


def _loss_parts(loss: float, metrics: Metrics) -> str:
    """The nonzero parts: as a sum if they add up to the loss, otherwise in parentheses."""
    parts = {name: value for key, name in LOSS_PARTS.items() if (value := metrics.get(key))}
    if not parts:
        return ""
    words = [f"{name} {_number(value)}" for name, value in parts.items()]
    add_up = math.isclose(sum(parts.values()), loss, rel_tol=1e-3, abs_tol=1e-3)
    return " = " + " + ".join(words) if add_up else f" ({', '.join(words)})"


def _known(share: float | None) -> float | None:
    return None if share is None or math.isnan(share) else share


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"
