"""Networks that were trained on RGB images by others: how images of any size and of one channel get into them."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from momatch.models.backbones.base import Backbone, Declared, PretrainedBackbone
from momatch.models.backbones.custom import dry_run

#: Smaller images are enlarged to the size that the network was trained at: most networks halve them five times.
SMALLEST = 32
_RGB = 3


class RgbBackbone(Backbone):
    """A backbone whose network takes three channels, with the normalisation that the model declares.

    Gray images are repeated to three channels, and each gets its own mean and deviation, as if the image had been RGB.

    Args:
        declared: what the model declares about its input.
        in_channels: 1 or 3.

    Raises:
        ValueError: if `in_channels` is neither.
    """

    gray_scale: Float[Tensor, "3 1 1"]
    gray_shift: Float[Tensor, "3 1 1"]

    def __init__(self, declared: Declared, in_channels: int = _RGB) -> None:
        super().__init__()
        if in_channels not in (1, _RGB):
            raise ValueError(
                f"in_channels: got {in_channels}, expected 1 (gray) or 3 (RGB): the weights were trained on RGB"
            )
        mean, std = declared.normalization
        self.in_channels = in_channels
        self.input_size = declared.size
        self.normalization = (mean[:in_channels], std[:in_channels])
        #: Side that images are brought to inside; None to take them as they are.
        self.resize_to: int | None = None
        means, stds = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
        # Gray images arrive normalised by the first channel's statistics.
        self.register_buffer("gray_scale", stds[0] / stds, persistent=False)
        self.register_buffer("gray_shift", (means[0] - means) / stds, persistent=False)

    def _rgb(self, x: Tensor) -> Float[Tensor, "n 3 h w"]:
        """Normalised images as the network takes them.

        Raises:
            ValueError: if `x` has another number of channels or is not floating.
        """
        self._check_images(x)
        if self.resize_to is not None:
            x = resized(x, self.resize_to)
        return x if self.in_channels == _RGB else x * self.gray_scale + self.gray_shift


def resized(x: Float[Tensor, "n C H W"], side: int) -> Float[Tensor, "n C h w"]:
    """Images stretched to a square, bilinear, antialiased where they shrink."""
    if x.shape[2] == side and x.shape[3] == side:
        return x
    shrinks = side < max(x.shape[2:])
    return F.interpolate(x, (side, side), mode="bilinear", align_corners=False, antialias=shrinks)


class Pretrained(RgbBackbone, PretrainedBackbone):
    """A torch network of another library, up to its features.

    A network that cannot take images of the data's size, such as most transformers, gets them resized to its own.

    Args:
        name: for messages.
        network: maps normalised RGB images to features (n, F).
        declared: what the model declares about its input.
        in_channels: 1 or 3.
        image_size: height and width of the data's images, if known.
        frozen: keep the weights fixed: no gradients for parameters, and the network stays in evaluation mode.

    Raises:
        ValueError: if the network does not return (n, F) for images of its own size.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        declared: Declared,
        *,
        in_channels: int = _RGB,
        image_size: tuple[int, int] | None = None,
        frozen: bool = True,
    ) -> None:
        super().__init__(declared, in_channels)
        self.num_features = dry_run(name, network, (1, _RGB, declared.size, declared.size))
        if image_size is not None and not _takes(name, network, image_size, declared.size):
            self.resize_to = declared.size
        self._adopt(network, frozen=frozen)

    def forward(self, x: Tensor) -> Float[Tensor, "n F"]:
        """Features of images under `normalization`.

        Args:
            x: (n, C, H, W).

        Raises:
            ValueError: if `x` has another number of channels or is not floating.
        """
        features: Tensor = self.network(self._rgb(x))
        return features


def _takes(name: str, network: nn.Module, image_size: tuple[int, int], own: int) -> bool:
    """Whether a network takes images of this size as they are."""
    if image_size == (own, own):
        return True
    if min(image_size) < SMALLEST:
        return False
    try:
        dry_run(name, network, (1, _RGB, *image_size))
    except ValueError:
        return False
    return True
