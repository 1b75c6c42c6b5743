"""The description that a classifier is built from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from momatch._version import __version__
from momatch.config.checks import check_type
from momatch.models.backbones import Normalization


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The description that a classifier is built from, and its origin.

    Attributes:
        backbone: a name or ``package.module:factory``.
        backbone_variant: "default", or the `variant` of a Wide ResNet.
        head: a key of `momatch.heads.HEADS`.
        embedding_dim: D; 0 for the backbone's own features.
        class_names: label k is ``class_names[k]``.
        in_channels: of the images.
        image_size: height and width.
        normalization: (mean, std) of the dataset's pixels scaled to 0-1, or None.
        dataset: training dataset.
        created_by: the program and its version.
    """

    backbone: str
    backbone_variant: str = "default"
    head: str
    embedding_dim: int
    class_names: tuple[str, ...]
    in_channels: int
    image_size: tuple[int, int]
    normalization: Normalization | None
    dataset: str
    created_by: str = f"momatch {__version__}"

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> "ModelSpec":
        """The inverse of `to_dict`, also after a round trip through JSON. The values are untrusted, so each is checked.

        Raises:
            ValueError: if an entry is missing, unknown or of the wrong type.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"model spec: got {values!r}, expected a mapping")
        try:
            height, width = values["image_size"]
            statistics = values["normalization"]
            mean, std = ((), ()) if statistics is None else statistics
            exact = {
                "class_names": tuple(str(name) for name in values["class_names"]),
                "image_size": (int(height), int(width)),
                "normalization": None if statistics is None else (_floats(mean), _floats(std)),
            }
            spec = cls(**{**values, **exact})
            for field in fields(spec):
                if field.name not in exact:
                    check_type(field.name, getattr(spec, field.name), field.type)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"model spec: got {dict(values)}, expected a model spec ({error})") from error
        return spec


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
