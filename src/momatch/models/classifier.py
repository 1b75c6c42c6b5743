"""The whole model: pixels -> backbone -> projection -> head, where embeddings z and log joints are to be had.

Where normalisation happens is decided by the dtype of the images, so that it can be neither forgotten nor done twice:

- **uint8** images are raw pixels. The classifier normalises them itself (`Classifier.preprocess`). Training, evaluation,
  prediction and export all work this way: augmentation maps uint8 to uint8, and one graph leads from a raw image to its label.
- **floating** input is taken as normalised already and goes to the backbone as it is: cached features, vectors, and images
  that a loop of your own has normalised.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from momatch.heads import HEADS, Head
from momatch.models.backbones import Normalization, build_backbone
from momatch.models.normalize import Normalize
from momatch.numerics.checks import check_positive_int


class Classifier(nn.Module):
    """A backbone, a projection to the embedding and a head.

    Parts can be read and replaced: `preprocess`, `backbone`, `projection`, `head`. Names in the state dict follow them.

    Args:
        backbone: maps images to features (n, num_features); see `momatch.models.backbones`.
        head: maps embeddings (n, D) to the log joint (n, K).
        projection: maps features to embeddings (n, D); None if the features are the embeddings.
        preprocess: maps uint8 images to what the backbone wants; None if only normalised images will come.

    Raises:
        ValueError: if sizes that the parts declare do not fit each other.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: Head,
        projection: nn.Module | None = None,
        *,
        preprocess: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(head, Head):
            raise ValueError(
                f"head: got {type(head).__name__}, expected a head of momatch: AAGMM, KMeans, Linear (in place of nn.Linear) "
                "or a subclass of momatch.heads.Head"
            )
        features = _size(backbone, "num_features")
        takes, gives = _size(projection, "in_features"), _size(projection, "out_features")
        if features is not None and takes is not None and features != takes:
            raise ValueError(f"projection: got {takes} input features, expected the {features} of the backbone")
        comes = features if projection is None else gives
        if comes not in (None, head.embedding_dim):
            source = "backbone" if projection is None else "projection"
            raise ValueError(
                f"head: got embedding_dim {head.embedding_dim}, expected the {comes} features that the {source} returns"
            )
        self.preprocess = preprocess
        self.backbone = backbone
        self.projection = projection
        self.head = head

    @classmethod
    def build(
        cls,
        backbone: str | nn.Module = "wrn-28-2",
        head: str = "aagmm",
        *,
        num_classes: int,
        embedding_dim: int = 8,
        in_channels: int = 3,
        image_size: int | tuple[int, int] | None = None,
        normalization: Normalization | None = None,
        backbone_options: Mapping[str, Any] | None = None,
        head_options: Mapping[str, Any] | None = None,
    ) -> "Classifier":
        """Build a classifier from names.

        Args:
            backbone: name, ``package.module:factory`` or module; see `momatch.models.backbones.build_backbone`.
            head: a key of `momatch.heads.HEADS`.
            num_classes: K.
            embedding_dim: D, the size of a linear projection between backbone and head; 0 for the backbone's own features
                and no projection.
            in_channels: channels of the images.
            image_size: of the data, where known; see `momatch.models.backbones.build_backbone`.
            normalization: (mean, std) of the dataset's pixels scaled to 0-1. A backbone that declares its own has precedence.
                With neither, the classifier takes normalised images only.
            backbone_options: passed through to the backbone.
            head_options: passed through to the head.

        Raises:
            ValueError: if a name is unknown, a size out of range, or the statistics are not one of each a channel.
            ImportError: if the backbone needs packages that are not installed.
        """
        if head not in HEADS:
            raise ValueError(f"head: got {head!r}, expected one of {', '.join(HEADS)}")
        check_positive_int("num_classes", num_classes)
        if embedding_dim != 0:
            check_positive_int("embedding_dim (0 for the backbone's own features)", embedding_dim)
        network = build_backbone(backbone, in_channels, image_size=image_size, **(backbone_options or {}))
        features = _size(network, "num_features")
        assert features is not None, "build_backbone sets it"
        projection = _linear(features, embedding_dim) if embedding_dim else None
        last = HEADS[head](embedding_dim or features, num_classes, **(head_options or {}))
        return cls(network, last, projection, preprocess=_preprocess(network, normalization, in_channels))

    def embed(self, x: Tensor) -> Float[Tensor, "n D"]:
        """Embeddings z.

        Args:
            x: uint8 images (n, C, H, W), which are normalised here, or whatever floating input the backbone takes, normalised.

        Raises:
            ValueError: if uint8 images come and there is no `preprocess`, or the backbone returns anything but (n, features).
        """
        if x.dtype == torch.uint8:
            if self.preprocess is None:
                raise ValueError(
                    "images: got uint8, expected normalised floating images, because this classifier has no preprocess; "
                    "give it one: preprocess=Normalize(mean, std)"
                )
            x = self.preprocess(x)
        features = self.backbone(x)
        if not isinstance(features, Tensor) or features.ndim != 2:
            got = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else f"a {type(features).__name__}"
            raise ValueError(f"backbone: it returned {got}, expected a tensor (n, features)")
        return features if self.projection is None else self.projection(features)

    def embed_features(self, features: Float[Tensor, "n F"]) -> Float[Tensor, "n D"]:
        """Embeddings z of what the backbone made of images before: the part of `embed` that comes after it.

        Args:
            features: (n, F) in any floating dtype; computed with in that of the head.

        Raises:
            ValueError: if they are not as many as the backbone returns.
        """
        expected = _size(self.backbone, "num_features")
        if features.ndim != 2 or not features.is_floating_point() or expected not in (None, features.shape[1]):
            raise ValueError(
                f"features: got {features.dtype} {tuple(features.shape)}, expected floating (n, {expected}), as "
                "the backbone of this classifier returns them"
            )
        parameter = next(self.head.parameters(), None)
        if parameter is not None:
            features = features.to(parameter.dtype)
        return features if self.projection is None else self.projection(features)

    def forward(self, x: Tensor) -> Float[Tensor, "n K"]:
        """The log joint log p(y=k, x).

        Args:
            x: as for `embed`.

        Raises:
            ValueError: as `embed`.
        """
        log_joint: Tensor = self.head(self.embed(x))
        return log_joint


class CachedFeatures(nn.Module):
    """In place of a backbone where images went through it before: features pass as they are, in float32.

    Args:
        num_features: of the backbone that made them.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Float[Tensor, "n F"]) -> Float[Tensor, "n F"]:
        """The features; they are kept in half precision."""
        return features.float()


def _size(module: nn.Module | None, *names: str) -> int | None:
    """The first of these attributes that is a number; None if the module declares none."""
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), None)


def _linear(in_features: int, out_features: int) -> nn.Linear:
    projection = nn.Linear(in_features, out_features)
    nn.init.xavier_normal_(projection.weight)
    nn.init.zeros_(projection.bias)
    return projection


def _preprocess(backbone: nn.Module, dataset: Normalization | None, in_channels: int) -> Normalize | None:
    own = getattr(backbone, "normalization", None)
    # A user's module may call something else by that name, a layer for example.
    statistics = own if isinstance(own, tuple | list) else dataset
    if statistics is None:
        return None
    mean, std = statistics
    if len(mean) != in_channels:
        raise ValueError(
            f"normalization: got {len(mean)} values of mean, expected one for each of {in_channels} channels"
        )
    return Normalize(mean, std)
