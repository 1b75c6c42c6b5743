"""Images/s of `momatch embed`, from decoded images to rows on disk, against the bare network's forward, and its memory.

    python benchmarks/embed.py                  about ten minutes on two idle cores
    python benchmarks/embed.py --onnx FILE      the ONNX graph FILE as well, against ONNX Runtime itself

- throughput: `momatch.embedding.embed` on an .npz of images, with views, statistics of the stages and writing, counted in
  passes through the network (four views of each image); and the network alone over as many decoded and normalised images, in
  batches of 16, all threads on one batch and a batch a thread. In turns; the ratios are medians over the rounds.
- memory: peak of a fresh process that embeds 1,000, 10,000 and 50,000 images of 32 x 32 pixels (cnn-tiny).
"""

# ruff: noqa: E402 - the allocator is set up before numpy and torch start threads, as in the commands
from momatch.training.allocator import keep_large_blocks

keep_large_blocks()

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from _record import write_result
from momatch.embedding import EmbedOptions, embed
from momatch.inference.predict.pipeline import default_workers, in_order
from momatch.models.backbones import build_backbone
from predict import bare_network, photographs

TARGET = 0.9
SIZE = 224
BATCH = 16
_MEMORY = """
import json, sys
from momatch.cli.main import main
assert main(["embed", *sys.argv[1:], "--backbone", "cnn-tiny", "--no-progress"]) == 0
with open("/proc/self/status") as file:
    print(json.dumps(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024))
"""


def write_images(path, pixels):
    """An .npz of images in two classes."""
    np.savez(path, images=pixels, labels=np.arange(len(pixels)) % 2)
    return path


def throughput(backbone, data, images, rounds, scratch):
    network = build_backbone(backbone, image_size=SIZE).eval().to(memory_format=torch.channels_last)
    forward = bare_network(backbone, network)
    passes = 4 * images
    x = torch.rand(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    batches = [x] * (passes // BATCH)

    def one_batch():
        for batch in batches:
            forward(batch)

    def batch_a_thread():
        for _ in in_order(forward, batches, default_workers()):
            pass

    rates = {"embed": [], "one batch": [], "batch a thread": []}
    for round_ in range(rounds + 1):  # the first warms up
        options = EmbedOptions(
            dataset=str(data),
            out=scratch / "out.npz",
            backbone=backbone,
            image_size=SIZE,
            overwrite=True,
            progress=False,
        )
        found = embed(options)
        if round_:
            rates["embed"].append(found.passed / found.seconds)
        for name, call in (("one batch", one_batch), ("batch a thread", batch_a_thread)):
            start = time.perf_counter()
            call()
            if round_:
                rates[name].append(passes / (time.perf_counter() - start))

    def ratio(name):
        return round(statistics.median(a / b for a, b in zip(rates["embed"], rates[name], strict=True)), 2)

    middle = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    return {
        "embed (passes/s)": middle["embed"],
        "network, all threads on a batch (passes/s)": middle["one batch"],
        "network, a batch a thread (passes/s)": middle["batch a thread"],
        "ratio": ratio("one batch"),
        "ratio to a batch a thread": ratio("batch a thread"),
    }


def memory(scratch, counts):
    """Peak megabytes of a fresh process, by the number of images."""
    rows = []
    for count in counts:
        pixels = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        data = write_images(scratch / f"{count}.npz", pixels)
        words = [str(data), "--out", str(scratch / f"features{count}.npz")]
        done = subprocess.run([sys.executable, "-c", _MEMORY, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        rows.append({"what": f"{count:,} images", "peak memory (MB)": round(json.loads(done.stdout.splitlines()[-1]))})
        print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--onnx", help="an ONNX graph to measure as well")
    parser.add_argument("--onnx-images", type=int, default=64, help="images for it, if it is slow")
    parser.add_argument("--most", type=int, default=50_000, help="largest number of images whose memory is measured")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="momatch-benchmark-") as name:
        scratch = Path(name)
        pixels = np.stack([picture.transpose(2, 0, 1) for picture in photographs(arguments.images, SIZE)])
        graph = {f"onnx:{arguments.onnx}": arguments.onnx_images} if arguments.onnx else {}
        for backbone, images in {"efficientnet-lite0": arguments.images, **graph}.items():
            shown = f"onnx:{Path(arguments.onnx).name}" if backbone.startswith("onnx:") else backbone
            data = write_images(scratch / f"{images}.npz", pixels[:images])
            found = throughput(backbone, data, images, arguments.rounds, scratch)
            rows.append({"what": f"{shown} at {SIZE} x {SIZE}, {images} images", **found})
            print(rows[-1], flush=True)
        least = {key: min(row[key] for row in rows) for key in rows[0] if key.startswith("ratio")}
        rows += memory(scratch, [count for count in (1000, 10_000, 50_000) if count <= arguments.most])
    notes = (
        f"Images in four views, {torch.get_num_threads()} threads, medians of {arguments.rounds} rounds in "
        "turns; the ratio is taken within each round. Memory: the peak of a fresh process, torch and mapped images included."
    )
    write_result("embed", rows, notes, target=f"ratio of at least {TARGET}; least of the rows: {least}", seeds=[0])


if __name__ == "__main__":
    main()
