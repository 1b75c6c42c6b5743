"""What the page brings along: its style, its scripts and the library that draws, so that it needs no network."""

import base64
import gzip
from functools import cache
from importlib.resources import files

#: In this order: each may use what stands before it.
SCRIPTS = ("theme", "elements", "curves", "card", "map", "gaussianity", "errors", "densities", "boot")


@cache
def style() -> str:
    """The page's style sheet."""
    return files("momatch.report").joinpath("assets", "page.css").read_text(encoding="utf-8")


@cache
def scripts() -> str:
    """The page's own scripts, as one."""
    folder = files("momatch.report").joinpath("assets")
    return "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)


@cache
def plotly() -> str:
    """plotly.js as the plotly package ships it, compressed, in base64: a third of its size.

    The same bytes each time: the time of compression is left out.
    """
    # Its own function for this (plotly.offline.get_plotlyjs) imports three seconds of other things first.
    source = files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(source, mtime=0)).decode()
