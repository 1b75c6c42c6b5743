"""Images/s of the networks on the CPU, forward and backward, the two memory formats in turn.

    python benchmarks/networks.py

Takes a minute or two on two idle cores. The batch of 120 images is one small semi-supervised step: 8 labelled images and 56
weak and 56 strong views.
"""

from functools import partial

import torch

from _record import medians, write_result
from momatch.models.backbones import build_backbone

THREADS = 2
STEPS, WARM_UP = 7, 2
#: name, images, channels, side
CASES = (
    ("wrn-28-2", 120, 3, 32),
    ("wrn-10-1", 120, 3, 32),
    ("cnn-small", 120, 1, 28),
    ("cnn-small", 120, 1, 8),
    ("wrn-37-2", 8, 3, 96),
)


def step(network, images):
    network(images).square().mean().backward()
    network.zero_grad(set_to_none=True)


def measure(name, n, channels, side):
    torch.manual_seed(0)
    images = torch.randn(n, channels, side, side)
    runs = {}
    for label, memory_format in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
        network = build_backbone(name, channels).to(memory_format=memory_format)
        runs[label] = partial(step, network, images.contiguous(memory_format=memory_format))
    seconds = medians(runs, repeats=STEPS, warmup=WARM_UP)
    return {
        "network": name,
        "images": f"{n} x {channels} x {side} x {side}",
        **{f"{label} (images/s)": round(n / median, 1) for label, median in seconds.items()},
        "channels_last is faster by": round(seconds["contiguous"] / seconds["channels_last"], 2),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
    }


def main():
    torch.set_num_threads(THREADS)
    write_result(
        "networks",
        [measure(*case) for case in CASES],
        f"Forward and backward in training mode, float32, {THREADS} threads, median of at most {STEPS} steps in turn.",
        seeds=[0],
    )


if __name__ == "__main__":
    main()
