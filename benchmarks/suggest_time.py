"""What `momatch suggest` costs on a features file of many images: seconds, CPU seconds and peak memory of the command.

    python benchmarks/suggest_time.py FEATURES.npz [--images 100000]

FEATURES.npz is a features file of fewer images, whose rows are repeated with noise. 200 images have a label; suggestions are
made without labels and with them. One thread.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from _record import write_result
from momatch.data.content import DIGEST_BYTES
from momatch.data.feature_spec import MARKER, read_feature_spec
from momatch.data.features import WEIGHTS, GatheredRows, open_features, write_archive
from momatch.embedding.existing import Existing

LABELS = 200
BLOCK = 1000


def enlarged(source, count, scratch, *, labels):
    """A features file of `count` images, made from those of another; the first `labels` of them have a label."""
    rng = np.random.default_rng(0)
    spec = read_feature_spec(source)
    dataset, unreadable = open_features("enlarged", source)
    old = Existing(spec, dataset, unreadable)
    kept = {kind: arrays[0] for kind, arrays in old.arrays("train").items()}
    rows = rng.integers(0, len(dataset.train), count)
    some = np.asarray(kept["features"][:BLOCK], np.float32)
    noise = 0.2 * some.std(0) * rng.standard_normal(some.shape)
    path = scratch / "train_features.npy"
    written = np.lib.format.open_memmap(path, "w+", kept["features"].dtype, (count, *kept["features"].shape[1:]))
    for start in range(0, count, BLOCK):
        block = kept["features"][rows[start : start + BLOCK]]
        written[start : start + BLOCK] = block + rng.permutation(noise)[: len(block)]
    written.flush()
    np.save(scratch / "labels.npy", np.where(np.arange(count) < labels, dataset.train.labels.numpy()[rows], -1))
    np.save(scratch / "digests.npy", rng.integers(0, 256, (count, DIGEST_BYTES), dtype=np.uint8))
    members = {MARKER: spec.to_json(), "train_features.npy": path, WEIGHTS: old.weights()}
    members |= {f"train_{kind}.npy": GatheredRows([kept[kind]], rows) for kind in ("stages", "pictures")}
    members |= {f"train_{kind}.npy": scratch / f"{kind}.npy" for kind in ("labels", "digests")}
    found = scratch / f"features{labels}.npz"
    write_archive(found, members)
    return found


def measure(file):
    """Seconds, CPU seconds and peak megabytes of the command."""
    words = [sys.executable, "-m", "momatch", "suggest", str(file), "--n", "20", "--labels", "stored"]
    begin = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"exit code {os.waitstatus_to_exitcode(status)}")
    return {
        "seconds": round(time.perf_counter() - begin, 1),
        "CPU seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak memory (MB), mapped files included": round(usage.ru_maxrss / 1024),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--images", type=int, default=100_000)
    arguments = parser.parse_args()
    rows = []
    for labels in (0, LABELS):
        with tempfile.TemporaryDirectory(prefix="momatch-benchmark-") as name:
            file = enlarged(arguments.features, arguments.images, Path(name), labels=labels)
            size = file.stat().st_size / 1e6
            rows.append({"images": f"{arguments.images:,}", "labels": labels, **measure(file)})
    notes = (
        f"`momatch suggest FILE --n 20` on a features file of {size:,.0f} MB, one thread, the start of Python included."
    )
    write_result("suggest-time", rows, notes, target="under a minute", seeds=[0])


if __name__ == "__main__":
    main()
