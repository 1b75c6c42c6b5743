"""How far a prediction is: a bar on a terminal, a line now and then elsewhere; both to the standard error."""

import sys
import time

from tqdm import tqdm

#: Seconds between two lines where there is no terminal.
_INTERVAL = 30.0


class Progress:
    """Counts images, and shows how many of all are done and how fast.

    Args:
        total: images in all.
        enabled: False shows nothing.
    """

    def __init__(self, total: int, *, enabled: bool = True) -> None:
        live = sys.stderr.isatty()
        self._bar = tqdm(total=total, unit="image", desc="predict", disable=not (enabled and live), file=sys.stderr)
        self._lines = enabled and not live
        self._total = total
        self._begin = self._last = time.monotonic()
        self.done = 0

    def add(self, count: int) -> None:
        """So many more are done."""
        self.done += count
        self._bar.update(count)
        now = time.monotonic()
        if self._lines and now - self._last >= _INTERVAL:
            self._last = now
            rate = self.done / (now - self._begin)
            left = (self._total - self.done) / rate
            print(f"{self.done:,} of {self._total:,} images, {rate:.0f} images/s, {left:.0f} s left", file=sys.stderr)

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._bar.close()
