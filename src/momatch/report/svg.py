"""Charts as inline SVG. Colours and strokes come from the page's style, so they follow light and dark."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from momatch.data.dataset import UNLABELED
from momatch.report.classes import MOST_CLASSES, short
from momatch.report.words import decimal

Point = Sequence[float]

#: Told apart in all common forms of colour blindness; further classes take colours around the wheel.
CLASS_COLORS = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"),
    *("#56b4e9", "#8f8a00", "#7d5bbe", "#a8324e", "#7a8793"),
)
LEFT, BOTTOM, TOP, RIGHT = 42, 26, 10, 18


class Series(NamedTuple):
    """A named curve."""

    name: str
    points: list[tuple[float, float]]


class _Frame(NamedTuple):
    """Maps data to the drawing."""

    width: int
    height: int
    low: tuple[float, float]
    high: tuple[float, float]

    def x(self, value: float) -> float:
        return LEFT + (value - self.low[0]) / (self.high[0] - self.low[0]) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        span = self.high[1] - self.low[1]
        return self.height - BOTTOM - (value - self.low[1]) / span * (self.height - TOP - BOTTOM)

    def axes(self, *, share: bool, x_share: bool = False) -> str:
        """Grid lines and their values."""
        parts = []
        for value in ticks(self.low[1], self.high[1]):
            y = f"{self.y(value):.1f}"
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y}" dy=".32em" text-anchor="end">{_label(value, share)}</text>')
        for value in ticks(self.low[0], self.high[0], most=4):
            x = f"{self.x(value):.1f}"
            parts.append(f'<text x="{x}" y="{self.height - 8}" text-anchor="middle">{_label(value, x_share)}</text>')
        return "".join(parts)

    def svg(self, label: str, content: str) -> str:
        return f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">{content}</svg>'


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within [low, high], about `most` of them."""
    rough = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


def line_chart(title: str, series: Sequence[Series], *, share: bool) -> str:
    """Curves over the steps of training, each with at least one point; `share` draws 0 to 100 %."""
    xs = [x for each in series for x, _ in each.points]
    ys = [y for each in series for _, y in each.points]
    low_y, high_y = (0.0, 1.0) if share else _range(min(0.0, *ys), max(ys))
    frame = _Frame(320, 200, (0.0, low_y), (max(*xs, 1.0), high_y))
    content = frame.axes(share=share)
    for number, each in enumerate(series):
        points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in each.points)
        x, y = each.points[-1]
        content += f'<polyline class="s{number}" points="{points}"/>'
        content += f'<circle class="s{number}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3"/>'
    last = [f"{each.name} {_label(each.points[-1][1], share, digits=1)}" for each in series]
    keys = "".join(f'<span class="key s{number}">{escape(text)}</span>' for number, text in enumerate(last))
    return frame.svg(f"{title} over steps; at the end: {', '.join(last)}", content) + f'<div class="keys">{keys}</div>'


def reliability_chart(counts: Sequence[int], accuracy: Sequence[float]) -> str:
    """Accuracy in each bin of confidence, against the diagonal; a bar's width follows its number of samples."""
    frame = _Frame(420, 300, (0.0, 0.0), (1.0, 1.0))
    content = frame.axes(share=True, x_share=True)
    B, most = len(counts), max(counts)
    for b, (n, share) in enumerate(zip(counts, accuracy, strict=True)):
        if n == 0:
            continue
        slot = frame.x((b + 1) / B) - frame.x(b / B)
        width = max(3.0, 0.94 * slot * math.sqrt(n / most))
        x, y, base = frame.x((b + 0.5) / B) - width / 2, frame.y(share), frame.y(0.0)
        title = f"confidence {b / B:.0%} to {(b + 1) / B:.0%}: {share:.1%} of {n:,} right"
        # A bar of height 0 is a sure model that is always wrong: it must be seen.
        content += (
            f'<rect class="s0" x="{x:.1f}" y="{min(y, base - 1.5):.1f}" width="{width:.1f}" '
            f'height="{max(1.5, base - y):.1f}"><title>{title}</title></rect>'
        )
    ends = [f"{value:.1f}" for value in (frame.x(0.0), frame.y(0.0), frame.x(1.0), frame.y(1.0))]
    content += '<line class="ideal" x1="{}" y1="{}" x2="{}" y2="{}"/>'.format(*ends)
    chart = frame.svg("Accuracy by confidence, in bins", content)
    return f"<figure>{chart}<figcaption>stated confidence (across) and share of right predictions (up)</figcaption></figure>"


def scatter_chart(groups: Mapping[int, Sequence[Point]], centers: Sequence[Point], names: tuple[str, ...]) -> str:
    """Samples as dots and centers as crosses in the colour of their class, whose name stands amid its samples."""
    everything = [*centers, *(point for points in groups.values() for point in points)]
    low, high = _square(everything)
    width, height = 760, 620
    scale = (height - 20) / (high[1] - low[1])

    def place(point: Point) -> tuple[float, float]:
        middle = 0.5 * (low[0] + high[0])
        return width / 2 + (point[0] - middle) * scale, height - 10 - (point[1] - low[1]) * scale

    content = ""
    for k, points in groups.items():
        if points:
            dots = "".join("M{:.1f} {:.1f}h0".format(*place(point)) for point in points)
            # Dots are strokes of no length: one element a class instead of one a sample.
            cap = "square" if k % 2 else "round"
            title = escape(names[k]) if k != UNLABELED else "unlabelled"
            stroke = f'stroke="{class_color(k)}" stroke-linecap="{cap}"'
            content += f'<path class="dots" {stroke} d="{dots}"><title>{title}</title></path>'
    for k, center in enumerate(centers):
        x, y = place(center)
        cross = f'd="M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12"'
        content += f'<path class="halo" {cross}/><path class="cross" stroke="{class_color(k)}" {cross}/>'
    for k, name in enumerate(names):
        if groups[k] and len(names) <= MOST_CLASSES:  # more names would hide each other
            x, y = place(_middle(groups[k]))
            content += f'<text class="name" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{short(name)}</text>'
    label = "Test embeddings along their two principal directions"
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{content}</svg>'


def class_color(k: int) -> str:
    """The colour of class k; gray for the unlabelled."""
    if k == UNLABELED:
        return "#9aa3ad"
    if k < len(CLASS_COLORS):
        return CLASS_COLORS[k]
    # The golden angle keeps neighbours apart, however many there are.
    return f"hsl({137.508 * k % 360:.0f} 60% {(42, 55, 66)[k % 3]}%)"


def _middle(points: Sequence[Point]) -> Point:
    ordered = [sorted(values) for values in zip(*points, strict=True)]
    return ordered[0][len(points) // 2], ordered[1][len(points) // 2]


def _square(points: Sequence[Point]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Corners of the smallest square around the points, with a margin."""
    (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*points, strict=True))
    half = 0.53 * max(x1 - x0, y1 - y0) or 1.0
    x, y = 0.5 * (x0 + x1), 0.5 * (y0 + y1)
    return (x - half, y - half), (x + half, y + half)


def _range(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low, low + 1.0)


def _label(value: float, share: bool, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %" if share else decimal(value)
