"""Puts the page together and onto the disk."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from momatch.data.dataset import Dataset
from momatch.report.classes import classes_section
from momatch.report.collect import collect
from momatch.report.compare import comparison, headline_of_all, summaries
from momatch.report.figures import figures_section, settings_section
from momatch.report.findings import Findings
from momatch.report.leads import CALIBRATION, ERRORS, GAUSSIANITY, MAP, MISTAKES, OUTLIERS, OUTLYING
from momatch.report.library import plotly, scripts, style
from momatch.report.panels import badge, panels
from momatch.report.payload import page_payload
from momatch.report.plain import script_json
from momatch.report.sections import (
    calibration_section,
    curves_section,
    densities_section,
    gaussianity_section,
    map_section,
    sheet_section,
)
from momatch.report.sprites import Sprites
from momatch.storage.durable import replace_files
from momatch.training.run import Run

#: How a page of ours begins its title: what carries it may be replaced by a new one, anything else is somebody's file.
MARKER = "<title>momatch: "
#: Bytes at the beginning of a file within which the marker stands.
MARKER_WITHIN = 4096

# The policy lets the browser itself refuse every request: nothing of the run leaves the page.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<!-- a report of momatch -->
<title>momatch: {title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">
<style>
{style}
{sheets}
</style>
</head>
<body class="{kind}">
<header><h1>{headline}</h1>{summary}</header>
{navigation}
<main>
<noscript><p class="missing">The charts need JavaScript; the words and tables do not.</p></noscript>
{sections}
</main>
<footer><p>Made by momatch; charts by plotly.js (MIT license), which is part of this file. It needs no network.</p></footer>
<script type="application/json" id="data">{data}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>
(() => {{
"use strict";
{scripts}
}})();
</script>
</body>
</html>
"""


class Section(NamedTuple):
    """A part of the page: its anchor, title, how to read it, and its content."""

    anchor: str
    title: str
    lead: str
    content: str


def report_run(run: Run, *, dataset: Dataset | None = None) -> Path:
    """Write ``report.html`` into the directory of a run, with everything that its own images tell.

    Args:
        run: to report on.
        dataset: that was handed to `fit`; None to load the run's data again.

    Returns:
        The path of the page.

    Raises:
        ValueError: if ``report.html`` is there and is no report.
        OSError: if the page cannot be written; an earlier one is still there.
    """
    return write_page([collect(run.directory, dataset=dataset)], run.directory / "report.html")


def write_page(findings: Sequence[Findings], path: Path) -> Path:
    """Write a page about one run, or about several side by side; an earlier page is replaced by a whole new one only.

    Args:
        findings: of each run.
        path: of the page.

    Returns:
        `path`.

    Raises:
        ValueError: if there are no findings, or `path` is a file that is no report.
        OSError: if the page cannot be written; an earlier one is still there.
    """
    if not findings:
        raise ValueError("findings: got none, expected those of at least one run")
    check_replaceable(path)
    # Names of files may hold bytes that are no text; they become question marks.
    replace_files({path: build_page(findings).encode("utf-8", "replace")})
    return path


def check_replaceable(path: Path) -> None:
    """Refuse to replace anything but a report.

    Raises:
        ValueError: if there is something else at `path`.
    """
    if path.is_dir():
        raise ValueError(f"{path}: got a directory, expected a file for the report")
    if path.exists():
        with open(path, "rb") as file:
            beginning = file.read(MARKER_WITHIN)
        if MARKER.encode() not in beginning:
            raise ValueError(f"{path}: got a file that is no report of momatch; name another file, or remove this one")


def build_page(findings: Sequence[Findings]) -> str:
    """The page as text."""
    sprites = Sprites()
    sections = page_sections(findings, sprites)
    data = script_json(page_payload(findings, sprites))
    several = len(findings) > 1
    title = f"{len(findings)} runs" if several else findings[0].name
    return PAGE.format(
        title=escape(title),
        kind="several" if several else "",
        style=style(),
        sheets=sprites.style(),
        headline=headline_of_all(findings),
        summary=summaries(findings),
        navigation=_navigation(sections, findings),
        sections="\n".join(map(_section, sections)),
        data=data,
        plotly=plotly(),
        scripts=scripts(),
    )


def page_sections(findings: Sequence[Findings], sprites: Sprites) -> list[Section]:
    """Every section in order; the pictures of the contact sheets are added to `sprites`."""

    def mistakes(run: Findings, number: int) -> str:
        return sheet_section(run.mistakes, sprites, "No test image was taken for another class.", by_score=False)

    def outlying(run: Findings, number: int) -> str:
        return sheet_section(run.outlying, sprites, "There are no unlabelled images.", by_score=True)

    figures = comparison(findings) if len(findings) > 1 else figures_section(findings[0])
    return [
        Section("figures", "Figures", "", figures),
        Section("training", "Training", "", curves_section(findings)),
        Section("map", "Latent space", MAP, panels(findings, map_section)),
        Section("gaussianity", "Gaussianity", GAUSSIANITY, panels(findings, gaussianity_section)),
        Section("errors", "Errors", ERRORS, panels(findings, classes_section)),
        Section("calibration", "Calibration", CALIBRATION, panels(findings, calibration_section)),
        Section("outliers", "Outliers", OUTLIERS, panels(findings, densities_section)),
        Section("mistakes", "Confident mistakes", MISTAKES, panels(findings, mistakes)),
        Section("outlying", "Outlying images", OUTLYING, panels(findings, outlying)),
        Section("settings", "Settings", "", panels(findings, lambda run, _: settings_section(run) + _notes(run))),
    ]


def _section(section: Section) -> str:
    lead = f'<p class="lead">{section.lead}</p>' if section.lead else ""
    return f'<section id="{section.anchor}"><h2>{section.title}</h2>{lead}{section.content}</section>'


def _navigation(sections: Sequence[Section], findings: Sequence[Findings]) -> str:
    links = "".join(f'<a href="#{section.anchor}">{section.title}</a>' for section in sections)
    shown = ""
    if len(findings) > 1:
        boxes = "".join(
            f'<label title="{escape(run.name)}"><input type="checkbox" data-shows="{number}" checked>{badge(number)}</label>'
            for number, run in enumerate(findings)
        )
        shown = f'<fieldset class="shown"><legend>Runs shown</legend>{boxes}</fieldset>'
    return f'<nav aria-label="Sections"><div class="links">{links}</div>{shown}</nav>'


def _notes(run: Findings) -> str:
    return "".join(f"<p>{escape(note)}</p>" for note in run.notes)
