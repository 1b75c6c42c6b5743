"""Values for the page's scripts: plain, short, and safe inside of HTML."""

import json
import math
from collections.abc import Iterable


def rounded(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """Numbers of a few significant digits, so that they take little room; None where one is not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def script_json(value: object) -> str:
    """JSON that may stand between script tags: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
