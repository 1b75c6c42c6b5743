"""Normalisation against its formula, and the statistics it takes from a pool."""

import pytest
import torch

from momatch.augment import Normalize, channel_statistics


def images(n=50, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, 7, 5), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("channels_last", [False, True])
def test_equals_its_formula(channels_last):
    x, mean, std = images(), (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    normalize = Normalize(mean, std, channels_last=channels_last)
    expected = (x.double() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    for given in (x, x.float() / 255):
        got = normalize(given)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
        assert got.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_statistics_make_mean_zero_and_deviation_one():
    x = images() // 2
    mean, std = channel_statistics(x, chunk=7)
    normalized = Normalize(mean, std)(x)
    torch.testing.assert_close(normalized.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalized.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert channel_statistics(x, chunk=1000) == (mean, std)


def test_runs_on_meta_and_follows_the_module():
    normalize = Normalize([0.5], [0.2]).to("meta")
    assert normalize(torch.empty(2, 1, 4, 4, dtype=torch.uint8, device="meta")).is_meta
    assert Normalize([0.5], [0.2]).half()(images(channels=1)).dtype == torch.float16


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="expected one mean and one std > 0 a channel"):
        Normalize([0.5], [0.0])
    with pytest.raises(ValueError, match=r"images: got shape \(50, 3, 7, 5\), expected \(n, 1, H, W\)"):
        Normalize([0.5], [0.2])(images())
    with pytest.raises(ValueError, match=r"images: got dtype torch.int64"):
        Normalize([0.5], [0.2])(images(channels=1).long())
    with pytest.raises(ValueError, match="got one level, 9, in all pixels"):
        channel_statistics(torch.full((2, 1, 4, 4), 9, dtype=torch.uint8))
    with pytest.raises(ValueError, match="expected at least one pixel"):
        channel_statistics(images()[:0])
