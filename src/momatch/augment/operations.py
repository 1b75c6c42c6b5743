"""RandAugment's operations and their ranges, applied to a batch in which every sample has its own operations.

There are two implementations, equal bit for bit. `_apply_grouped` sorts the samples by operation and runs each operation on its
own samples with numpy (`host`); it reads the group sizes, which is free on the CPU. `_apply_masked` runs every operation on
every sample with torch and selects. It needs no read-back and no data-dependent shapes, so accelerators, ``meta`` and
``torch.compile`` use it.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from momatch.augment import blends, geometry, host, levels
from momatch.augment.draws import below, constant
from momatch.augment.levels import ONE
from momatch.numerics.checks import is_readable

#: Operations on pixels: (images, magnitude) -> images.
PIXELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": levels.autocontrast,
    "equalize": levels.equalize,
    "posterize": levels.posterize,
    "solarize": levels.solarize,
    "brightness": blends.brightness,
    "contrast": blends.contrast,
    "color": blends.color,
    "sharpness": blends.sharpness,
}
#: Affine operations: first those that break up rows, then those that slide whole rows.
WARPS = ("rotate", "shear_y")
SLIDES = ("shear_x", "translate_x", "translate_y")
#: Lowest and highest magnitude; (0, 0) for operations without one. The bits of posterize are truncated: 4, 5, 6 or 7.
RANGES: dict[str, tuple[float, float]] = {
    "autocontrast": (0, 0),
    "equalize": (0, 0),
    "posterize": (4, 8),
    "solarize": (0, 256),
    "brightness": (0.05, 0.95),
    "contrast": (0.05, 0.95),
    "color": (0.05, 0.95),
    "sharpness": (0.05, 0.95),
    "rotate": (-30, 30),
    "shear_y": (-0.3, 0.3),
    "shear_x": (-0.3, 0.3),
    "translate_x": (-0.3, 0.3),
    "translate_y": (-0.3, 0.3),
    "identity": (0, 0),
}
#: Operations of a family are adjacent, so samples sorted by operation form one run per family.
OPERATIONS = tuple(RANGES)


def draw_magnitude(
    operation: Int64[Tensor, "n k"], draws: Int64[Tensor, "n k"], names: Sequence[str]
) -> Int64[Tensor, "n k"]:
    """Magnitudes uniform in the range of each operation, in 16.16 fixed point.

    Args:
        operation: index into `names`, k per sample.
        draws: uniform in [0, 2^32).
        names: the operations in use.

    Returns:
        int64, (n, k).
    """
    bounds = constant(
        tuple((round(low * ONE), round(high * ONE)) for low, high in (RANGES[name] for name in names)), draws.device
    )
    low, high = bounds.index_select(0, operation.flatten()).view(*operation.shape, 2).unbind(-1)
    return low + below(draws, high - low)


def apply(
    images: UInt8[Tensor, "n C H W"],
    operation: Int64[Tensor, "n k"],
    magnitude: Int64[Tensor, "n k"],
    names: Sequence[str] = OPERATIONS,
) -> UInt8[Tensor, "n C H W"]:
    """Apply each sample's own k operations in turn, each with its own magnitude.

    Args:
        images: the batch.
        operation: index into `names`, k per sample.
        magnitude: 16.16 fixed point.
        names: the operations in use, in the order of `OPERATIONS`.

    Returns:
        The changed images.
    """
    apply_all = _apply_grouped if is_readable(images) and is_readable(operation) else _apply_masked
    return apply_all(images, operation, magnitude, names)


def _apply_masked(
    images: UInt8[Tensor, "n C H W"],
    operation: Int64[Tensor, "n k"],
    magnitude: Int64[Tensor, "n k"],
    names: Sequence[str],
) -> UInt8[Tensor, "n C H W"]:
    matrices = geometry.affine_matrices(operation, magnitude, names, *images.shape[2:])
    for slot in range(operation.shape[1]):
        changed = geometry.warp(images, matrices[:, slot])
        for i, name in enumerate(names):
            if name in PIXELS:
                chosen = (operation[:, slot] == i)[:, None, None, None]
                changed = torch.where(chosen, PIXELS[name](images, magnitude[:, slot]), changed)
        images = changed
    return images


def _apply_grouped(
    images: UInt8[Tensor, "n C H W"],
    operation: Int64[Tensor, "n k"],
    magnitude: Int64[Tensor, "n k"],
    names: Sequence[str],
) -> UInt8[Tensor, "n C H W"]:
    matrices = geometry.affine_matrices(operation, magnitude, names, *images.shape[2:]).numpy()
    magnitudes, changed = magnitude.numpy(), images.numpy()
    place = np.arange(len(changed))  # each sample's position in the current order
    for slot, which in enumerate(operation.numpy().T):
        order = which.argsort(kind="stable")
        changed = changed.take(place[order], axis=0)
        sizes = dict(zip(names, np.bincount(which, minlength=len(names)).tolist(), strict=True))
        _change_sorted(changed, magnitudes[order, slot], matrices[order, slot], sizes)
        place[order] = np.arange(len(order))
    return torch.from_numpy(changed.take(place, axis=0))


def _change_sorted(
    images: UInt8[np.ndarray, "n C H W"],
    magnitude: Int64[np.ndarray, " n"],
    matrices: Int64[np.ndarray, "n 6"],
    sizes: Mapping[str, int],
) -> None:
    """Apply one operation per sample, in place; samples are sorted as `OPERATIONS`, with `sizes` of each."""
    computed = [((name,), compute, magnitude) for name, compute in host.PIXELS.items()]
    first = 0
    for family, compute, arguments in (*computed, (WARPS, _warp, matrices), (SLIDES, host.slide, matrices)):
        run = slice(first, first + sum(sizes.get(name, 0) for name in family))
        if run.start < run.stop:
            images[run] = compute(images[run], arguments[run])
        first = run.stop


def _warp(images: UInt8[np.ndarray, "n C H W"], matrices: Int64[np.ndarray, "n 6"]) -> UInt8[np.ndarray, "n C H W"]:
    with torch.inference_mode():  # a tenth faster without autograd's bookkeeping
        return geometry.warp(torch.from_numpy(images), torch.from_numpy(matrices)).numpy()
