"""Normalisation against its formula, for both kinds of images."""

import pytest
import torch

from momatch.models.normalize import Normalize

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.1)


def test_bytes_and_floats_agree_with_the_formula():
    torch.manual_seed(0)
    images = torch.randint(256, (4, 3, 5, 6), dtype=torch.uint8)
    normalize = Normalize(MEAN, STD)
    mean, std = torch.tensor(MEAN).double()[:, None, None], torch.tensor(STD).double()[:, None, None]
    expected = ((images.double() / 255 - mean) / std).float()
    torch.testing.assert_close(normalize(images), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normalize(images / 255), expected, rtol=1e-5, atol=1e-5)


def test_keeps_memory_format_and_follows_dtype():
    normalize = Normalize(MEAN, STD)
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    assert normalize(images).is_contiguous(memory_format=torch.channels_last)
    assert normalize.to(torch.bfloat16)(images).dtype == torch.bfloat16
    assert set(normalize.state_dict()) == {"mean", "std"}
    assert repr(normalize) == "Normalize(channels=3)"


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), (0.5, 0.5), "got 1 means and 2 stds"),
        ((), (), "got 0 means"),
        ((0.5,), (0.0,), "positive std"),
        ((float("nan"),), (0.5,), "finite values"),
        ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7), "divide them by 255"),
    ],
)
def test_bad_statistics_are_refused(mean, std, message):
    with pytest.raises(ValueError, match=message):
        Normalize(mean, std)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 4, 4), r"got shape \(2, 1, 4, 4\), expected \(n, 3, H, W\)"),
        (torch.zeros(3, 4, 4), r"got shape \(3, 4, 4\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.int64), "got dtype torch.int64, expected uint8"),
    ],
)
def test_bad_images_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        Normalize(MEAN, STD)(images)
