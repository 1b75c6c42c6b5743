"""Draw weak and strong views of real images in a grid, and each operation at both ends of its range.

Run: python examples/augmentations.py --out out/augmentations.png [--images batch.npz]

The images are scikit-learn's two photographs, cut into tiles, or the uint8 array "images" of an .npz: (N, H, W, C) or
(N, C, H, W).
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from sklearn.datasets import load_sample_images

from momatch.augment import OPERATIONS, StrongAugment, WeakAugment
from momatch.augment.levels import ONE
from momatch.augment.operations import RANGES, apply

mpl.use("Agg")
from matplotlib import pyplot as plt


def tiles(count, size=96):
    """(count, 3, size, size) uint8 from the photographs at half their size."""
    china, flower = (torch.from_numpy(photo.copy())[::2, ::2].permute(2, 0, 1) for photo in load_sample_images().images)
    places = [
        (china, 60, 40),
        (flower, 40, 90),
        (china, 90, 180),
        (flower, 100, 130),
        (china, 20, 110),
        (flower, 10, 200),
    ]
    return torch.stack([photo[:, y : y + size, x : x + size] for photo, y, x in places])[:count]


def from_archive(path, count):
    images = torch.from_numpy(np.load(path)["images"][:count])
    return images.permute(0, 3, 1, 2).contiguous() if images.shape[-1] in (1, 3) else images


def show(axis, image):
    axis.imshow(image.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])


def views(images, out, *, flip, num_views=5):
    """One row an image: the original, weak views, strong views."""
    weak, strong = WeakAugment(flip=flip), StrongAugment(flip=flip)
    columns = [("original", images)]
    columns += [(f"weak, step {step}", weak(images, seed=0, step=step)) for step in range(2)]
    columns += [(f"strong, step {step}", strong(images, seed=0, step=step)) for step in range(num_views)]
    figure, axes = plt.subplots(
        len(images), len(columns), figsize=(1.5 * len(columns), 1.5 * len(images)), squeeze=False
    )
    for column, (title, batch) in enumerate(columns):
        axes[0, column].set_title(title, fontsize=9)
        for row, image in enumerate(batch):
            show(axes[row, column], image)
    save(figure, out)


def operations(image, out):
    """Each operation at its lowest and highest magnitude."""
    names = [name for name in OPERATIONS if len(image) == 3 or name != "color"]
    figure, axes = plt.subplots(2, len(names), figsize=(1.3 * len(names), 3.6))
    for column, name in enumerate(names):
        for row, magnitude in enumerate(RANGES[name]):
            index, fixed = torch.tensor([[column]]), torch.tensor([[round(magnitude * ONE)]])
            show(axes[row, column], apply(image[None], index, fixed, names)[0])
            axes[row, column].set_xlabel(f"{magnitude:g}" if RANGES[name][1] else "", fontsize=8)
        axes[0, column].set_title(name, fontsize=9)
    save(figure, out)


def save(figure, out):
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout(pad=0.4)
    figure.savefig(out, dpi=110)
    plt.close(figure)
    print(f"wrote {out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/augmentations.png"))
    parser.add_argument("--images", type=Path, help="an .npz with the array 'images'; default: two photographs")
    parser.add_argument("--no-flip", action="store_true", help="for digits")
    arguments = parser.parse_args()
    images = from_archive(arguments.images, 6) if arguments.images else tiles(6)
    views(images, arguments.out, flip=not arguments.no_flip)
    operations(images[0], arguments.out.with_stem(arguments.out.stem + "-operations"))


if __name__ == "__main__":
    main()
