"""Time and memory of MoMatchClassifier as tables grow, beside LabelSpreading; and its time beside a busy process.

    python benchmarks/growth.py

Every fit runs in a process of its own, with the defaults of MoMatchClassifier and of torch's threads. Tables: ten Gaussian
clusters that overlap, 200 labels. The table of a million rows is mapped from a file. Memory: peak of the process while it fits
and predicts, less what it had before, without pages of the file.
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

from _record import write_result

CLASSES, LABELS = 10, 200
SIZES = ((1_000, 20), (10_000, 20), (100_000, 20), (100_000, 100), (1_000_000, 20))
#: LabelSpreading is left out of tables with more numbers than this: its exact neighbours take many minutes.
MOST_FOR_SPREADING = 2_000_000
TESTS = 10_000


def table(rows, features, seed=0):
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(1).normal(size=(CLASSES, features)) * 4.0 / np.sqrt(features)
    y = rng.integers(CLASSES, size=rows)
    return centers[y] + rng.normal(size=(rows, features)), y


def anonymous_memory():
    """Bytes of this process that no file backs."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


class Peak:
    """Watches the process's own memory from a thread."""

    def __enter__(self):
        import threading

        self.before = self.most = anonymous_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self):
        while not self._done.wait(0.05):
            self.most = max(self.most, anonymous_memory())

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    @property
    def gigabytes(self):
        """More than before."""
        return (self.most - self.before) / 1e9


def fit_once(what, rows, features):
    """In a process of its own: seconds, memory and accuracy of one fit."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.semi_supervised import LabelSpreading

    from momatch import MoMatchClassifier

    x, y = table(rows, features)
    labels = np.full(rows, -1)
    labels[:LABELS] = y[:LABELS]
    with tempfile.TemporaryDirectory() as folder:
        if rows >= 1_000_000:
            mapped = np.memmap(Path(folder) / "x", dtype=np.float64, mode="w+", shape=x.shape)
            mapped[:] = x
            mapped.flush()
            x = np.memmap(Path(folder) / "x", dtype=np.float64, mode="r", shape=mapped.shape)
            del mapped
        model = {
            "momatch": lambda: MoMatchClassifier(random_state=0),
            "LabelSpreading": lambda: LabelSpreading(kernel="knn"),
            "grid": lambda: GridSearchCV(
                MoMatchClassifier(random_state=0), {"class_weight": [None, "balanced"]}, cv=2, n_jobs=2
            ),
        }[what]()
        with Peak() as peak:
            start = time.perf_counter()
            model.fit(x, labels)
            seconds = time.perf_counter() - start
            start = time.perf_counter()
            predicted = model.predict(x)
            of_prediction = time.perf_counter() - start
    x_test, y_test = table(TESTS, features, seed=2)
    return {
        "seconds": seconds,
        "prediction": of_prediction,
        "memory": peak.gigabytes,
        "accuracy": 100 * float(np.mean(model.predict(x_test) == y_test)),
        "rows predicted": len(predicted),
    }


def train_once():
    """Seconds of a short `momatch train` on small images."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "momatch", "train", "--preset", "digits", "--steps", "200", "--no-progress"]
        start = time.perf_counter()
        subprocess.run([*command, "--run-dir", str(Path(folder) / "run")], capture_output=True, check=True)
        return {"seconds": time.perf_counter() - start}


def in_process(what, rows, features):
    command = [sys.executable, __file__, "--one", what, str(rows), str(features)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{what}, {rows:,} x {features}: {found}", flush=True)
    return found


def busy():
    """Matrix products in torch's own number of threads, for ever."""
    import torch

    a = torch.rand(700, 700)
    while True:
        a = torch.nn.functional.normalize(a @ a)


def beside_a_busy_process(what, rows, features, repeats):
    """Medians of the seconds alone and beside a busy process, in turns."""
    alone, beside = [], []
    for _ in range(repeats):
        alone.append(in_process(what, rows, features)["seconds"])
        other = subprocess.Popen([sys.executable, __file__, "--busy"])
        try:
            time.sleep(5)
            beside.append(in_process(what, rows, features)["seconds"])
        finally:
            other.kill()
            other.wait()
    return statistics.median(alone), statistics.median(beside)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--busy", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3, help="of the fits beside a busy process")
    arguments = parser.parse_args()
    if arguments.busy:
        busy()
    if arguments.one:
        what, rows, features = arguments.one
        print(json.dumps(train_once() if what == "train" else fit_once(what, int(rows), int(features))))
        return
    load = os.getloadavg()[0]
    rows = []
    for n, features in SIZES:
        for what in ("momatch", "LabelSpreading"):
            if what == "momatch" or n * features <= MOST_FOR_SPREADING:
                found = in_process(what, n, features)
                rows.append(
                    {
                        "table": f"{n:,} x {features}",
                        "method": what,
                        "fit": f"{found['seconds']:.1f} s",
                        "prediction of all rows": f"{found['prediction']:.1f} s",
                        "memory": f"{found['memory']:.2f} GB",
                        "accuracy on new rows": f"{found['accuracy']:.1f}",
                    }
                )
    for what, name, n, features in (
        ("momatch", "momatch", 1_800, 64),
        ("momatch", "momatch", 2_000, 100),
        ("grid", "momatch, GridSearchCV of 4 fits, n_jobs=2", 2_000, 100),
        ("train", "momatch train, 200 steps on digits", 1_437, 64),
    ):
        alone, beside = beside_a_busy_process(what, n, features, arguments.repeats)
        rows.append(
            {
                "table": f"{n:,} x {features}",
                "method": f"{name}: beside a busy process {beside:.1f} s, {beside / alone:.1f} times",
                "fit": f"{alone:.1f} s",
            }
        )
    notes = (
        f"{CLASSES} Gaussian clusters that overlap, {LABELS} labels; the defaults. Each fit in a new process; of a table of a "
        "million rows, mapped from a file, 100,000 are trained on. The busy process multiplies matrices in torch's default "
        f"threads; medians of {arguments.repeats}, in turns. Load before: {load:.1f}."
    )
    write_result("growth", rows, notes)


if __name__ == "__main__":
    main()
