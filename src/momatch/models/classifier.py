"""The whole model: pixels -> backbone -> projection -> head.

The dtype of the input decides about normalisation, so it is neither forgotten nor done twice:

- **uint8** images are raw pixels, which the classifier normalises (`Classifier.preprocess`). Training, evaluation, prediction
  and export all work this way: augmentation maps uint8 to uint8.
- **floating** input counts as normalised and goes to the backbone unchanged: cached features, vectors, and images that your
  own loop has normalised.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from momatch.heads import HEADS, Head
from momatch.models.backbones import Normalization, build_backbone
from momatch.models.normalize import Normalize
from momatch.numerics.checks import check_positive_int
from momatch.outliers.stages import StageReader


class Classifier(nn.Module):
    """A backbone, a projection to the embedding and a head.

    The parts are attributes that can be replaced: `preprocess`, `backbone`, `projection`, `head`.

    Args:
        backbone: maps images to features (n, num_features); see `momatch.models.backbones`.
        head: maps embeddings (n, D) to the log joint (n, K).
        projection: maps features to embeddings (n, D); None if the features are the embeddings.
        preprocess: normalises uint8 images for the backbone; None to accept only normalised input.

    Raises:
        ValueError: if `head` is no `Head`, or the declared sizes of the parts do not match.
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
                f"head: got {type(head).__name__}, expected a momatch head: AAGMM, KMeans, Linear (instead of nn.Linear) "
                "or a subclass of momatch.heads.Head"
            )
        features = _size(backbone, "num_features")
        takes, gives = _size(projection, "in_features"), _size(projection, "out_features")
        if features is not None and takes is not None and features != takes:
            raise ValueError(f"projection: got {takes} input features, expected {features} as the backbone returns")
        comes = features if projection is None else gives
        if comes not in (None, head.embedding_dim):
            source = "backbone" if projection is None else "projection"
            raise ValueError(f"head: got embedding_dim {head.embedding_dim}, expected {comes} as the {source} returns")
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
            embedding_dim: D, the output size of a linear projection between backbone and head; 0 for no projection.
            in_channels: channels of the images.
            image_size: of the data, if known; see `momatch.models.backbones.build_backbone`.
            normalization: (mean, std) of the dataset's pixels scaled to 0-1. The backbone's own, if declared, takes
                precedence. With neither, the classifier accepts only normalised images.
            backbone_options: passed to the backbone.
            head_options: passed to the head.

        Raises:
            ValueError: if a name is unknown, a size out of range, or `normalization` does not have one value per channel.
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
            x: uint8 images (n, C, H, W), which are normalised here, or normalised floating input for the backbone.

        Raises:
            ValueError: if `x` is uint8 without a `preprocess`, or the backbone returns anything but (n, features).
        """
        return self._projected(self.backbone(self.normalized(x)))

    def embed_with_features(self, x: Tensor) -> tuple[Float[Tensor, "n D"], Float[Tensor, "n F"]]:
        """Embeddings z, and the backbone's features that they are made of.

        Args:
            x: as for `embed`.

        Raises:
            ValueError: as `embed`.
        """
        features = self.backbone(self.normalized(x))
        return self._projected(features), features

    @property
    def num_features(self) -> int:
        """Size of the backbone's features."""
        declared = _size(self.backbone, "num_features") or _size(self.projection, "in_features")
        return declared or self.head.embedding_dim

    def inspect(
        self, x: Tensor, stages: StageReader | Sequence[str]
    ) -> tuple[Float[Tensor, "n D"], Float[Tensor, "n S"]]:
        """Embeddings z, and the statistics of the backbone's stages.

        Args:
            x: as for `embed`.
            stages: a reader of this classifier's backbone, or the names of the stages to read.

        Raises:
            ValueError: as `embed`, or if a stage cannot be read.
        """
        reader = stages if isinstance(stages, StageReader) else StageReader(self.backbone, stages)
        features, statistics = reader(self.normalized(x))
        return self._projected(features), statistics

    def normalized(self, x: Tensor) -> Tensor:
        """What the backbone is given: uint8 images are normalised, floating input is taken as it is.

        Raises:
            ValueError: if `x` is uint8 without a `preprocess`.
        """
        if x.dtype != torch.uint8:
            return x
        if self.preprocess is None:
            raise ValueError(
                "images: got uint8, expected normalised floating images, because this classifier has no preprocess; "
                "build it with preprocess=Normalize(mean, std)"
            )
        normalized: Tensor = self.preprocess(x)
        return normalized

    def _projected(self, features: object) -> Float[Tensor, "n D"]:
        if not isinstance(features, Tensor) or features.ndim != 2:
            got = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else f"a {type(features).__name__}"
            raise ValueError(f"backbone: returned {got}, expected a tensor (n, features)")
        return features if self.projection is None else self.projection(features)

    def embed_features(self, features: Float[Tensor, "n F"]) -> Float[Tensor, "n D"]:
        """Embeddings z of cached backbone features: the part of `embed` after the backbone.

        Args:
            features: (n, F) in any floating dtype; converted to that of the head.

        Raises:
            ValueError: if F differs from what the backbone returns.
        """
        expected = _size(self.backbone, "num_features")
        if features.ndim != 2 or not features.is_floating_point() or expected not in (None, features.shape[1]):
            raise ValueError(
                f"features: got {features.dtype} {tuple(features.shape)}, expected floating (n, {expected}), as "
                "this classifier's backbone returns"
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
    """Stands in for the backbone when training on its cached features, which it converts to float32.

    Args:
        num_features: size of the features.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Float[Tensor, "n F"]) -> Float[Tensor, "n F"]:
        """The features in float32; they are stored in half precision."""
        return features.float()


def _size(module: nn.Module | None, *names: str) -> int | None:
    """The first of these attributes that is an int; None if there is none."""
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), None)


def _linear(in_features: int, out_features: int) -> nn.Linear:
    projection = nn.Linear(in_features, out_features)
    nn.init.xavier_normal_(projection.weight)
    nn.init.zeros_(projection.bias)
    return projection


def _preprocess(backbone: nn.Module, dataset: Normalization | None, in_channels: int) -> Normalize | None:
    own = getattr(backbone, "normalization", None)
    # A user's module may use that name for something else, such as a layer.
    statistics = own if isinstance(own, tuple | list) else dataset
    if statistics is None:
        return None
    mean, std = statistics
    if len(mean) != in_channels:
        raise ValueError(f"normalization: got {len(mean)} means, expected one for each of the {in_channels} channels")
    return Normalize(mean, std)
