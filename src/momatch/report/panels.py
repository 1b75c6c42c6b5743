"""Pieces that all sections are made of: tables, places for charts, a panel for each run."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from momatch.report.findings import Findings

#: Colours that tell runs apart (page.css); further runs begin again.
RUN_COLORS = 8


def table(header: Iterable[str], rows: Iterable[Iterable[str]], *, kind: str = "") -> str:
    """A table of cells that are HTML already; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = ""
    for first, *rest in rows:
        body += f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
    content = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{content}</table></div>'


def chart(kind: str, label: str, number: int, *, height: int, narrow: int | None = None) -> str:
    """A place where a script draws, of a height that is known before anything is drawn, so that nothing jumps.

    Args:
        kind: of the chart, as in assets/boot.js.
        label: what a screen reader says; HTML already.
        number: of the run that it is about, or of the chart of curves.
        height: in pixels.
        narrow: the same where there is no room for two things side by side.
    """
    size = f"--height:{height}px;--narrow:{narrow or height}px"
    place = f'class="chart" data-chart="{kind}" data-number="{number}" style="{size}"'
    return f'<div class="figure"><div {place} role="img" aria-label="{label}"></div></div>'


def panels(findings: Sequence[Findings], content: Callable[[Findings, int], str]) -> str:
    """What is said of each run: side by side under its name, or alone without one."""
    if len(findings) == 1:
        return content(findings[0], 0)
    parts = [
        f'<article class="panel" data-run="{number}"><h3>{run_name(run, number)}</h3>{content(run, number)}</article>'
        for number, run in enumerate(findings)
    ]
    return f'<div class="panels">{"".join(parts)}</div>'


def run_name(run: Findings, number: int) -> str:
    """A run's letter in its colour, and its name."""
    return f'{badge(number)}<span class="name" title="{escape(run.name)}">{escape(run.name)}</span>'


def badge(number: int) -> str:
    """A run's letter in its colour."""
    return f'<span class="badge" style="--run:var(--run-{number % RUN_COLORS})">{letter(number)}</span>'


def letter(number: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("A") + rest) + text
    return text
