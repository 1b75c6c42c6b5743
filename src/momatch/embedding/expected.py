"""How long an embedding will take, measured on a few images before it starts."""

import sys
import time
from collections.abc import Mapping

import torch

from momatch.console.wording import format_duration
from momatch.data.rows import Rows
from momatch.embedding.network import Network

#: Images that are timed.
_TIMED = 8
#: Shorter embeddings are not announced.
_WORTH_SAYING = 10.0
_STRIDE = 32


def fast_size(side: int) -> int:
    """About half of the side that a network was trained at: the next multiple of 32, which fits its strides."""
    return max(_STRIDE, -(-side // (2 * _STRIDE)) * _STRIDE)


def say_expected_time(network: Network, images: Rows, rows: Mapping[str, int], *, fast: bool) -> None:
    """Print on standard error how long the embedding will take, if it takes more than a few seconds.

    Args:
        network: of the embedding.
        images: its training images.
        rows: split -> images that remain.
        fast: the user chose the size already, so a smaller one is not offered.
    """
    few = torch.arange(min(_TIMED, len(images)))
    pixels = images.gather(few)
    network.plain(pixels)  # the first pass is slower
    begin = time.perf_counter()
    network.plain(pixels)
    plain = (time.perf_counter() - begin) / len(few)
    begin = time.perf_counter()
    network.views(pixels, few)
    views = (time.perf_counter() - begin) / len(few)
    seconds = rows.get("train", 0) * views + rows.get("test", 0) * plain
    if seconds < _WORTH_SAYING:
        return
    height, width = images.shape[1:]
    smaller = fast_size(max(height, width))
    less = format_duration(seconds * (smaller / max(height, width)) ** 2)
    # Only a try would show whether the network takes them: most transformers do not.
    offer = (
        "" if fast else f"; --fast embeds them at {smaller} x {smaller} in about {less}, if the network takes that size"
    )
    print(
        f"embed: {sum(rows.values()):,} images at {width} x {height} pixels, about {format_duration(seconds)}{offer}",
        file=sys.stderr,
        flush=True,
    )
