"""Several backbones at once: their features side by side, each standardised."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from momatch.models.backbones.base import Backbone, Normalization
from momatch.models.backbones.rgb import resized
from momatch.models.normalize import Normalize
from momatch.outliers.stages import find_stages

#: For a backbone without a normalisation of its own.
_UNKNOWN = (0.5, 0.25)
#: A deviation below this fraction of the mean counts as constant, as in training on features.
_CONSTANT = 1e-3
#: Least deviation that a feature is divided by, as a fraction of its backbone's: one that few images of the sample have at all
#: would be of any size in the others.
_LEAST = 0.1


class SideBySide(Backbone):
    """Several backbones on the same images; each with its own normalisation, at most at its own size.

    Features have mean 0 and deviation 1 over a sample of images (`standardize`), so that none of the backbones outweighs the
    others by its scale. It takes pixels from 0 to 1.

    Args:
        members: the backbones.
        in_channels: channels of the images.
        image_size: height and width of the images.
        find: find the stages of the members, by a pass over noise; not needed for a model that is loaded.
    """

    mean: Float[Tensor, " F"]
    std: Float[Tensor, " F"]

    def __init__(
        self,
        members: Sequence[nn.Module],
        *,
        in_channels: int,
        image_size: tuple[int, int] | None = None,
        find: bool = True,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.in_channels = in_channels
        self.normalization = ((0.0,) * in_channels, (1.0,) * in_channels)
        sizes = [_attribute(member, "input_size") for member in members]
        self.input_size = max((size for size in sizes if size is not None), default=None)
        self.normalizations = nn.ModuleList(_normalize(member, in_channels) for member in members)
        self._sizes = [int(_attribute(member, "num_features") or 0) for member in members]
        self.num_features = sum(self._sizes)
        self.register_buffer("mean", torch.zeros(self.num_features))
        self.register_buffer("std", torch.ones(self.num_features))
        if find:
            side = image_size or (self.input_size or 64,) * 2
            noise = torch.rand(2, in_channels, *side, generator=torch.Generator().manual_seed(0))
            self.stage_names = tuple(
                f"members.{number}.{name}"
                for number, member in enumerate(members)
                for name in find_stages(member, self._input(number, noise))
            )

    def forward(self, x: Tensor) -> Float[Tensor, "n F"]:
        """Standardised features of images with pixels from 0 to 1."""
        return (self._features(x) - self.mean) / self.std

    @torch.no_grad()
    def standardize(self, batches: Iterable[Float[Tensor, "n C H W"]]) -> None:
        """Set mean and deviation of the features from images with pixels from 0 to 1."""
        features = torch.cat([self._features(x) for x in batches]).double()
        std, mean = torch.std_mean(features, 0, correction=0)
        least = [_LEAST * part.square().mean().sqrt().expand_as(part) for part in std.split(self._sizes)]
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > _CONSTANT * mean.abs(), std.maximum(torch.cat(least)), 1.0))

    def standardize_as(self, state: Mapping[str, Tensor]) -> None:
        """Take mean and deviation from a state dict of the same backbones, if it has them."""
        for name in ("mean", "std"):
            if name in state and state[name].shape == (self.num_features,):
                getattr(self, name).copy_(state[name])

    def _features(self, x: Tensor) -> Float[Tensor, "n F"]:
        self._check_images(x)
        return torch.cat([member(self._input(number, x)) for number, member in enumerate(self.members)], 1)

    def _input(self, number: int, x: Tensor) -> Tensor:
        size = _attribute(self.members[number], "input_size")
        if size is not None and max(x.shape[2:]) > size:
            x = resized(x, size)
        normalized: Tensor = self.normalizations[number](x)
        return normalized


def _attribute(module: nn.Module, name: str) -> int | None:
    value = getattr(module, name, None)
    return value if isinstance(value, int) else None


def _normalize(member: nn.Module, in_channels: int) -> Normalize:
    own: object = getattr(member, "normalization", None)
    known: Normalization = own if isinstance(own, tuple) else tuple((value,) * in_channels for value in _UNKNOWN)  # type: ignore[assignment]
    return Normalize(*known)
