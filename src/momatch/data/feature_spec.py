"""The description in a features file: which backbone, which images, which views.

``momatch train`` reads it before choosing its settings, so this module does not import torch. The rest of the file is read by
`momatch.data.features`.
"""

import json
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from momatch.data.report import DataError

#: The member of the archive that makes it a features file.
MARKER = "momatch_features.json"
KIND = "momatch features"
#: Increase it when older code can no longer read new files.
VERSION = 3
#: Older formats that can still be read. Files of format 2 say nothing about the content of their images.
_READABLE = (2, VERSION)


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """How the features in a file were made.

    Attributes:
        path: the features file.
        dataset: name of the image dataset.
        class_names: label k is ``class_names[k]``.
        backbone: name or ``package.module:factory``; this and the next four are as in `momatch.config.TrainConfig`.
        backbone_variant: variant of the Wide ResNets.
        flip: whether views were mirrored, "yes" or "no".
        strong_operations: random operations per strong view.
        cutout: largest side of the square blanked in strong views.
        in_channels: channels of the images.
        image_size: height and width of the images.
        normalization: (mean, std) of the dataset's pixels scaled to 0-1, used by a backbone without its own.
        num_features: number of features, F.
        stage_names: the backbone's stages (`momatch.outliers.stages`); none if its features are the only one.
        num_statistics: number of statistics of the stages, S.
        weak_views: weak views per training image, after the plain one.
        strong_views: strong views, after the weak ones.
        seed: seed for the views and for the selection of images.
        created_by: program and version.
        source: the folder, manifest, file or known name that was embedded, as given; empty in older files.
        source_near: the same path as seen from the directory of the features file.
        options: settings of ``momatch embed`` that are not at their defaults.
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
    stage_names: tuple[str, ...]
    num_statistics: int
    weak_views: int
    strong_views: int
    seed: int
    created_by: str
    source: str = ""
    source_near: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def num_views(self) -> int:
        """V: plain, weak and strong views together."""
        return 1 + self.weak_views + self.strong_views

    @property
    def settings(self) -> dict[str, Any]:
        """Training settings fixed by the file."""
        return {
            "backbone": self.backbone,
            "backbone_variant": self.backbone_variant,
            "flip": self.flip,
            "strong_operations": self.strong_operations,
            "cutout": self.cutout,
        }

    def to_json(self) -> bytes:
        """The description as stored in the file."""
        values = {key: value for key, value in asdict(self).items() if key != "path"}
        return json.dumps({"format": KIND, "version": VERSION, **values}, indent=1, allow_nan=False).encode()

    @classmethod
    def from_json(cls, data: bytes, path: Path) -> "FeatureSpec":
        """Parse the output of `to_json`.

        Raises:
            DataError: if it is another version, or damaged.
        """
        try:
            values = json.loads(data)
            kind, version = values.pop("format"), values.pop("version")
            if kind == KIND and version not in _READABLE:
                raise DataError(
                    f"{path}: got version {version!r} of the features format, expected {VERSION}; it was written by "
                    f"{values.get('created_by')}: use that release, or embed the images again"
                )
            if kind != KIND:
                raise ValueError(f"the format is {kind!r}")
            height, width = values["image_size"]
            mean, std = values["normalization"]
            exact = {
                "class_names": tuple(str(name) for name in values["class_names"]),
                "image_size": (int(height), int(width)),
                "normalization": (tuple(map(float, mean)), tuple(map(float, std))),
                "stage_names": tuple(str(name) for name in values["stage_names"]),
            }
            return cls(path=path, **{**values, **exact})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path}: {MARKER} cannot be read ({error}); embed the images again") from error


def read_feature_spec(path: str | Path) -> FeatureSpec | None:
    """Read the description of a features file; None for anything else, including damaged archives.

    Raises:
        DataError: if it is a features file of another version, or its description is damaged.
        OSError: if the file exists and cannot be read.
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
