"""What a features file says about itself: which backbone made it, of which images, in which views. Plain Python.

``momatch train`` looks into the file before it decides on its settings, and must not wait for torch to do so. What else
the file holds is in `momatch.data.features`.
"""

import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from momatch.data.report import DataError

#: The member of the archive that makes it a features file.
MARKER = "momatch_features.json"
KIND = "momatch features"
#: Raise it when what is written can no longer be read by older code.
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """How features came about.

    Attributes:
        path: of the file.
        dataset: name of the images' dataset.
        class_names: label k is ``class_names[k]``.
        backbone: name or ``package.module:factory``, as in `momatch.config.TrainConfig`; so are the next four.
        backbone_variant: of the Wide ResNets.
        flip: whether views were mirrored, "yes" or "no".
        strong_operations: random changes in a strong view.
        cutout: largest side of the square that a strong view blanks.
        in_channels: of the images.
        image_size: their height and width.
        normalization: (mean, std) of the dataset's pixels scaled to 0-1, which a backbone without its own was fed with.
        num_features: F.
        weak_views: weak views of each training image, after the plain one.
        strong_views: strong views, after the weak ones.
        seed: of the views, and of which images were taken.
        created_by: the program and its version.
    """

    path: Path
    dataset: str
    class_names: tuple[str, ...]
    backbone: str
    backbone_variant: str
    flip: str
    strong_operations: int
    cutout: float
    in_channels: int
    image_size: tuple[int, int]
    normalization: tuple[tuple[float, ...], tuple[float, ...]]
    num_features: int
    weak_views: int
    strong_views: int
    seed: int
    created_by: str

    @property
    def num_views(self) -> int:
        """V: the plain view, the weak and the strong ones."""
        return 1 + self.weak_views + self.strong_views

    @property
    def settings(self) -> dict[str, Any]:
        """What the file decides of the settings of a training run."""
        return {
            "backbone": self.backbone,
            "backbone_variant": self.backbone_variant,
            "flip": self.flip,
            "strong_operations": self.strong_operations,
            "cutout": self.cutout,
        }

    def to_json(self) -> bytes:
        """What stands in the file."""
        values = {key: value for key, value in asdict(self).items() if key != "path"}
        return json.dumps({"format": KIND, "version": VERSION, **values}, indent=1, allow_nan=False).encode()

    @classmethod
    def from_json(cls, data: bytes, path: Path) -> "FeatureSpec":
        """What `to_json` gave.

        Raises:
            DataError: if it is of another version, or damaged.
        """
        try:
            values = json.loads(data)
            kind, version = values.pop("format"), values.pop("version")
            if kind == KIND and version != VERSION:
                raise DataError(
                    f"{path}: got version {version!r} of the features format, expected {VERSION}; it was written by "
                    f"{values.get('created_by')}: use that release, or embed the images anew"
                )
            if kind != KIND:
                raise ValueError(f"it says {kind!r}")
            height, width = values["image_size"]
            mean, std = values["normalization"]
            exact = {
                "class_names": tuple(str(name) for name in values["class_names"]),
                "image_size": (int(height), int(width)),
                "normalization": (tuple(map(float, mean)), tuple(map(float, std))),
            }
            return cls(path=path, **{**values, **exact})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path}: {MARKER} in it cannot be read ({error}); embed the images anew") from error


def read_feature_spec(path: str | Path) -> FeatureSpec | None:
    """How the features in a file were made; None for anything else, whole or damaged, which other readers judge.

    Raises:
        DataError: if it is a features file of another version, or its description is damaged.
        OSError: if the file is there and cannot be read.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() != ".npz" or not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            data = archive.read(MARKER) if MARKER in archive.namelist() else None
    except (zipfile.BadZipFile, EOFError):
        return None
    return None if data is None else FeatureSpec.from_json(data, path)
