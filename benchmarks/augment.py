"""Images a second of the batched strong view against a per-image Pillow pipeline, 32 x 32 RGB, on one thread and on two.

Both make the same thing from the same photographs: reflect padding, crop, flip, three operations out of fourteen with their
own magnitudes, cutout, and a uint8 array. The Pillow side starts from decoded Pillow images, pads with Pillow alone (faster
than through numpy) and draws with Python's own generator. Rounds of the two alternate, so that a busy machine slows
both; the figure is the median of the ratios of neighbouring rounds. The steps of the batched view are timed one by one as well.

Run: python benchmarks/augment.py (about a minute; alone on the machine)
"""

import argparse
import math
import random
import statistics
import time

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images

from _record import medians, write_result
from momatch.augment import OPERATIONS, StrongAugment, WeakAugment, host
from momatch.augment.draws import below, draw
from momatch.augment.operations import apply, draw_magnitude
from momatch.models.normalize import Normalize

SIZE = 32
FILL = (125, 123, 114)
MIRROR = Image.Transpose.FLIP_LEFT_RIGHT
UPSIDE_DOWN = Image.Transpose.FLIP_TOP_BOTTOM


def photographs(count):
    """(count, 3, 32, 32) uint8: patches of scikit-learn's two photographs at half their size."""
    patches = []
    for photo in load_sample_images().images:
        tiles = torch.from_numpy(photo.copy())[::2, ::2].permute(2, 0, 1).unfold(1, SIZE, 8).unfold(2, SIZE, 8)
        patches.append(tiles.flatten(1, 2).transpose(0, 1))
    images = torch.cat(patches)
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]].contiguous()


def affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


#: Operation, lowest and highest magnitude.
PILLOW = [
    (lambda image, v: ImageOps.autocontrast(image), 0, 0),
    (lambda image, v: ImageOps.equalize(image), 0, 0),
    (lambda image, v: ImageOps.posterize(image, int(v)), 4, 8),
    (ImageOps.solarize, 0, 256),
    (lambda image, v: ImageEnhance.Brightness(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Contrast(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Color(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Sharpness(image).enhance(v), 0.05, 0.95),
    (lambda image, v: image.rotate(v), -30, 30),
    (lambda image, v: affine(image, 1, v, 0, 0, 1, 0), -0.3, 0.3),
    (lambda image, v: affine(image, 1, 0, 0, v, 1, 0), -0.3, 0.3),
    (lambda image, v: affine(image, 1, 0, v * image.width, 0, 1, 0), -0.3, 0.3),
    (lambda image, v: affine(image, 1, 0, 0, 0, 1, v * image.height), -0.3, 0.3),
    (lambda image, v: image, 0, 0),
]


def pillow_weak(image, rng):
    margin = SIZE // 8
    padded = Image.new("RGB", (SIZE + 2 * margin, SIZE + 2 * margin))
    full, end = SIZE + 2 * margin, SIZE + margin
    padded.paste(image, (margin, margin))
    padded.paste(padded.crop((margin + 1, margin, 2 * margin + 1, end)).transpose(MIRROR), (0, margin))
    padded.paste(padded.crop((SIZE - 1, margin, end - 1, end)).transpose(MIRROR), (end, margin))
    padded.paste(padded.crop((0, margin + 1, full, 2 * margin + 1)).transpose(UPSIDE_DOWN), (0, 0))
    padded.paste(padded.crop((0, SIZE - 1, full, end - 1)).transpose(UPSIDE_DOWN), (0, end))
    left, top = rng.randint(0, 2 * margin), rng.randint(0, 2 * margin)
    crop = padded.crop((left, top, left + SIZE, top + SIZE))
    return crop.transpose(MIRROR) if rng.random() < 0.5 else crop


def pillow_strong(image, rng):
    image = pillow_weak(image, rng)
    for operation, low, high in rng.choices(PILLOW, k=3):
        image = operation(image, low + (high - low) * rng.random())
    side = rng.random() * 0.5 * SIZE
    left, top = (int(max(0.0, rng.random() * SIZE - side / 2)) for _ in range(2))
    pixels = math.ceil(side)
    image.paste(FILL, (left, top, min(SIZE, left + pixels), min(SIZE, top + pixels)))
    return np.asarray(image)


def seconds(work, repeats=1):
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def compare(images, threads, rounds):
    """Medians over alternating rounds: (batched images/s, Pillow images/s, ratio)."""
    torch.set_num_threads(threads)
    pillow = [Image.fromarray(np.ascontiguousarray(x.permute(1, 2, 0).numpy())) for x in images]
    rng, augment = random.Random(0), StrongAugment()
    pairs = []
    for step in range(rounds + 2):  # the first two warm up
        batched = seconds(lambda step=step: augment(images, seed=0, step=step), repeats=5) / len(images)
        single = seconds(lambda: [pillow_strong(image, rng) for image in pillow]) / len(images)
        if step >= 2:
            pairs.append((1 / batched, 1 / single, single / batched))
    return [statistics.median(column) for column in zip(*pairs, strict=True)]


def steps(images, rounds):
    """Median microseconds an image of each step of the batched view, one thread."""
    torch.set_num_threads(1)
    n = len(images)
    draws = draw(n, 12, seed=0, step=0)
    operation = below(draws[:, 3:6], len(OPERATIONS))
    magnitude = draw_magnitude(operation, draws[:, 6:9], OPERATIONS)
    painted = images.numpy().copy()
    weak, normalize = WeakAugment(), Normalize([0.5] * 3, [0.25] * 3)
    work = {
        "random numbers": lambda: draw(n, 12, seed=0, step=0),
        "crop and flip": lambda: weak.apply(images, draws[:, :3]),
        "choice and magnitudes": lambda: draw_magnitude(
            below(draws[:, 3:6], len(OPERATIONS)), draws[:, 6:9], OPERATIONS
        ),
        "three operations": lambda: apply(images, operation, magnitude),
        "cutout": lambda: host.cutout(painted, draws[:, 9:].numpy(), size=0.5, fill=FILL),
        "(afterwards) normalise to float32": lambda: normalize(images),
    }
    return {name: round(taken / n * 1e6, 2) for name, taken in medians(work, repeats=rounds).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    rows = []
    for batch in (64, 448, 1024):
        images = photographs(batch)
        for threads in (1, 2):
            batched, single, ratio = compare(images, threads, rounds)
            rows.append(
                {
                    "batch": batch,
                    "threads": threads,
                    "batched images/s": round(batched),
                    "Pillow images/s (one thread)": round(single),
                    "ratio": round(ratio, 1),
                }
            )
            print(rows[-1], flush=True)
    breakdown = steps(photographs(448), rounds)
    print(breakdown)
    notes = (
        "Strong view (crop, flip, three operations, cutout) of 32 x 32 RGB photographs, uint8 to uint8; medians of "
        f"{rounds} alternating rounds. Steps of the batched view at 448 images on one thread, microseconds an image: "
        + ", ".join(f"{name} {value}" for name, value in breakdown.items())
        + "."
    )
    write_result("augment", rows, notes, steps=breakdown, seeds=[0])


if __name__ == "__main__":
    main()
