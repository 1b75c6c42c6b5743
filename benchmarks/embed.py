"""Images/s of `momatch embed`, from decoded images to rows on disk, against the bare network's forward; or its memory.

    python benchmarks/embed.py                  efficientnet-lite0: about four minutes on two idle cores
    python benchmarks/embed.py --backbone onnx:FILE --images 128 --rounds 1 --name embed-onnx
                                                an ONNX graph, against ONNX Runtime itself: about three minutes
    python benchmarks/embed.py --memory         memory instead: about four minutes

- throughput: `momatch.embedding.embed` on an .npz of images, with views, statistics of the stages and writing, counted in
  passes through the network (four views of each image); and the network alone over as many decoded and normalised images, in
  batches of 16, all threads on one batch and a batch a thread. In turns; the ratios are medians over the rounds. Neither
  counts the start. The number of images should be a multiple of 16 times the threads, so that no thread waits for the last.
- memory: peak of a fresh process that embeds 1,000, 10,000 and 50,000 images of 32 x 32 pixels in two views (cnn-tiny), from a
  folder of files and from an .npz. Its own memory, and pages of files that are mapped, which the system may drop at any time.
"""

# ruff: noqa: E402 - the allocator is set up before numpy and torch start threads, as in the commands
from momatch.training.allocator import keep_large_blocks

keep_large_blocks()

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from _record import write_result
from momatch.embedding import EmbedOptions, embed
from momatch.inference.predict.pipeline import default_workers, in_order
from momatch.models.backbones import build_backbone
from predict import bare_network, photographs, without_folder

TARGET = 0.9
SIZE = 224
BATCH = 16
_MEMORY = """
import json, sys, threading, time
from pathlib import Path

peak, is_done = {"RssAnon": 0, "RssFile": 0}, threading.Event()

def watch():
    while not is_done.wait(0.02):
        for line in Path("/proc/self/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in peak:
                peak[key] = max(peak[key], int(value.split()[0]))

watching = threading.Thread(target=watch)
watching.start()
try:
    from momatch.cli.main import main

    views = ["--weak-views", "0", "--strong-views", "1"]
    code = main(["embed", *sys.argv[1:], "--backbone", "cnn-tiny", "--untrained", *views, "--no-progress"])
finally:
    is_done.set()
    watching.join()
assert code == 0
print(json.dumps(peak))
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
    options = EmbedOptions(
        dataset=str(data), out=scratch / "out.npz", backbone=backbone, image_size=SIZE, overwrite=True, progress=False
    )

    def embedding():
        return embed(options).seconds

    def one_batch():
        for batch in batches:
            forward(batch)

    def batch_a_thread():
        for _ in in_order(forward, batches, default_workers()):
            pass

    calls = {"embed": embedding, "one batch": one_batch, "batch a thread": batch_a_thread}
    rates, cpu = {name: [] for name in calls}, {name: [] for name in calls}
    forward(x)
    for _ in range(rounds):
        for name, call in calls.items():
            start, used = time.perf_counter(), time.process_time()
            # The embedding says itself how long its passes took.
            seconds = call() or time.perf_counter() - start
            rates[name].append(passes / seconds)
            cpu[name].append(time.process_time() - used)

    def ratio(values, name):
        return round(statistics.median(a / b for a, b in zip(values["embed"], values[name], strict=True)), 2)

    middle = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    return {
        "embed (passes/s)": middle["embed"],
        "network, all threads on a batch (passes/s)": middle["one batch"],
        "network, a batch a thread (passes/s)": middle["batch a thread"],
        "ratio": ratio(rates, "one batch"),
        "ratio to a batch a thread": ratio(rates, "batch a thread"),
        "CPU time by that of a batch a thread": ratio(cpu, "batch a thread"),
    }


def record_throughput(arguments, scratch):
    pixels = np.stack([picture.transpose(2, 0, 1) for picture in photographs(arguments.images, SIZE)])
    data = write_images(scratch / "images.npz", pixels)
    found = throughput(arguments.backbone, data, arguments.images, arguments.rounds, scratch)
    what = f"{without_folder(arguments.backbone)} at {SIZE} x {SIZE}, {arguments.images} images"
    notes = (
        f"Images in four views, {torch.get_num_threads()} threads, medians of {arguments.rounds} rounds in turns; the ratio is "
        "taken within each round. CPU time is of the whole command, its start included."
    )
    write_result(arguments.name, [{"what": what, **found}], notes, target=f"ratio of at least {TARGET}", seeds=[0])


def write_files(folder, pixels):
    """A folder of PNG files in two classes."""
    for name in "ab":
        (folder / name).mkdir(parents=True)
    for i, image in enumerate(pixels):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / "ab"[i % 2] / f"{i:06}.png", compress_level=1)
    return folder


def record_memory(arguments, scratch):
    rows = []
    for count in (count for count in (1000, 10_000, 50_000) if count <= arguments.most):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        row = {"images": f"{count:,}"}
        for kind, write, name in (("folder", write_files, f"{count}"), (".npz", write_images, f"{count}.npz")):
            words = [str(write(scratch / name, pixels)), "--out", str(scratch / "features.npz"), "--overwrite"]
            done = subprocess.run(
                [sys.executable, "-c", _MEMORY, *words],
                env={**os.environ, "MOMATCH_CACHE": str(scratch / "cache")},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            peak = json.loads(done.stdout.splitlines()[-1])
            row[f"{kind}: own memory (MB)"] = round(peak["RssAnon"] / 1024)
            row[f"{kind}: mapped files (MB)"] = round(peak["RssFile"] / 1024)
        rows.append(row)
        print(row, flush=True)
    notes = (
        "Peak of a fresh process that embeds images of 32 x 32 pixels in two views (cnn-tiny), sampled every 20 ms; torch "
        "alone has about 250 MB. The images of an .npz of at most 1 GiB are in memory, once. Pages of mapped files (libraries, "
        "decoded images, finished rows) are dropped by the system when memory is short."
    )
    write_result(arguments.name, rows, notes, seeds=[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    parser.add_argument("--most", type=int, default=50_000, help="largest number of images whose memory is measured")
    parser.add_argument("--name", help="of the record; default: embed, or embed-memory")
    arguments = parser.parse_args()
    arguments.name = arguments.name or ("embed-memory" if arguments.memory else "embed")
    with tempfile.TemporaryDirectory(prefix="momatch-benchmark-") as name:
        (record_memory if arguments.memory else record_throughput)(arguments, Path(name))


if __name__ == "__main__":
    main()
