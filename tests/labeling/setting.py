"""Small photographs in a folder, embedded once by a small random network."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from momatch.data.load import load_dataset
from momatch.embedding import EmbedOptions, embed
from momatch.labeling.session import Paths, Session

#: Colours of the two kinds of photographs.
COLORS = {"red": (200, 40, 40), "blue": (40, 40, 200)}
#: Unlabelled photographs of each kind.
EACH = 12


def write_photographs(folder: Path, each: int = EACH) -> Path:
    """Two labelled and `each` unlabelled photographs of each kind; the kind is in the file name."""
    rng = np.random.default_rng(0)
    for name, color in COLORS.items():
        for number in range(each + 2):
            noise = rng.normal(0, 25, (24, 32, 3))
            pixels = np.clip(np.array(color) + noise + rng.normal(0, 15, 3), 0, 255).astype(np.uint8)
            path = folder / (name if number < 2 else "unlabeled") / f"{name}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


def embed_photographs(folder: Path) -> None:
    """Write features.npz into the folder."""
    embed(
        EmbedOptions(
            dataset=str(folder),
            out=folder / "features.npz",
            backbone="cnn-tiny",
            untrained=True,
            image_size=16,
            strong_views=1,
            device="cpu",
            progress=False,
        )
    )


def copied(folder: Path, target: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(folder, target))


def open_session(folder: Path, classes: tuple[str, ...] = ()) -> Session:
    """A session on the folder."""
    paths = Paths(folder, folder / "labels.csv", folder / "features.npz")
    return Session(load_dataset(paths.features), paths, classes)


def kind(file: str) -> str:
    """The kind of a photograph, by its name."""
    return "red" if "red" in Path(file).name else "blue"
