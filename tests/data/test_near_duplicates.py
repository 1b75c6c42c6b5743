import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from momatch.data.near_duplicates import find_near_duplicates


def pictures(count, seed, side=96):
    """Made pictures with a layout and detail: smooth colour blobs, sharp-edged boxes and texture."""
    generator = torch.Generator().manual_seed(seed)
    smooth = F.interpolate(torch.rand(count, 3, 5, 5, generator=generator), (side, side), mode="bicubic")
    middle = F.interpolate(torch.rand(count, 3, 24, 24, generator=generator), (side, side), mode="bilinear")
    return (255 * (0.6 * smooth + 0.4 * middle).clamp(0, 1)).to(torch.uint8)


def by_pillow(images, change):
    changed = [np.asarray(change(Image.fromarray(image.numpy().transpose(1, 2, 0)))) for image in images]
    return torch.from_numpy(np.stack(changed).transpose(0, 3, 1, 2).copy())


def jpeg(image):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=40)
    return Image.open(file).convert("RGB")


CHANGES = {
    "same": lambda x: x,
    "jpeg": lambda x: by_pillow(x, jpeg),
    "brighter": lambda x: (x.int() + 30).clamp(0, 255).to(torch.uint8),
    "less contrast": lambda x: (x.float() * 0.7 + 30).to(torch.uint8),
    "noise": lambda x: (x + 8 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 255).byte(),
    "shifted": lambda x: torch.roll(x, (2, -2), (2, 3)),
    "mirrored": lambda x: x.flip(-1),
    "resized": lambda x: by_pillow(x, lambda image: image.resize((64, 64)).resize((96, 96))),
    "cropped": lambda x: by_pillow(x, lambda image: image.crop((2, 2, 94, 94)).resize((96, 96))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_made_near_duplicates_are_found(change):
    references = pictures(60, seed=1)
    images = torch.cat([pictures(40, seed=2), CHANGES[change](references[:30])])
    is_duplicate, match = find_near_duplicates(images, references)
    assert not is_duplicate[:40].any()
    assert is_duplicate[40:].float().mean() >= 0.95
    found = is_duplicate[40:]
    assert torch.equal(match[40:][found], torch.arange(30)[found])


def test_the_same_layout_with_other_detail_is_no_duplicate():
    references = pictures(30, seed=1)
    blurred = F.interpolate(F.adaptive_avg_pool2d(references.float(), 8), (96, 96), mode="bilinear")
    detail = pictures(30, seed=5).float()
    other = (blurred + 0.5 * (detail - F.avg_pool2d(detail, 25, 1, 12))).clamp(0, 255).to(torch.uint8)
    is_duplicate, _ = find_near_duplicates(other, references)
    assert is_duplicate.sum() <= 1


def test_flat_images_match_nothing_by_chance():
    flat = torch.full((3, 3, 96, 96), 128, dtype=torch.uint8)
    is_duplicate, match = find_near_duplicates(flat, torch.cat([flat, pictures(5, seed=1)]))
    assert not is_duplicate.any()
    assert match.tolist() == [-1, -1, -1]
