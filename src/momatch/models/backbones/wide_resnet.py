"""Wide residual networks (Zagoruyko & Komodakis 2016) as the semi-supervised benchmarks build them.

Differences from the usual definition: a stem of 16 channels with a bias, batch norm momentum 0.001 (PyTorch's convention: a
running statistic keeps 0.999 of its value each step), LeakyReLU with slope 0.1, and in the first block of the network a 1x1
shortcut that reads the activated input (the raw input in later stages). These details, and all parameter shapes, match USB's
``wrn_28_2`` and ``wrn_var_37_2``: eps is 1e-5 in the blocks and 1e-3 in the last batch norm; convolutions are kaiming-normal
over the fan-out with the ReLU gain. We differ from USB in two ways: the stem's bias starts at 0 (batch norm removes it
anyway), and `variant`.
"""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from momatch.models.backbones.base import Backbone

_STEM_CHANNELS = 16
_LAST_EPS = 1e-3


def _activate(x: Float[Tensor, "n C H W"]) -> Float[Tensor, "n C H W"]:
    """LeakyReLU with slope 0.1, in place; `x` must be the fresh output of a batch norm.

    In place is safe because the backward pass of batch norm needs its input, not its output, and that of LeakyReLU only the
    sign of its result. It saves a third of the activation memory.
    """
    return F.leaky_relu(x, 0.1, inplace=True)


class Block(nn.Module):
    """Two 3x3 convolutions, each after batch norm and activation, added to a shortcut.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        stride: of the first convolution and of the shortcut.
        bn_momentum: of the batch norms.
        activate_shortcut: a 1x1 shortcut reads the activated input.
        preactivate: False omits the first batch norm and activation.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: int,
        bn_momentum: float,
        activate_shortcut: bool,
        preactivate: bool,
    ) -> None:
        super().__init__()
        self.activate_shortcut = activate_shortcut
        self.bn1 = nn.BatchNorm2d(in_channels, momentum=bn_momentum) if preactivate else None
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels, momentum=bn_momentum)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Float[Tensor, "n C H W"]) -> Float[Tensor, "n C2 H2 W2"]:
        """The shortcut plus the two convolutions."""
        activated = x if self.bn1 is None else _activate(self.bn1(x))
        residual: Tensor = self.conv2(_activate(self.bn2(self.conv1(activated))))
        if self.shortcut is not None:
            x = self.shortcut(activated if self.activate_shortcut else x)
        return x + residual


class WideResNet(Backbone):
    """Stem, stages of pre-activation blocks, batch norm, activation, global average pool.

    Args:
        in_channels: channels of the images.
        widths: output channels of each stage.
        strides: stride of each stage's first block.
        blocks: blocks in a stage.
        bn_momentum: momentum of the batch norms. 0.001 suits hundreds of thousands of steps. In a run of a few hundred, the
            running statistics would not converge and evaluation would be far off: use 0.1.
        variant: "preactivation" is the network as defined in the papers. "published" follows USB's code, where the first
            block of each later stage convolves the raw input; USB computes its first batch norm without using it, we omit it.

    Raises:
        ValueError: if `variant` is unknown.
    """

    def __init__(
        self,
        in_channels: int = 3,
        *,
        widths: Sequence[int],
        strides: Sequence[int],
        blocks: int,
        bn_momentum: float = 0.001,
        variant: str = "preactivation",
    ) -> None:
        super().__init__()
        if variant not in ("preactivation", "published"):
            raise ValueError(f"variant: got {variant!r}, expected 'preactivation' or 'published'")
        self.in_channels = in_channels
        self.num_features = widths[-1]
        # For smaller images the last stage would see little but zero padding.
        self.min_size = max(8, math.prod(strides))
        self.stem = nn.Conv2d(in_channels, _STEM_CHANNELS, 3, padding=1)
        self.stages = nn.Sequential()
        channels = _STEM_CHANNELS
        for index, (width, stride) in enumerate(zip(widths, strides, strict=True)):
            stage = nn.Sequential()
            for position in range(blocks):
                raw = variant == "published" and position == 0 and index > 0
                stage.append(
                    Block(
                        channels,
                        width,
                        stride=stride if position == 0 else 1,
                        bn_momentum=bn_momentum,
                        activate_shortcut=index == 0,
                        preactivate=not raw,
                    )
                )
                channels = width
            self.stages.append(stage)
        self.bn = nn.BatchNorm2d(channels, momentum=bn_momentum, eps=_LAST_EPS)
        self.stage_names = ("stem", *(f"stages.{number}" for number in range(len(widths))))
        _initialise(self)

    def forward(self, x: Tensor) -> Float[Tensor, "n D"]:
        """Features of normalised images.

        Args:
            x: (n, C, H, W).

        Raises:
            ValueError: if `x` has another number of channels or is too small.
        """
        self._check_images(x)
        return _activate(self.bn(self.stages(self.stem(x)))).mean((2, 3))


def _initialise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def wrn_28_2(in_channels: int = 3, *, bn_momentum: float = 0.001, variant: str = "preactivation") -> WideResNet:
    """WRN-28-2, the benchmarks' network for 32x32 images: 128 features, 1.47 M parameters. See `WideResNet`."""
    return WideResNet(
        in_channels, widths=(32, 64, 128), strides=(1, 2, 2), blocks=4, bn_momentum=bn_momentum, variant=variant
    )


def wrn_37_2(in_channels: int = 3, *, bn_momentum: float = 0.001, variant: str = "preactivation") -> WideResNet:
    """WRN-37-2, the benchmarks' network for 96x96 images: four stages, 256 features, 5.9 M parameters. See `WideResNet`."""
    return WideResNet(
        in_channels, widths=(32, 64, 128, 256), strides=(2, 2, 2, 2), blocks=4, bn_momentum=bn_momentum, variant=variant
    )


def wrn_10_1(in_channels: int = 3, *, bn_momentum: float = 0.1) -> WideResNet:
    """WRN-10-1 for short runs on a CPU: one block per stage, 64 features, 0.08 M parameters. See `WideResNet`."""
    return WideResNet(in_channels, widths=(16, 32, 64), strides=(1, 2, 2), blocks=1, bn_momentum=bn_momentum)
