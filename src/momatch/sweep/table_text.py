"""Tables of text, printed as Markdown and as LaTeX (booktabs)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from momatch.sweep.metrics import Metric
from momatch.sweep.statistics import Estimate, Summary


@dataclass(frozen=True)
class Entry:
    """One entry of a table; `is_strong` prints it bold."""

    text: str
    is_strong: bool = False


@dataclass(frozen=True)
class Line:
    """One line of a table; `is_published` prints it in italics."""

    name: str
    entries: tuple[Entry, ...]
    is_published: bool = False


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        title: what it shows.
        notes: sentences of the caption.
        corner: over the names of the lines.
        columns: over the entries.
        lines: each with one entry a column.
    """

    title: str
    notes: tuple[str, ...]
    corner: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


def summary_text(found: Summary, metric: Metric, requested: int) -> str:
    """Such as "97.28 ± 0.61 (5)"; "(3 of 5)" if fewer runs have the metric than were requested."""
    spread = "" if found.std is None else f" ± {found.std:.{metric.decimals}f}"
    n = str(found.n) if found.n >= requested else f"{found.n} of {requested}"
    return f"{found.mean:.{metric.decimals}f}{spread} ({n})"


def estimate_text(found: Estimate, decimals: int, *, signed: bool = True) -> str:
    """Such as "+0.36 [-0.17, +0.89] (5)"; without brackets if there is no interval.

    Args:
        found: the estimate.
        decimals: digits after the point.
        signed: with a plus sign, as for a difference.
    """
    kind = f"{'+' if signed else ''}.{decimals}f"
    interval = "" if found.low is None else f" [{found.low:{kind}}, {found.high:{kind}}]"
    return f"{found.mean:{kind}}{interval} ({found.n})"


def markdown(table: Table) -> str:
    """The table with its title above and its notes below."""
    lines = [f"**{escape_markdown(table.title)}**", ""]
    lines.append(_markdown_line([escape_markdown(name) for name in (table.corner, *table.columns)]))
    lines.append(_markdown_line(["---"] * (1 + len(table.columns))))
    for line in table.lines:
        name = escape_markdown(line.name)
        entries = [_markdown_entry(entry, is_published=line.is_published) for entry in line.entries]
        lines.append(_markdown_line([f"*{name}*" if line.is_published else name, *entries]))
    if table.notes:
        lines += ["", escape_markdown(" ".join(table.notes))]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """The table as a float; needs the package booktabs."""
    caption = " ".join([f"{table.title}.", *table.notes])
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        _latex_line([escape_latex(name) for name in (table.corner, *table.columns)]),
        r"\midrule",
    ]
    for line in table.lines:
        name = escape_latex(line.name)
        entries = [
            rf"\textbf{{{escape_latex(entry.text)}}}" if entry.is_strong else escape_latex(entry.text)
            for entry in line.entries
        ]
        cells = [name, *entries]
        lines.append(
            _latex_line([rf"\textit{{{cell}}}" if cell else "" for cell in cells] if line.is_published else cells)
        )
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def escape_markdown(text: str) -> str:
    """`text` so that Markdown prints it verbatim, in one line."""
    return re.sub(r"([\\`*_<>|])", r"\\\1", " ".join(text.split()))


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    """`text` so that LaTeX prints it verbatim; a hyphen before a digit becomes a minus."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
    return re.sub(r"(?<![\w.}])-(?=\d)", r"$-$", escaped)


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_entry(entry: Entry, *, is_published: bool) -> str:
    text = escape_markdown(entry.text)
    if not text:
        return ""
    if entry.is_strong:
        return f"**{text}**"
    return f"*{text}*" if is_published else text


def _latex_line(cells: Sequence[str]) -> str:
    line = " & ".join(cells) + r" \\"
    # A bracket or star at the start would be read as an option of the line break before it.
    return "{}" + line if line.startswith(("[", "*")) else line
