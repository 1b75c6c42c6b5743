"""How a run is going: one live line on a terminal, a plain line at each update elsewhere (a file, a pipe)."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from io import TextIOBase
from typing import TextIO

from tqdm import tqdm

#: Metric -> what a part of the loss is called on the line.
LOSS_PARTS = {"supervised_loss": "sup", "unlabeled_loss": "unl", "constraint_loss": "mom", "fairness_loss": "fair"}
#: Speed and time left are those of so many updates: long enough for an evaluation in between not to show, short enough to
#: forget a slow start.
_WINDOW = 20
#: Forms of the live line from wide to narrow, as separator and pieces. The first one that has room for its pieces at their
#: longest is taken, so the width of the terminal decides what is shown, and not the values of the moment.
_FORMS = (
    ("  ", ("steps", "named_loss", "long_pseudo_labels", "test", "speed", "time")),
    ("  ", ("steps", "named_loss", "pseudo_labels", "test", "speed", "time")),
    ("  ", ("short_steps", "loss_and_parts", "pseudo_labels", "test", "speed", "time")),
    (" ", ("short_steps", "loss_parts", "pseudo_labels", "test", "short_speed", "time")),
    (" ", ("short_steps", "bare_parts", "pseudo_labels", "test", "short_speed", "time")),
    (" ", ("short_steps", "loss", "pseudo_labels", "test", "time")),
    (" ", ("short_steps", "loss", "test", "short_speed", "time")),
    (" ", ("short_steps", "test", "time")),
    (" ", ("short_steps", "time")),
    (" ", ("short_steps",)),
)
Metrics = Mapping[str, float | int | None]


class Progress:
    """Shows where a run is.

    A plain line, here cut in two, and a live line of 80 columns, where the parts of the loss are in the same order:

        step 1200/5000  loss 0.412 = sup 0.210 + unl 0.180 + mom 0.022  81.2% of pseudo-labels used, 97.9% right
        test 96.4%  1043 img/s  5:42 left

        1200/5000 loss 0.21+0.18+0.02 81% used 98% right test 96.4% 1.0k/s 5:42 left

    In a plain line a metric that is None or missing is left out, and so is an accuracy that is NaN; a loss of NaN is shown. In
    a live line the width of the terminal decides which pieces there are, and "-" stands for what is not known yet. The last
    known test accuracy stays. Speed and time left come from steps done in this process, so they are right after a resume. A
    stream that nobody reads any more does not end the run.

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
        # Parts of the loss up to the last one that was ever there: without their names, their places tell them apart.
        self._num_parts = 0
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
        if self._bar is None:
            self.message(
                "  ".join([*_plain_pieces(step, self._total, metrics, self._test_accuracy), *self._pace(step)])
            )
            return
        self._bar.set_description_str(self._live_line(step, metrics), refresh=False)
        self._bar.n = step
        self._bar.refresh()

    def message(self, text: str) -> None:
        """Write a line of its own, above the live line where there is one; below it once the last step is done."""
        if self._bar is not None and self._bar.n >= self._total:
            self.close()
        try:
            if self._bar is None:
                self._stream.write(text + "\n")
                self._stream.flush()
            else:
                tqdm.write(text, file=self._stream)
        except (OSError, ValueError):
            # The reader is gone (a closed pipe, terminal or file). Nothing is lost: the recorder writes messages to the log of
            # the run as well, and figures to metrics.jsonl.
            return

    def close(self) -> None:
        """End the live line; what it said last stays."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _live_line(self, step: int, metrics: Metrics) -> str:
        """The line in the widest form that the terminal has room for."""
        parts = [metrics.get(key) for key in LOSS_PARTS]
        self._num_parts = max([self._num_parts, *(i + 1 for i, value in enumerate(parts) if value)])
        parts = parts[: self._num_parts]
        over = step >= self._total
        shares = [_known(metrics.get("utilisation")), _known(metrics.get("pseudo_label_accuracy"))]
        time_left = f"{'took ' * over}{_short_duration(self._seconds(step))}{' left' * (not over)}"
        pieces = _live_pieces(metrics.get("loss"), parts, shares, self._test_accuracy, self._speed())
        pieces |= {"steps": f"{step}/{self._total}", "short_steps": f"{_short_count(step)}/{_short_count(self._total)}"}
        pieces["time"] = time_left
        if "utilisation" not in metrics:
            # No unlabelled images are trained on, from the first step to the last.
            pieces |= {"pseudo_labels": "", "long_pseudo_labels": ""}
        longest = _live_pieces(9.99, [9.99] * len(parts), [1.0, 1.0], 0.99, 9900.0)
        longest |= {"steps": f"{self._total}/{self._total}", "time": "59:59 left"}
        longest["short_steps"] = f"{min(self._total, 9999)}/{_short_count(self._total)}"
        width = _width(self._stream)
        line = ""
        for separator, names in _FORMS:
            line = separator.join(pieces[name] for name in names if pieces[name])
            if width is None or len(separator.join(longest[name] for name in names)) <= width:
                break
        skipped = f"  {metrics.get('skipped_steps') or 0:.0f} steps skipped"
        if metrics.get("skipped_steps") and (width is None or len(line + skipped) <= width):
            line += skipped
        return line[:width]

    def _pace(self, step: int) -> list[str]:
        """Speed and time left, in full."""
        speed, seconds = self._speed(), self._seconds(step)
        pieces = [f"{speed:.0f} img/s" if speed >= 10 else f"{speed:.1f} img/s"] if speed else []
        if seconds is not None:
            pieces.append(f"took {_duration(seconds)}" if step >= self._total else f"{_duration(seconds)} left")
        return pieces

    def _speed(self) -> float | None:
        """Images a second, from the updates remembered."""
        (then, _, images), (now, _, images_now) = self._history[0], self._history[-1]
        return (images_now - images) / (now - then) if now > then else None

    def _seconds(self, step: int) -> float | None:
        """Seconds that are left, or at the end that it took."""
        (then, first, _), (now, last, _) = self._history[0], self._history[-1]
        if now <= then or last <= first:
            return None
        return now - self._begin if step >= self._total else (self._total - step) * (now - then) / (last - first)


def _live_pieces(
    loss: float | int | None,
    parts: Sequence[float | int | None],
    shares: Sequence[float | None],
    test_accuracy: float | None,
    speed: float | None,
) -> dict[str, str]:
    """Pieces of the live line, each of a length with a bound."""
    numbers = [_short_number(value) for value in parts]
    sign = "+" if _add_up(parts, loss) else ","
    total, bare = f"loss {_short_number(loss)}", sign.join(numbers)
    named = sign.join(f"{name} {number}" for name, number in zip(LOSS_PARTS.values(), numbers, strict=False))
    equals = " = " if sign == "+" else ": "
    used, right = ("-" if share is None else f"{share:.0%}" for share in shares)
    images = "-" if speed is None else _thousands(speed)
    test = "-" if test_accuracy is None else "100%" if test_accuracy > 0.9995 else f"{test_accuracy:.1%}"
    return {
        "loss": total,
        "named_loss": total + equals + named if named else total,
        "loss_and_parts": total + equals + bare if bare else total,
        "loss_parts": f"loss {bare}" if bare else total,
        "bare_parts": bare or total,
        "long_pseudo_labels": f"{used} of pseudo-labels used, {right} right",
        "pseudo_labels": f"{used} used {right} right",
        "test": f"test {test}",
        "speed": f"{images} img/s",
        "short_speed": f"{images}/s",
    }


def _plain_pieces(step: int, total: int, metrics: Metrics, test_accuracy: float | None) -> list[str]:
    """Pieces of a plain line: all that is known, in full."""
    pieces = [f"step {step}/{total}"]
    loss = metrics.get("loss")
    if loss is not None:
        pieces.append(f"loss {_number(loss)}{_plain_parts(loss, metrics)}")
    used, right = _known(metrics.get("utilisation")), _known(metrics.get("pseudo_label_accuracy"))
    if used is not None:
        pieces.append(f"{used:.1%} of pseudo-labels used" + ("" if right is None else f", {right:.1%} right"))
    if test_accuracy is not None:
        pieces.append(f"test {test_accuracy:.1%}")
    if metrics.get("skipped_steps"):
        pieces.append(f"{metrics['skipped_steps']:.0f} steps skipped")
    return pieces


def _plain_parts(loss: float, metrics: Metrics) -> str:
    """The parts that are there and not 0; that they add up is said only where they do."""
    parts = {name: value for key, name in LOSS_PARTS.items() if (value := metrics.get(key))}
    if not parts:
        return ""
    words = [f"{name} {_number(value)}" for name, value in parts.items()]
    return " = " + " + ".join(words) if _add_up(list(parts.values()), loss) else f" ({', '.join(words)})"


def _add_up(parts: Sequence[float | int | None], loss: float | int | None) -> bool:
    return loss is not None and math.isclose(sum(part or 0.0 for part in parts), loss, rel_tol=1e-3, abs_tol=1e-3)


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


def _short_number(value: float | int | None) -> str:
    """Four characters at most, unless it is negative."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    if abs(value) < 9999.5:
        return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
    return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def _thousands(value: float) -> str:
    """Four characters at most."""
    size, unit = next(
        ((size, unit) for size, unit in ((1, ""), (1e3, "k"), (1e6, "M")) if value < 999.5 * size), (1e9, "G")
    )
    return f"{value / size:.{1 if value < 9.95 * size else 0}f}{unit}"


def _short_count(steps: int) -> str:
    return str(steps) if steps < 10000 else _thousands(float(steps))


def _short_duration(seconds: float | None) -> str:
    """Five characters at most."""
    if seconds is None:
        return "-"
    minutes, hours, days = int(seconds) // 60, int(seconds) // 3600, int(seconds) // 86400
    if hours >= 10:
        return f"{hours}h" if hours < 48 else f"{days}d"
    return f"{hours}h{minutes % 60:02}m" if hours else f"{minutes}:{int(seconds) % 60:02}"
