"""Weak and strong views of a batch of images, as FixMatch and FlexMatch use them.

Weak: a random crop after reflect padding, and a horizontal flip. Strong: a weak view, then operations drawn with replacement
(`operations`), then cutout. Everything is drawn per sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from momatch.augment import geometry, host
from momatch.augment.draws import below, draw
from momatch.augment.operations import OPERATIONS, apply, draw_magnitude
from momatch.numerics.checks import check_fraction, is_readable

#: Largest height or width: source coordinates in 16.16 fixed point must fit in 32 bits.
MAX_SIZE = 1 << 14
#: The benchmark's cutout colour, and the gray that Pillow converts it to.
CUTOUT_FILL = {3: (125, 123, 114), 1: (123,)}


class View(ABC):
    """Makes one view of each sample of a batch: of images here, of saved features in `cached`."""

    #: Default view number within a step: weak and strong views must not share random numbers.
    default_view: int

    @abstractmethod
    def __call__(
        self,
        images: Shaped[Tensor, "..."],
        *,
        seed: int,
        step: int,
        view: int | None = None,
        offset: int = 0,
        stride: int = 1,
    ) -> Shaped[Tensor, "..."]:
        """One view of each sample; depends on the arguments only."""

    def _draws(self, images: Tensor, count: int, view: int | None, **numbers: int) -> Int64[Tensor, "n {count}"]:
        """`count` random numbers per sample; `view` None for the default, `numbers` as for `draw`."""
        view = self.default_view if view is None else view
        return draw(len(images), count, view=view, device=images.device, **numbers)


class _ImageView(View):
    """Shared by weak and strong views: checks, draws, and conversion to bytes and back."""

    #: Random numbers per sample.
    num_draws: int

    @abstractmethod
    def apply(self, images: UInt8[Tensor, "n C H W"], draws: Int64[Tensor, "n draws"]) -> UInt8[Tensor, "n C H W"]:
        """The view for the given random numbers. Pure tensor work, so ``torch.compile`` can handle it."""

    def __call__(
        self,
        images: Shaped[Tensor, "..."],
        *,
        seed: int,
        step: int,
        view: int | None = None,
        offset: int = 0,
        stride: int = 1,
    ) -> Shaped[Tensor, "..."]:
        """Make one view of each image, on the images' device and without read-back.

        The result depends only on the arguments: global random state is neither read nor changed. Sample i uses the random
        numbers of (seed, step, view, offset + i * stride), whatever else is in the batch, so processes that share a batch make
        the same views as a single process.

        Args:
            images: (n, C, H, W) with C = 1 or 3, uint8 or floating in [0, 1]. The operations are defined on 8 bits: floating
                images are rounded to 256 levels (and clamped, if values cannot be checked) and returned as floating.
            seed: the run's seed.
            step: the training step.
            view: which view of the step; by default 0 if weak, 1 if strong. Give two weak batches of one step (labelled and
                unlabelled) different numbers.
            offset: position of the first image in the global batch.
            stride: distance between consecutive images in the global batch: the number of processes if they take turns.

        Returns:
            A new tensor with the shape, dtype and device of `images`.

        Raises:
            ValueError: if the shape, dtype or values (where readable) are not as above.
        """
        _check(images)
        if images.shape.numel() == 0:
            return images.clone()
        draws = self._draws(images, self.num_draws, view, seed=seed, step=step, offset=offset, stride=stride)
        if images.dtype == torch.uint8:
            return self.apply(images, draws)
        levels = (images.float() * 255).round().clamp(0, 255).to(torch.uint8)
        return (self.apply(levels, draws).float() / 255).to(images.dtype)


class WeakAugment(_ImageView):
    """Random crop after reflect padding, and horizontal flip.

    Args:
        flip: flip half of the samples horizontally; False for digits and letters.
        padding: padding on each side as a fraction of the size, rounded down to whole pixels (4 for 32).
    """

    num_draws = 3
    default_view = 0

    def __init__(self, *, flip: bool = True, padding: float = 0.125) -> None:
        if not 0 <= padding < 1:
            raise ValueError(f"padding: got {padding!r}, expected a fraction in [0, 1)")
        self.flip = flip
        self.padding = padding

    def apply(self, images: UInt8[Tensor, "n C H W"], draws: Int64[Tensor, "n 3"]) -> UInt8[Tensor, "n C H W"]:
        """Crop and flip; `draws` are row, column and flip."""
        return geometry.crop_flip(images, draws, padding=self.padding, flip=self.flip)


class StrongAugment(_ImageView):
    """A weak view, then operations drawn with replacement, each with a magnitude uniform in its range, then cutout.

    Args:
        flip: as in `WeakAugment`.
        padding: as in `WeakAugment`.
        num_operations: operations per sample.
        operations: operations to draw from; by default RandAugment's fourteen. "color" is skipped for gray images.
        cutout: largest side of the square as a fraction of the width; 0 turns it off.
        fill: level of the square in each channel; by default the benchmark's (125, 123, 114), or its gray, 123.

    Raises:
        ValueError: if an option is out of range.
    """

    default_view = 1

    def __init__(
        self,
        *,
        flip: bool = True,
        padding: float = 0.125,
        num_operations: int = 3,
        operations: Sequence[str] = OPERATIONS,
        cutout: float = 0.5,
        fill: Sequence[int] | None = None,
    ) -> None:
        unknown = sorted(set(operations) - set(OPERATIONS))
        if unknown or not set(operations) - {"color"}:
            raise ValueError(
                f"operations: got {list(operations)}, expected at least one besides color out of {list(OPERATIONS)}"
            )
        if num_operations < 0:
            raise ValueError(f"num_operations: got {num_operations}, expected 0 or more")
        if fill is not None and not all(0 <= level <= 255 for level in fill):
            raise ValueError(f"fill: got {tuple(fill)}, expected levels from 0 to 255")
        self.weak = WeakAugment(flip=flip, padding=padding)
        self.num_operations = num_operations
        self.operations = tuple(name for name in OPERATIONS if name in operations)
        self.cutout = check_fraction("cutout", cutout)
        self.fill = None if fill is None else tuple(fill)
        self.num_draws = self.weak.num_draws + 2 * num_operations + 3

    def apply(self, images: UInt8[Tensor, "n C H W"], draws: Int64[Tensor, "n draws"]) -> UInt8[Tensor, "n C H W"]:
        """Weak view, operations, cutout; `draws` are for the weak view, the operations, their magnitudes and the square."""
        channels = images.shape[1]
        names = tuple(name for name in self.operations if channels == 3 or name != "color")
        fill = self.fill or CUTOUT_FILL[channels]
        if len(fill) != channels:
            raise ValueError(f"fill: got {len(fill)} levels {fill}, expected {channels}, one per channel")
        k = self.num_operations
        weak, which, how_much, square = torch.split(draws, [self.weak.num_draws, k, k, 3], dim=1)
        images = self.weak.apply(images, weak)
        operation = below(which, len(names))
        magnitude = draw_magnitude(operation, how_much, names)
        images = apply(images, operation, magnitude, names)
        if not self.cutout:
            return images
        if is_readable(images):
            host.cutout(images.numpy(), square.numpy(), size=self.cutout, fill=fill)  # a new tensor, safe to change
            return images
        return geometry.cutout(images, square, size=self.cutout, fill=fill)


def _check(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] not in CUTOUT_FILL or max(images.shape[2:]) > MAX_SIZE:
        raise ValueError(
            f"images: got shape {tuple(images.shape)}, expected (n, C, H, W) with C = 1 or 3 and sizes up to {MAX_SIZE}"
        )
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise ValueError(f"images: got dtype {images.dtype}, expected uint8, or floating point in [0, 1]")
    if images.numel() and is_readable(images):
        low, high = (float(bound) for bound in torch.aminmax(images))
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"images: got values from {low} to {high}, expected floating images in [0, 1]; "
                "augment before normalising, or pass uint8"
            )
