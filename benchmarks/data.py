"""How fast data gets from disk to a batch, and what it holds in memory.

    python benchmarks/data.py                     CIFAR-10 from $MOMATCH_DATA; random images stand in where it is not there
    python benchmarks/data.py --scan 300000       also: scan a folder of that many (empty) files

- cold: a fresh process from its start to the first CIFAR-10 batch (64 labelled + 448 unlabelled), and what it holds.
- batches: images/s of the whole batch path (drawing, gathering, copying), 64 + 448.
- jpegs: 20,000 JPEGs made in a temporary folder, decoded into the cache by parallel processes against one process with a plain
  Pillow loop into an array, in the same run; then the second start, from the cache.
- scan: a folder of many files listed and fingerprinted, with the peak memory of the process that does it.
"""

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
from PIL import Image

from _record import write_result
from momatch.data.locate import data_root, find

#: A process's own peak: getrusage would hand down that of the parent it was forked from.
_PEAK = """
def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1024
"""

_CODE = {
    "cold": """
import json, time
import torch
imported = time.perf_counter()
from momatch.data.load import load_with_report
from momatch.data.report import LoadOptions
from momatch.data.batches import BatchStream
from momatch.data.rows import PixelRows
dataset, _ = load_with_report("cifar10", {data_dir!r}, LoadOptions(download=False))
loaded = time.perf_counter()
train = dataset.train
labeled = torch.cat([(train.labels == k).nonzero().flatten()[:4] for k in range(10)])
stream = BatchStream(
    PixelRows([train.images], labeled), train.labels[labeled], PixelRows([train.images]),
    labeled_batch_size=64, unlabeled_batch_size=448, seed=0,
)
first = next(stream)
done = time.time()
load_seconds = loaded - imported
rates = []
for _ in range(5):
    start = time.perf_counter()
    for _ in range(100):
        next(stream)
    rates.append(100 * 512 / (time.perf_counter() - start))
from momatch import Normalize, StrongAugment, WeakAugment
weak, strong, normalize = WeakAugment(), StrongAugment(), Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
view_rates = []
for _ in range(7):
    start = time.perf_counter()
    for _ in range(3):
        batch = next(stream)
        views = [
            weak(batch.labeled, seed=0, step=batch.step),
            weak(batch.unlabeled, seed=0, step=batch.step, view=1),
            strong(batch.unlabeled, seed=0, step=batch.step, view=2),
        ]
        images = normalize(torch.cat(views))
    view_rates.append(3 * len(images) / (time.perf_counter() - start))
print(json.dumps(dict(
    done=done, load_seconds=load_seconds, rates=rates, view_rates=view_rates[2:],
    images_mb=(train.images.nbytes + dataset.test.images.nbytes) / 1e6, peak_mb=status("VmHWM"),
)))
""",
    "scan": """
import json, time
from pathlib import Path
from momatch.data.sources.folder import scan_folder
from momatch.data.report import LoadOptions
before = status("VmRSS")
start = time.perf_counter()
files = scan_folder(Path({root!r}), LoadOptions())
seconds = time.perf_counter() - start
print(json.dumps(dict(
    files=len(files.paths), seconds=seconds, before_mb=before,
    peak_mb=status("VmHWM"),
)))
""",
}


def run(code: str) -> dict:
    """Run `code` in a fresh process; what it prints, with the seconds since its start."""
    started = time.time()
    done = subprocess.run([sys.executable, "-c", _PEAK + code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads(done.stdout)
    if "done" in result:
        result["seconds"] = result["done"] - started
    return result


def stand_in(folder: Path) -> Path:
    """CIFAR-10's files with random content."""
    rng = np.random.default_rng(0)
    home = folder / "cifar-10-batches-bin"
    home.mkdir()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        records = rng.integers(0, 256, (10_000, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(10_000) % 10
        records.tofile(home / name)
    return folder


def cold(data_dir: Path) -> list[dict]:
    results = [run(_CODE["cold"].format(data_dir=str(data_dir))) for _ in range(3)]
    middle = sorted(results, key=lambda result: result["seconds"])[1]
    return [
        {
            "what": "cold start to first CIFAR-10 batch, imports included",
            "value": round(middle["seconds"], 2),
            "unit": "s",
        },
        {"what": "... of which loading 60,000 images", "value": round(middle["load_seconds"], 2), "unit": "s"},
        {
            "what": "batch path, 64 + 448 uint8 images",
            "value": round(statistics.median(middle["rates"])),
            "unit": "images/s",
        },
        {
            "what": "whole path: batch, 64 + 448 weak and 448 strong views, normalised float32",
            "value": round(statistics.median(middle["view_rates"])),
            "unit": "images/s",
        },
        {"what": "images held", "value": round(middle["images_mb"], 1), "unit": "MB"},
        {
            "what": "peak resident memory of the process, torch included",
            "value": round(middle["peak_mb"]),
            "unit": "MB",
        },
    ]


def make_jpegs(root: Path, count: int, side: int) -> None:
    """`count` JPEGs of smooth random pictures in ten classes; 200 different ones, each written many times."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (200, 12, 12, 3), dtype=np.uint8)
    pictures = [Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC) for pixels in coarse]
    for k in range(10):
        (root / f"class{k}").mkdir(parents=True)
    for i in range(count):
        pictures[i % 200].save(root / f"class{i % 10}" / f"{i:06}.jpg", quality=90)


def pillow_loop(paths: list[Path], side: int) -> float:
    """Images/s of one process that decodes with Pillow, resizes, and fills an array."""
    out = np.empty((len(paths), 3, side, side), np.uint8)
    start = time.perf_counter()
    for i, path in enumerate(paths):
        with Image.open(path) as image:
            out[i] = np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    return len(paths) / (time.perf_counter() - start)


def jpegs(scratch: Path, count: int) -> list[dict]:
    from momatch.data.report import LoadOptions
    from momatch.data.sources.folder import load_folder

    side, size = 128, 64
    root = scratch / "jpegs"
    make_jpegs(root, count, side)
    paths = sorted(root.rglob("*.jpg"))
    pillow_loop(paths[:500], size)  # warm-up: the files are in the page cache either way
    rates: dict[str, list[float]] = {"loop": [], "one": [], "all": [], "again": []}
    for repeat in range(3):
        rates["loop"].append(pillow_loop(paths, size))
        for name, workers in (("one", 1), ("all", None)):
            options = LoadOptions(cache_dir=scratch / f"{name}{repeat}", size=size, workers=workers)
            start = time.perf_counter()
            load_folder("jpegs", root, options)
            rates[name].append(count / (time.perf_counter() - start))
        start = time.perf_counter()
        load_folder("jpegs", root, options)
        rates["again"].append(time.perf_counter() - start)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    what = f"{count:,} JPEGs of {side}x{side} to {size}x{size}"
    return [
        {"what": f"{what}: plain Pillow loop, one process", "value": round(middle["loop"]), "unit": "images/s"},
        {"what": f"{what}: load_dataset, workers=1", "value": round(middle["one"]), "unit": "images/s"},
        {"what": f"{what}: load_dataset, {os.cpu_count()} workers", "value": round(middle["all"]), "unit": "images/s"},
        {"what": "... times the plain loop", "value": round(middle["all"] / middle["loop"], 2), "unit": "x"},
        {"what": "... second start, from the cache", "value": round(middle["again"], 2), "unit": "s"},
    ]


def scan(scratch: Path, count: int) -> list[dict]:
    root = scratch / "scan"
    for k in range(10):
        (root / f"class{k}").mkdir(parents=True)
    for i in range(count):
        (root / f"class{i % 10}" / f"picture_{i:08}.jpg").touch()
    result = run(_CODE["scan"].format(root=str(root)))
    extra = result["peak_mb"] - result["before_mb"]
    return [
        {"what": f"scan and fingerprint {result['files']:,} files", "value": round(result["seconds"], 2), "unit": "s"},
        {"what": "... peak resident memory, imports included", "value": round(result["peak_mb"]), "unit": "MB"},
        {"what": "... of which the scan", "value": round(extra, 1), "unit": "MB"},
        {"what": "... a file", "value": round(extra * 2**20 / result["files"]), "unit": "bytes"},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jpegs", type=int, default=20_000, help="how many JPEGs")
    parser.add_argument("--scan", type=int, default=0, help="also scan a folder of this many files, e.g. 300000")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="momatch-benchmark-") as folder:
        scratch = Path(folder)
        is_real = find("cifar10", data_root()) is not None
        rows = cold(data_root() if is_real else stand_in(scratch))
        rows += jpegs(scratch, arguments.jpegs)
        if arguments.scan:
            rows += scan(scratch, arguments.scan)
    images = "real CIFAR-10" if is_real else "random images in CIFAR-10's layout"
    write_result("data", rows, f"Medians of three runs; {images}; files in the page cache.")


if __name__ == "__main__":
    main()
