"""How a run is going: one live line on a terminal, a plain line at each update elsewhere (a file, a pipe)."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from io import TextIOBase
from typing import TextIO

from tqdm import tqdm

#: Metric -> what a part of the loss is called on the line.
LOSS_PARTS = {"supervised_loss": "sup", "unlabeled_loss": "unl", "constraint_loss": "mom", "fairness_loss": "fair"}
#: Speed and time left are those of so many updates: long enough for an evaluation in between not to show, short enough to
#: forget a slow start.
_WINDOW = 20
#: Pieces of the line from this rank on are left out one by one; without one of a lower rank, the others have no room either.
_OPTIONAL = 6

Metrics = Mapping[str, float | int | None]


class Progress:
    """Shows where a run is.

    A line, here cut in two:

        step 1200/5000  loss 0.412 = sup 0.210 + unl 0.180 + mom 0.022  81.2% of pseudo-labels used, 97.9% right
        test 96.4%  1043 img/s  5:42 left

    A metric that is None or missing is left out, and so is an accuracy that is NaN; a loss that is NaN is shown. The last known
    test accuracy stays. A live line leaves out what the width of the terminal has no room for. Speed and time left come
    from steps done in this process, so they are right after a resume. A stream that nobody reads any more does not end the run.

    Args:
        total_steps: where the run ends.
        start_step: steps that were done before, in another process.
        stream: where to write; None for the standard error.
        live: one line that is rewritten (True) or a new line at each update (False); None for live on a terminal.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        stream: TextIO | TextIOBase | None = None,
        live: bool | None = None,
    ) -> None:
        self._total = total_steps
        self._stream = sys.stderr if stream is None else stream
        self._test_accuracy: float | None = None
        # (time, step, images in all) of the last updates.
        self._history = deque([(time.monotonic(), start_step, 0)], maxlen=_WINDOW + 1)
        self._begin = time.monotonic()
        live = self._stream.isatty() if live is None else live
        # tqdm rewrites the line and keeps other output apart from it; what it says is made here.
        self._bar = (
            tqdm(
                total=total_steps,
                initial=start_step,
                desc=f"step {start_step}/{total_steps}",
                bar_format="{desc}",
                file=self._stream,
                # The line is fitted to the width here; and tqdm shows nothing on a terminal that does not tell its height.
                ncols=1000,
                nrows=24,
            )
            if live
            else None
        )

    def update(self, step: int, metrics: Metrics, images: int) -> None:
        """Show the state of the run.

        Args:
            step: steps done in all, in earlier processes too.
            metrics: by their names in metrics.jsonl; names that the line does not show are ignored.
            images: images that went through the network since the last update, every view counted.
        """
        self._history.append((time.monotonic(), step, self._history[-1][2] + images))
        accuracy = _known(metrics.get("test_accuracy"))
        self._test_accuracy = self._test_accuracy if accuracy is None else accuracy
        pieces = _pieces(step, self._total, metrics, self._test_accuracy) + self._pace(step)
        if self._bar is None:
            self.message("".join(text for _, text in pieces))
            return
        self._bar.set_description_str(_fit(pieces, _width(self._stream)), refresh=False)
        self._bar.n = step
        self._bar.refresh()

    def message(self, text: str) -> None:
        """Write a line of its own, above the live line where there is one."""
        try:
            if self._bar is None:
                self._stream.write(text + "\n")
                self._stream.flush()
            else:
                tqdm.write(text, file=self._stream)
        except (OSError, ValueError):
            # The reader is gone (a closed pipe, terminal or file). The log of the run holds the same.
            return

    def close(self) -> None:
        """End the live line; what it said last stays."""
        if self._bar is not None:
            self._bar.close()

    def _pace(self, step: int) -> list[tuple[int, str]]:
        """Speed and time left, from the updates remembered."""
        (then, first, images), (now, last, images_now) = self._history[0], self._history[-1]
        seconds, steps = now - then, last - first
        if seconds <= 0 or steps <= 0:
            return []
        speed = (images_now - images) / seconds
        pieces = [(7, f"  {speed:.0f} img/s" if speed >= 10 else f"  {speed:.1f} img/s")] if speed else []
        if step >= self._total:
            return [*pieces, (1, f"  took {_duration(now - self._begin)}")]
        return [*pieces, (1, f"  {_duration((self._total - step) * seconds / steps)} left")]


def _pieces(step: int, total: int, metrics: Metrics, test_accuracy: float | None) -> list[tuple[int, str]]:
    """The line in pieces from left to right, each with a rank: where room is short, the low ranks come first."""
    pieces = [(9, "step "), (0, f"{step}/{total}")]
    loss = metrics.get("loss")
    if loss is not None:
        pieces += [(3, f"  loss {_number(loss)}"), (6, _loss_parts(loss, metrics))]
    used, right = _known(metrics.get("utilisation")), _known(metrics.get("pseudo_label_accuracy"))
    if used is not None:
        pieces += [(4, f"  {used:.1%}"), (8, " of pseudo-labels"), (4, " used")]
        if right is not None:
            pieces.append((4, f", {right:.1%} right"))
    if test_accuracy is not None:
        pieces.append((2, f"  test {test_accuracy:.1%}"))
    if metrics.get("skipped_steps"):
        pieces.append((5, f"  {metrics['skipped_steps']:.0f} steps skipped"))
    return pieces


def _loss_parts(loss: float, metrics: Metrics) -> str:
    """The parts that are there and not 0; that they add up is said only where they do."""
    parts = {name: value for key, name in LOSS_PARTS.items() if (value := metrics.get(key))}
    if not parts:
        return ""
    words = [f"{name} {_number(value)}" for name, value in parts.items()]
    adds_up = math.isclose(sum(parts.values()), loss, rel_tol=1e-3, abs_tol=1e-3)
    return " = " + " + ".join(words) if adds_up else f" ({', '.join(words)})"


def _fit(pieces: list[tuple[int, str]], width: int | None) -> str:
    """Join the pieces that `width` columns have room for."""
    kept: set[int] = set()
    line = ""
    for rank in sorted({rank for rank, _ in pieces}):
        longer = "".join(text for other, text in pieces if other in kept or other == rank)
        if width is None or len(longer) <= width:
            kept.add(rank)
            line = longer
        elif rank < _OPTIONAL:
            break
    return line


def _width(stream: TextIO | TextIOBase) -> int | None:
    """Columns to write in; None where there is no limit, because no terminal is there."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    # A terminal that does not tell its size says 0. One column stays free: some begin a new line once the last is written to.
    return (columns or 80) - 1


def _known(share: float | None) -> float | None:
    return None if share is None or math.isnan(share) else share


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    minutes, hours, days = int(seconds) // 60, int(seconds) // 3600, int(seconds) // 86400
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours}:{minutes % 60:02}:{int(seconds) % 60:02}" if hours else f"{minutes}:{int(seconds) % 60:02}"
