"""Shared by the figures: colours that colour-blind readers can tell apart, and small PNG files."""

from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

mpl.use("Agg")

FOLDER = Path(__file__).parents[2] / "docs" / "figures"

BLUE, RED, INK, GREY = "#4477aa", "#cc3311", "#222222", "#999999"
#: Ten hues of clearly different lightness, for classes; wherever they are used, a name or a number says the class as well.
CLASS_COLORS = (
    *("#332288", "#cc3311", "#117733", "#bb8800", "#3399dd"),
    *("#aa4499", "#882255", "#44aa99", "#667700", "#ee7733"),
)


def save(figure: Figure, path: Path) -> None:
    """Write a PNG of at most 256 colours, to keep the file small."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=120)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)
    print(f"wrote {path.name}, {path.stat().st_size // 1000} kB")
