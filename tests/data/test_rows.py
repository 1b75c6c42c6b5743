"""Rows of image tensors against plain indexing of the concatenated tensor."""

import resource
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momatch.data.dataset import Examples, Split
from momatch.data.rows import CHUNK_BYTES, PixelRows


def numbered(n, *, first=0, shape=(1, 2, 2)):
    """n images, each filled with its own number."""
    return torch.arange(first, first + n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, *shape).contiguous()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_gather_select_and_append_agree_with_plain_indexing(sizes, data):
    sources = [torch.randint(0, 256, (n, 3, 2, 2), dtype=torch.uint8) for n in sizes]
    everything = torch.cat(sources)
    index = st.lists(st.integers(0, max(0, sum(sizes) - 1)), max_size=0 if sum(sizes) == 0 else 8)
    rows = torch.tensor(data.draw(index), dtype=torch.int64)
    images = PixelRows(sources, rows)
    everywhere = torch.arange(len(rows))
    assert torch.equal(images.gather(everywhere), everything[rows])
    assert torch.equal(images.gather(everywhere.flip(0)), everything[rows.flip(0)])
    assert torch.equal(images.select(everywhere[::2]).gather(everywhere[::2] // 2), everything[rows[::2]])
    both = images.append(PixelRows(sources))
    expected = torch.cat([everything[rows], everything])
    assert torch.equal(both.gather(torch.arange(len(both))), expected)
    assert torch.equal(both.to_device(torch.device("cpu")), expected)


def test_gather_fills_a_given_buffer():
    images = PixelRows([numbered(3), numbered(3, first=3)])
    out = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    assert images.gather(torch.tensor([4, 1]), out=out).data_ptr() == out.data_ptr()
    assert out[:, 0, 0, 0].tolist() == [4, 1]


def test_chunks_are_bounded_and_complete():
    images = PixelRows([torch.zeros(5, 1, 2048, 4096, dtype=torch.uint8)])
    assert [len(chunk) for chunk in images.chunks()] == [2, 2, 1]
    assert images.nbytes == 5 * CHUNK_BYTES // 2
    assert [len(chunk) for chunk in PixelRows([numbered(7)]).chunks(3)] == [3, 3, 1]
    assert list(PixelRows([numbered(0)]).chunks()) == []


def test_nothing_is_read_from_disk_but_the_rows_asked_for(tmp_path):
    n = 600_000  # 1.8 GB, as a file of holes
    mapped = np.memmap(tmp_path / "images", dtype=np.uint8, mode="w+", shape=(n, 3, 32, 32))
    mapped[n - 1], mapped[n // 2] = 9, 7
    before = _peak_bytes()
    images = PixelRows([torch.from_numpy(mapped)])
    found = images.select(torch.tensor([n - 1, 0, n // 2])).gather(torch.tensor([0, 1, 2]))
    assert found[:, 0, 0, 0].tolist() == [9, 0, 7]
    assert _peak_bytes() - before < 100e6


def _peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def test_meta_reads_nothing():
    images = PixelRows([numbered(3)]).to_device(torch.device("meta"))
    assert images.shape == (3, 1, 2, 2)
    assert images.is_meta


def test_bad_rows_are_refused():
    with pytest.raises(ValueError, match="index: got -1 to 3, expected row numbers from 0 to 2"):
        PixelRows([numbered(3)], torch.tensor([3, -1]))
    with pytest.raises(
        ValueError,
        match=r"got torch.uint8 rows of shape \(3, 2, 2\), expected torch.uint8 of \(1, 2, 2\) as in the first",
    ):
        PixelRows([numbered(3), numbered(2, shape=(3, 2, 2))])
    with pytest.raises(ValueError, match=r"got torch.float32 \(3, 1, 2, 2\) on cpu, expected raw pixels, torch.uint8"):
        PixelRows([numbered(3).float()])
    with pytest.raises(ValueError, match="on meta, expected"):
        PixelRows([numbered(3).to("meta")])
    with pytest.raises(ValueError, match="sources: got none"):
        PixelRows([])


def test_examples_keep_labels_with_images():
    examples = Examples.of(Split(numbered(4), torch.tensor([0, 1, -1, 1])))
    chosen = examples.select(torch.tensor([3, 2]))
    assert chosen.labels.tolist() == [1, -1]
    assert chosen.images.gather(torch.tensor([0, 1]))[:, 0, 0, 0].tolist() == [3, 2]
    with pytest.raises(ValueError, match="labels: got 3, expected 4, one per row"):
        Examples(examples.images, torch.zeros(3, dtype=torch.int64))
