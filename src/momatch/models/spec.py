"""What it takes to build a classifier, and where it comes from: the facts of a saved model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from momatch._version import __version__
from momatch.models.backbones import Normalization


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What it takes to build a classifier, and where it comes from.

    Attributes:
        backbone: a name or ``package.module:factory``.
        backbone_variant: "default", or what the Wide ResNets take as their `variant`.
        head: a key of `momatch.heads.HEADS`.
        embedding_dim: as for `Classifier.build`; 0 for the backbone's own features.
        class_names: label k is ``class_names[k]``.
        in_channels: of the images.
        image_size: height and width.
        normalization: (mean, std) of the dataset's pixels scaled to 0-1, or None.
        dataset: that it was trained on.
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
        """All facts as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelSpec":
        """The facts that `to_dict` gave, also after a journey through JSON.

        Raises:
            ValueError: if a fact is missing, unknown or of the wrong type.
        """
        try:
            height, width = values["image_size"]
            statistics = values["normalization"]
            mean, std = ((), ()) if statistics is None else statistics
            facts = cls(
                **{
                    **values,
                    "class_names": tuple(str(name) for name in values["class_names"]),
                    "image_size": (int(height), int(width)),
                    "normalization": None if statistics is None else (_floats(mean), _floats(std)),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"model facts: got {dict(values)}, expected those of a model ({error})") from error
        return facts


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
