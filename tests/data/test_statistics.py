"""Channel statistics against float64 over everything at once."""

import pytest
import torch

from momatch.data import rows
from momatch.data.rows import PixelRows
from momatch.data.statistics import channel_statistics, normalization


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("chunk_bytes", [1, 500, 2**24])
def test_agrees_with_float64_whatever_the_chunks(channels, chunk_bytes, monkeypatch):
    monkeypatch.setattr(rows, "CHUNK_BYTES", chunk_bytes)
    images = torch.randint(0, 256, (40, channels, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    chosen = torch.arange(0, 40, 3)
    mean, deviation = channel_statistics(PixelRows([images], chosen))
    exact = images[chosen].double() / 255
    assert mean == pytest.approx(exact.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert deviation == pytest.approx(exact.std((0, 2, 3), correction=0).tolist(), abs=1e-12)


def test_a_constant_channel_can_be_divided_by():
    images = torch.zeros(2, 3, 2, 2, dtype=torch.uint8)
    images[:, 1], images[:, 2, 0] = 255, 255
    assert channel_statistics(PixelRows([images])) == ((0.0, 1.0, 0.5), (1.0, 1.0, 0.5))


def test_no_images_are_refused():
    with pytest.raises(ValueError, match="images: got none"):
        channel_statistics(PixelRows([torch.zeros(0, 3, 2, 2, dtype=torch.uint8)]))


def test_the_protocol_states_some_and_others_are_computed():
    pool = PixelRows([torch.full((2, 3, 2, 2), 51, dtype=torch.uint8)])
    assert normalization("cifar10", pool)[0] == (125.3 / 255, 123.0 / 255, 113.9 / 255)
    assert normalization("stl10", pool)[1] == (68.4 / 255, 66.6 / 255, 68.5 / 255)
    assert normalization("mine", pool)[0] == (0.2, 0.2, 0.2)
    gray = PixelRows([torch.full((2, 1, 2, 2), 51, dtype=torch.uint8)])
    assert normalization("cifar10", gray)[0] == (0.2,)
