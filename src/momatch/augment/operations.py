"""RandAugment's operations, their ranges, and how a batch in which every sample has its own operations is computed.

Two ways, equal bit for bit. `_apply_grouped` sorts the samples by operation and computes each operation on its own samples: it
must read the group sizes, which is free on the CPU. `_apply_masked` computes every operation for every sample and selects: no
read-back and no shape that depends on values, so it is what accelerators, ``meta`` and ``torch.compile`` run.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from momatch.augment import blends, geometry, levels
from momatch.augment.draws import below, constant
from momatch.augment.levels import ONE
from momatch.validation import is_readable

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
#: Operations on places: affine maps, first those that take rows apart, then those that slide whole rows.
WARPS = ("rotate", "shear_y")
SLIDES = ("shear_x", "translate_x", "translate_y")
#: Lowest and highest magnitude; an operation without one ignores it. The bits of posterize are truncated: 4, 5, 6 or 7.
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
#: Families stand together: samples sorted by operation fall into one run of each.
OPERATIONS = tuple(RANGES)


def draw_magnitude(
    operation: Int64[Tensor, "n k"], draws: Int64[Tensor, "n k"], names: Sequence[str]
) -> Int64[Tensor, "n k"]:
    """Magnitudes uniform in the range of each operation, in 16.16 fixed point.

    Args:
        operation: index into `names`, k a sample.
        draws: uniform in [0, 2^32).
        names: the operations in use.

    Returns:
        int64, (n, k).
    """
    bounds = constant(
        tuple((round(low * ONE), round(high * ONE)) for low, high in (RANGES[name] for name in names)), draws.device
    )
    low, high = bounds[operation].unbind(-1)
    return low + below(draws, high - low)


def apply(
    images: UInt8[Tensor, "n C H W"],
    operation: Int64[Tensor, "n k"],
    magnitude: Int64[Tensor, "n k"],
    names: Sequence[str] = OPERATIONS,
) -> UInt8[Tensor, "n C H W"]:
    """Apply to each sample its own k operations, one after the other, each with its own magnitude.

    Args:
        images: the batch.
        operation: index into `names`, k a sample.
        magnitude: 16.16 fixed point.
        names: the operations in use, in the order of `OPERATIONS`.

    Returns:
        The changed images.
    """
    way = _apply_grouped if is_readable(images) and is_readable(operation) else _apply_masked
    return way(images, operation, magnitude, names)


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
    matrices = geometry.affine_matrices(operation, magnitude, names, *images.shape[2:])
    place = torch.arange(len(images))  # where each sample stands in the current order
    # Many small calls: without autograd's bookkeeping they take a sixth less. The last call, outside, makes an ordinary tensor.
    with torch.inference_mode():
        for slot in range(operation.shape[1]):
            order = operation[:, slot].argsort()
            images = images.index_select(0, place[order])
            sizes = torch.bincount(operation[:, slot], minlength=len(names)).tolist()
            groups = zip(names, torch.split(images, sizes), torch.split(magnitude[order, slot], sizes), strict=True)
            parts = [PIXELS[name](x, m) for name, x, m in groups if name in PIXELS and len(x)]
            first = sum(map(len, parts))
            for family, move in ((WARPS, geometry.warp), (SLIDES, geometry.slide)):
                last = first + sum(size for name, size in zip(names, sizes, strict=True) if name in family)
                if first < last:
                    parts.append(move(images[first:last], matrices[order[first:last], slot]))
                first = last
            images = torch.cat([*parts, images[first:]])
            place = order.argsort()
    return images.index_select(0, place)
