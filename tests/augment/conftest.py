"""Real photographs that need no download, cut into small images."""

import pytest
import torch
from sklearn.datasets import load_sample_images


@pytest.fixture(scope="session")
def photos():
    """uint8 (n, 3, 32, 32): patches of scikit-learn's two photographs at a third of their size."""
    patches = []
    for photo in load_sample_images().images:
        small = torch.from_numpy(photo.copy())[::3, ::3].permute(2, 0, 1)  # (3, 143, 214)
        tiles = small.unfold(1, 32, 24).unfold(2, 32, 24)  # (3, rows, columns, 32, 32)
        patches.append(tiles.flatten(1, 2).transpose(0, 1))
    return torch.cat(patches).contiguous()
