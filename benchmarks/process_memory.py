"""How much of the process's peak memory is the constraint's: the cells of the grid `memory`, with freed blocks returned.

    python benchmarks/process_memory.py --data-dir DATA

`momatch train` keeps freed blocks for the next step, which saves up to a third of a step with large batches; where the next
block lands then depends on all that came before, and the peak of the process varies by a tenth between seeds and settings. Here
the C library gives each block of 64 kB or more a mapping of its own and returns it when it is freed, so that the peak is what
is held at once. Everything else is as in the grid: 3 steps of 64 labelled and 448 unlabelled images, one process a run, one
thread. Growth is the mean over the seeds of the difference to order 0. Linux with glibc.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _record import write_result

PRESETS = ("digits", "mnist-cpu")
DIMENSIONS = (8, 32, 128, 512)
ORDERS = (0, 1, 2, 3, 4)
SEEDS = (0, 1)
STEPS = {"steps": 3, "labeled_batch_size": 64, "unlabeled_batch_size": 448, "eval_interval": 0, "refit": False}
#: Blocks from this size on are mapped and returned; setting it keeps glibc from raising it.
MAPPED = 65_536


def measure(preset, data_dir, cell):
    """Train in this process; prints its peak memory in MiB."""
    import momatch.training.fit as training
    from momatch import TrainConfig

    training.keep_large_blocks = lambda: False
    D, order, seed = cell
    options = {"data_dir": data_dir, "head": "aagmm", "embedding_dim": D, "moment_order": order, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        run = training.fit(TrainConfig.preset(preset, run_dir=f"{folder}/run", progress=False, **options, **STEPS))
        print(run.result["peak_memory_mb"])


def peak(preset, data_dir, *cell):
    command = [sys.executable, __file__, "--data-dir", str(data_dir), "--measure", preset, *map(str, cell)]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(MAPPED), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"process_memory: {preset}, {cell}: {done.stderr.strip()[-1000:]}")
    return float(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="with MNIST")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        preset, *cell = args.measure
        measure(preset, str(args.data_dir), tuple(map(int, cell)))
        return
    rows = []
    for preset in PRESETS:
        for D in DIMENSIONS:
            peaks = {order: [peak(preset, args.data_dir, D, order, seed) for seed in SEEDS] for order in ORDERS}
            row = {"preset": preset, "D": D, "order 0 (MiB)": round(statistics.mean(peaks[0]), 1)}
            for order in ORDERS[1:]:
                growth = statistics.mean(b - a for a, b in zip(peaks[0], peaks[order], strict=True))
                row[f"order {order}, growth (MiB)"] = round(growth, 1)
            apart = max(max(values) - min(values) for values in peaks.values())
            rows.append(row | {"largest difference of two seeds (MiB)": round(apart, 1)})
            print(rows[-1], flush=True)
    notes = __doc__.split("\n\n", 2)[2].strip().replace("\n", " ")
    write_result("process_memory", rows, notes, seeds=list(SEEDS))


if __name__ == "__main__":
    main()
