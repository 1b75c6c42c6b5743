"""The base class of backbones."""

from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

#: Mean and standard deviation of each channel, for pixels scaled to 0-1.
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


T = TypeVar("T", bound="PretrainedBackbone")


@dataclass(frozen=True)
class Declared:
    """What a pretrained model declares about the images that it takes.

    Attributes:
        size: side in pixels of the images that it was trained on.
        normalization: (mean, std) of its three channels, for pixels scaled to 0-1.
    """

    size: int
    normalization: Normalization


class Backbone(nn.Module):
    """A network that maps normalised floating images (n, C, H, W) to features (n, num_features).

    Your own module need not inherit from it: these attributes are read if they exist.

    Attributes:
        num_features: number of features per image.
        normalization: the (mean, std) of 0-1 pixels that the weights were trained with; None to use the dataset's.
        in_channels: channels of the images.
        min_size: smallest side of an image that it accepts.
        input_size: side of the images that its weights were trained on, the default image size; None if it has no such size.
        stage_names: modules whose outputs the judge of outliers sees (`momatch.outliers.stages`); without it they are found.
    """

    num_features: int
    normalization: Normalization | None = None
    in_channels: int
    min_size: int = 1
    input_size: int | None = None
    stage_names: tuple[str, ...]

    def _check_images(self, x: Tensor) -> None:
        """Check shape and dtype of a batch of images, without a device sync.

        Raises:
            ValueError: if they are not what the backbone expects.
        """
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"images: got shape {tuple(x.shape)}, expected (n, {self.in_channels}, H, W); "
                "build the backbone with the in_channels of the data"
            )
        if not x.is_floating_point():
            raise ValueError(
                f"images: got dtype {x.dtype}, expected normalised floating images; see momatch.models.normalize.Normalize"
            )
        if min(x.shape[2], x.shape[3]) < self.min_size:
            raise ValueError(
                f"images: got {x.shape[2]} x {x.shape[3]} pixels, expected at least {self.min_size} x {self.min_size}; "
                "enlarge the images or choose a backbone with fewer strides"
            )


class PretrainedBackbone(Backbone):
    """A backbone whose `network` others have trained, and which may be frozen.

    Attributes:
        network: the pretrained part.
        frozen: its weights are fixed: no gradients for parameters, and it stays in evaluation mode.
    """

    network: Any
    frozen: bool

    def _adopt(self, network: nn.Module, *, frozen: bool) -> None:
        """Take the pretrained part; to be called once everything else is in place."""
        self.network, self.frozen = network, frozen
        if frozen:
            self.requires_grad_(False)
            self.network.eval()

    def train(self: T, mode: bool = True) -> T:
        """Switch to training mode; a frozen network stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.network.eval()
        return self
