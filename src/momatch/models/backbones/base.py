"""What a backbone is here, and the check of its input."""

from torch import Tensor, nn

#: Mean and standard deviation of each channel, for pixels scaled to 0-1.
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


class Backbone(nn.Module):
    """A network that maps normalised floating images (n, C, H, W) to features (n, num_features).

    A user's own module needs no base class: these attributes are read where they exist.

    Attributes:
        num_features: how many features it returns for an image.
        normalization: the (mean, std) of 0-1 pixels that its weights were trained with; None where the statistics of
            the dataset are meant. Whoever feeds the backbone (augmentation, `momatch.models.normalize.Normalize`) must use it.
        in_channels: channels of the images.
        min_size: the smallest side of an image that it takes.
    """

    num_features: int
    normalization: Normalization | None = None
    in_channels: int
    min_size: int = 1

    def _check_images(self, x: Tensor) -> None:
        """Check a batch of images by what is known on the host.

        Raises:
            ValueError: naming what was got and what was expected.
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
