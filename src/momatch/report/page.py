"""Renders the page (assets/page.html) and writes it to disk."""

import base64
import gzip
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from momatch.console.wording import plural
from momatch.data.dataset import Dataset
from momatch.report import formats, tables
from momatch.report.charts import chart_data
from momatch.report.collect import collect
from momatch.report.run_report import Missing, RunReport
from momatch.report.sprites import Sprites
from momatch.storage.durable import replace_files
from momatch.training.run import Run

#: The title of every report begins like this: a file that contains it may be replaced, any other file is the user's own.
MARKER = "<title>momatch: "
#: The marker is within this many bytes from the beginning of the file.
MARKER_WITHIN = 4096
#: Longest side of a picture on a contact sheet, in pixels.
SHEET_PIXELS = 96


def report_run(run: Run, *, dataset: Dataset | None = None) -> Path:
    """Write ``report.html`` into the directory of a run.

    Args:
        run: the run.
        dataset: the dataset of the run, if it was passed to `fit`; None to load it by name.

    Returns:
        The path of the page.

    Raises:
        ValueError: if ``report.html`` exists and is not a report.
        OSError: if the page cannot be written; an earlier page is kept.
    """
    return write_page(
        [collect(run.directory, dataset=dataset, trust_code=run.trust_code)], run.directory / "report.html"
    )


def write_page(runs: Sequence[RunReport], path: Path) -> Path:
    """Write a page about one run, or about several side by side; an earlier page is replaced atomically.

    Returns:
        `path`.

    Raises:
        ValueError: if there are no runs, or `path` is a file that is not a report.
        OSError: if the page cannot be written; an earlier page is kept.
    """
    if not runs:
        raise ValueError("runs: got none, expected at least one")
    check_replaceable(path)
    # File names may hold bytes that are not text; they become question marks.
    replace_files({path: build_page(runs).encode("utf-8", "replace")})
    return path


def check_replaceable(path: Path) -> None:
    """Refuse to replace anything but a report.

    Raises:
        ValueError: if `path` is something else.
    """
    if path.is_dir():
        raise ValueError(f"{path}: got a directory, expected a file name for the report")
    if path.exists():
        with open(path, "rb") as file:
            beginning = file.read(MARKER_WITHIN)
        if MARKER.encode() not in beginning:
            raise ValueError(
                f"{path}: the file exists and is not a momatch report; choose another name or delete the file"
            )


def build_page(runs: Sequence[RunReport]) -> str:
    """The page as text."""
    sprites = Sprites()
    data = chart_data(runs, sprites)
    # Added here, though the template adds them again: the style sheet at its top holds all pictures.
    for run in runs:
        for pictures in (run.mistakes, run.outlying, run.to_label):
            for picture in () if isinstance(pictures, Missing) else pictures:
                sprites.add(picture.image, most=SHEET_PIXELS)
        for image in () if run.outlier_list is None else run.outlier_list.images:
            sprites.add(image, most=SHEET_PIXELS)
    title = f"{len(runs)} runs" if len(runs) > 1 else runs[0].name
    template = _environment().get_template("page.html")
    return template.render(title=title, runs=runs, data=data, sprites=sprites, sheet_pixels=SHEET_PIXELS)


@cache
def _environment() -> Environment:
    """Jinja with the page's functions, filters and tests; everything is escaped unless it is marked as safe."""
    environment = Environment(
        loader=PackageLoader("momatch.report", "assets"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    # The order of keys is kept: the first map is the one that is shown first.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    for function in (formats.count, formats.decimal, formats.letter, formats.percent, plural):
        environment.filters[function.__name__] = function
    environment.tests["missing"] = lambda value: isinstance(value, Missing)
    environment.tests["finite_number"] = formats.is_number
    environment.globals |= {"tables": tables, "asset": _asset, "plotly": _plotly}
    return environment


@cache
def _asset(name: str) -> Markup:
    """A style sheet or script of the page."""
    return Markup(files("momatch.report").joinpath("assets", name).read_text(encoding="utf-8"))


@cache
def _plotly() -> Markup:
    """plotly.js from the plotly package, compressed, in base64: a third of its size.

    The bytes are always the same: no time stamp is included.
    """
    # plotly.offline.get_plotlyjs does the same but takes three seconds to import.
    source = files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return Markup(base64.b64encode(gzip.compress(source, mtime=0)).decode())
