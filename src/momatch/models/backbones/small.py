"""Networks that train in seconds on a CPU: a small CNN for images, an MLP for vectors.

Batch norm has PyTorch's default momentum (0.1), so that its running statistics converge within a few hundred steps.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from momatch.models.backbones.base import Backbone
from momatch.numerics.checks import check_positive_int
from momatch.outliers.stages import INPUT


class SmallCNN(Backbone):
    """Four 3x3 convolutions (w, 2w, 4w, 4w channels), each with batch norm and LeakyReLU; two max pools; global average pool.

    Args:
        in_channels: channels of the images.
        width: w; the network returns 4 w features.

    Raises:
        ValueError: if `width` is not a positive integer.
    """

    def __init__(self, in_channels: int = 3, *, width: int = 32) -> None:
        super().__init__()
        check_positive_int("width", width)
        self.in_channels = in_channels
        self.num_features = 4 * width
        self.min_size = 8
        self.stage_names = ("layers.0", "layers.4", "layers.8", "layers.11")  # the convolutions
        self.layers = nn.Sequential(
            *_convolution(in_channels, width),
            nn.MaxPool2d(2),
            *_convolution(width, 2 * width),
            nn.MaxPool2d(2),
            *_convolution(2 * width, 4 * width),
            *_convolution(4 * width, 4 * width),
        )

    def forward(self, x: Tensor) -> Float[Tensor, "n D"]:
        """Features of normalised images.

        Args:
            x: (n, C, H, W).

        Raises:
            ValueError: if `x` has another number of channels or is too small.
        """
        self._check_images(x)
        features: Tensor = self.layers(x).mean((2, 3))
        return features


def cnn_tiny(in_channels: int = 3) -> SmallCNN:
    """`SmallCNN` at half its width: 64 features, a quarter of the computation."""
    return SmallCNN(in_channels, width=16)


def _convolution(in_channels: int, out_channels: int) -> list[nn.Module]:
    convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(out_channels), nn.LeakyReLU(0.1, inplace=True)]


class MLP(Backbone):
    """Fully connected layers, each with batch norm and ReLU, for vectors or flattened images.

    Args:
        in_channels: features of a vector, or channels of the images if `image_size` is given.
        image_size: (height, width) of the images; None for vectors.
        hidden: width of each layer; the last is the number of features.

    Raises:
        ValueError: if `hidden` is empty or holds anything but positive integers.
    """

    def __init__(
        self, in_channels: int, *, image_size: tuple[int, int] | None = None, hidden: Sequence[int] = (256, 128)
    ) -> None:
        super().__init__()
        if not hidden:
            raise ValueError("hidden: got no layers, expected the width of at least one")
        self.in_channels = in_channels
        self.in_features = in_channels if image_size is None else in_channels * image_size[0] * image_size[1]
        self.layers = nn.Sequential()
        width = self.in_features
        for next_width in hidden:
            linear = nn.Linear(width, check_positive_int("hidden", next_width), bias=False)
            nn.init.xavier_normal_(linear.weight)
            self.layers.extend([linear, nn.BatchNorm1d(next_width), nn.ReLU(inplace=True)])
            width = next_width
        self.num_features = width
        self.stage_names = (INPUT, *(f"layers.{3 * number + 2}" for number in range(len(hidden))))

    def forward(self, x: Tensor) -> Float[Tensor, "n D"]:
        """Features of normalised vectors or images.

        Args:
            x: (n, d), or (n, C, H, W) with C * H * W = d.

        Raises:
            ValueError: if an example does not have d values.
        """
        flat = x.flatten(1) if x.ndim > 1 else x
        if flat.ndim != 2 or flat.shape[1] != self.in_features:
            raise ValueError(
                f"input: got shape {tuple(x.shape)}, expected (n, {self.in_features}) or images of {self.in_features} values; "
                "build the mlp with the in_channels and image_size of the data"
            )
        features: Tensor = self.layers(flat)
        return features
