import hashlib

import numpy as np
import torch

from momatch.data.load import load_dataset


def test_split_is_fixed_and_stratified():
    dataset = load_dataset("digits")
    assert dataset.test is not None
    assert (len(dataset.train), len(dataset.test)) == (1297, 500)
    assert dataset.train.images.shape == (1297, 1, 8, 8)
    share = dataset.test.labels.bincount() / torch.cat([dataset.train.labels, dataset.test.labels]).bincount()
    assert (share - 500 / 1797).abs().max() < 0.01
    # The very images: no library version may change them.
    digest = hashlib.sha256(np.ascontiguousarray(dataset.test.images.numpy()).tobytes()).hexdigest()
    assert digest == "32c6364b42b3bd91daa7e9342fa0de2093eb1da4c13cf8cad8ac50e3ff2151ca"


def test_pixels_use_the_whole_range():
    images = load_dataset("digits").train.images
    assert (int(images.min()), int(images.max())) == (0, 255)
    assert len(images.unique()) == 17
