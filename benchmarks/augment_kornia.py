"""kornia's operations with per-sample parameters against momatch's, on the same photographs in the same run, one thread.

kornia works on floating images, so "levels apart" rounds its result to 8 bits and compares it with momatch's, which equals
Pillow's. Each call is the bare operation on the samples it would get: neither side pays for sorting or selecting. Not part of
what `make` runs, because it needs packages that momatch does not: pip install --no-deps kornia kornia_rs. The decision it
served: docs/decisions/0002-augmentation.md.

Run: python benchmarks/augment_kornia.py (about half a minute)
"""

import kornia
import torch
from kornia import enhance
from kornia.augmentation import AugmentationSequential, RandomCrop, RandomErasing, RandomHorizontalFlip
from kornia.augmentation.auto import RandAugment
from kornia.geometry.transform import rotate, warp_affine

from _record import medians, write_result
from augment import SIZE, photographs
from momatch.augment import OPERATIONS, StrongAugment
from momatch.augment.draws import draw
from momatch.augment.geometry import affine_matrices, warp
from momatch.augment.levels import ONE
from momatch.augment.operations import PIXELS, RANGES, draw_magnitude


def forward_map(kind, value):
    """kornia wants the map from input to output of pixel centers, Pillow is given the one from output to input of corners."""
    inverse = torch.eye(3, dtype=torch.float64).repeat(len(value), 1, 1)
    row, column, scale = {
        "shear_x": (0, 1, 1),
        "shear_y": (1, 0, 1),
        "translate_x": (0, 2, SIZE),
        "translate_y": (1, 2, SIZE),
    }[kind]
    inverse[:, row, column] = value * scale
    center = torch.eye(3, dtype=torch.float64)
    center[:2, 2] = 0.5
    return torch.linalg.inv(torch.linalg.inv(center) @ inverse @ center)[:, :2].float()


def kornia_operation(name, x, value):
    if name in ("shear_x", "shear_y", "translate_x", "translate_y"):
        matrix = forward_map(name, value)
        return lambda: warp_affine(x, matrix, (SIZE, SIZE), mode="nearest", align_corners=True)
    real, bits = value.float(), value.long()
    return {
        "autocontrast": lambda: enhance.normalize_min_max(x),
        "equalize": lambda: enhance.equalize(x),
        "posterize": lambda: enhance.posterize(x, bits),
        "solarize": lambda: enhance.solarize(x, real.ceil() / 255),
        "brightness": lambda: enhance.adjust_brightness_accumulative(x, real),
        "contrast": lambda: enhance.adjust_contrast_with_mean_subtraction(x, real),
        "color": lambda: enhance.adjust_saturation_with_gray_subtraction(x, real),
        "sharpness": lambda: enhance.sharpness(x, real),
        "rotate": lambda: rotate(x, real, mode="nearest"),
    }[name]


def momatch_operation(name, images, operation, magnitude):
    if name in PIXELS:
        return lambda: PIXELS[name](images, magnitude[:, 0])
    return lambda: warp(images, affine_matrices(operation, magnitude, OPERATIONS, SIZE, SIZE)[:, 0])


def main():
    torch.set_num_threads(1)
    count = 32  # what one operation gets of a batch of 448
    images = photographs(count)
    x = images.float() / 255
    rows = []
    for index, name in enumerate(OPERATIONS):
        if name == "identity":
            continue
        operation = torch.full((count, 1), index)
        magnitude = draw_magnitude(operation, draw(count, 1, seed=0, step=0), OPERATIONS)
        ours = momatch_operation(name, images, operation, magnitude)
        theirs = kornia_operation(name, x, magnitude[:, 0].double() / ONE)
        taken = medians({"ours": ours, "theirs": theirs}, repeats=50)
        apart = ((theirs() * 255).round().clamp(0, 255).int() - ours().int()).abs()
        rows.append(
            {
                "operation": name,
                "range": f"{RANGES[name]}",
                "kornia us/image": round(taken["theirs"] / count * 1e6, 1),
                "momatch us/image": round(taken["ours"] / count * 1e6, 1),
                "ratio": round(taken["theirs"] / taken["ours"], 1),
                "most levels apart": int(apart.max()),
                "pixels apart, %": round(100 * float((apart > 0).float().mean()), 1),
            }
        )
    batch = photographs(448)
    strong = StrongAugment()
    sequence = AugmentationSequential(
        RandomCrop((SIZE, SIZE), padding=SIZE // 8, padding_mode="reflect"),
        RandomHorizontalFlip(),
        RandAugment(n=3, m=10),
        RandomErasing(p=1.0),
        data_keys=["input"],
    )
    floating = batch.float() / 255
    taken = medians({"ours": lambda: strong(batch, seed=0, step=0), "theirs": lambda: sequence(floating)}, repeats=10)
    rows.append(
        {
            "operation": "whole strong view, batch 448",
            "range": "kornia draws one set of operations a batch",
            "kornia us/image": round(taken["theirs"] / len(batch) * 1e6, 1),
            "momatch us/image": round(taken["ours"] / len(batch) * 1e6, 1),
            "ratio": round(taken["theirs"] / taken["ours"], 1),
        }
    )
    write_result(
        "augment_kornia", rows, f"kornia {kornia.__version__}; 32 images of 32 x 32 a call, medians.", seeds=[0]
    )


if __name__ == "__main__":
    main()
