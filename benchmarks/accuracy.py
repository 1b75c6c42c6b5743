"""Accuracy over seeds: every head, order and policy on a preset, each a whole `momatch.fit`, in parallel processes.

    python benchmarks/accuracy.py digits
    python benchmarks/accuracy.py mnist-cpu --rows default --seeds 0 1 2 --data-dir DIR

Runs lie in --out and are kept: what is finished is not run again, what was interrupted goes on. Times are of runs side by side
with one thread each unless --workers 1 --threads N says otherwise.
"""

import argparse
import json
import os
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from _record import write_result

ORDERS = range(5)
WIDE = {"head": "linear", "embedding_dim": 0}
#: Row -> settings on top of the preset.
ROWS = {
    "default (AAGMM 8-D, order 1, flexmatch)": {},
    "linear, the network's own features": WIDE,
    "linear 8-D": {"head": "linear"},
    **{f"AAGMM 8-D, order {order}": {"head": "aagmm", "moment_order": order} for order in ORDERS if order != 1},
    **{f"KMeans 8-D, order {order}": {"head": "kmeans", "moment_order": order} for order in ORDERS},
    **{
        f"AAGMM 8-D, order 1, {name}": {"policy": name} for name in ("fixmatch", "freematch", "softmatch", "supervised")
    },
}
#: Rows that claims rest on get every seed, the others the first two.
CLAIMED = ("default", "linear, the network's own features", "AAGMM 8-D, order 0", "AAGMM 8-D, order 2")


def slug(row, seed):
    kept = "".join(letter if letter.isalnum() else "-" for letter in row.lower())
    return f"{kept}-seed{seed}"


def run_one(preset, settings, *, seed, folder, threads, data_dir):
    import torch

    torch.set_num_threads(threads)
    from momatch import Run, TrainConfig, fit
    from momatch.config.presets import PRESETS

    given = {
        **PRESETS[preset],
        **settings,
        "seed": seed,
        "run_dir": str(folder),
        "progress": False,
        "data_dir": data_dir,
    }
    started = (folder / "config.json").exists()
    run = fit(TrainConfig.from_dict({**given, "resume": started}))
    assert isinstance(run, Run)
    return run.result


def summary(row, results):
    def mean(key, factor=1.0):
        values = [factor * result[key] for result in results if result[key] is not None]
        return statistics.mean(values) if values else float("nan")

    accuracies = [100 * result["test_accuracy"] for result in results]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    return {
        "setting": row,
        "seeds": len(results),
        "test accuracy %": f"{statistics.mean(accuracies):.2f} ± {spread:.2f}",
        "each seed": " ".join(f"{accuracy:.1f}" for accuracy in accuracies),
        "oracle best %": f"{mean('best_test_accuracy', 100):.2f}",
        "compactness": f"{mean('compactness'):.3g}",
        "pseudo-labels right %": f"{mean('pseudo_label_accuracy', 100):.1f}",
        "utilisation %": f"{mean('utilisation', 100):.1f}",
        "ECE %": f"{mean('ece', 100):.2f}",
        "seconds a run": f"{mean('seconds'):.0f}",
        "steps": results[0]["steps"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), help="rows whose name begins with one of these")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, help="fewer or more than the preset's")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=Path("out/accuracy"))
    parser.add_argument("--name", help="name of the recorded result (default: accuracy-PRESET)")
    parser.add_argument("--notes", default="")
    arguments = parser.parse_args()
    rows = {row: settings for row, settings in ROWS.items() if any(row.startswith(name) for name in arguments.rows)}
    if arguments.steps is not None:
        rows = {row: {**settings, "steps": arguments.steps} for row, settings in rows.items()}
    found = {row: {} for row in rows}
    # Seeds outside: a first column of all rows is there early.
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        jobs = {}
        for place, seed in enumerate(arguments.seeds):
            for row, settings in rows.items():
                if place >= 2 and not row.startswith(CLAIMED):
                    continue
                folder = arguments.out / arguments.preset / slug(row, seed)
                where = {"folder": folder, "threads": arguments.threads, "data_dir": arguments.data_dir}
                job = pool.submit(run_one, arguments.preset, settings, seed=seed, **where)
                jobs[job] = (row, seed)
        for number, job in enumerate(as_completed(jobs), 1):
            row, seed = jobs[job]
            found[row][seed] = job.result()
            accuracy, seconds = found[row][seed]["test_accuracy"], found[row][seed]["seconds"]
            print(f"[{number}/{len(jobs)}] {row}, seed {seed}: {accuracy:.2%} in {seconds:.0f} s", flush=True)
    notes = (
        f"Preset {arguments.preset}, seeds {arguments.seeds}: test accuracy of the averaged model at the last step, mean ± "
        f"standard deviation over seeds. {arguments.workers} processes at a time with {arguments.threads} thread(s) each. "
        f"{arguments.notes}"
    )
    table = [summary(row, [results[seed] for seed in sorted(results)]) for row, results in found.items()]
    write_result(
        arguments.name or f"accuracy-{arguments.preset}",
        table,
        notes,
        results=json.dumps(
            {row: {seed: result["test_accuracy"] for seed, result in of.items()} for row, of in found.items()}
        ),
    )


if __name__ == "__main__":
    main()
