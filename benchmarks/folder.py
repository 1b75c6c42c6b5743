"""From a folder of unsorted photographs to predictions: the five commands as a person runs them, and what each costs.

    python benchmarks/folder.py PHOTOS [--fast]

PHOTOS has a folder per class. The photographs are copied to one folder without classes, under numbers. They are embedded, and
embedded again, as after adding some. A person is played by true labels: 40 answers to the page over HTTP, one each second.
The model is trained on these, and predicts every photograph. Copies, features and the run lie in --out and are kept.
"""

import argparse
import csv
import json
import os
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from _record import HERE, write_result

OUT = HERE.parent / "out" / "folder"
LABELS = 40
#: Seconds that a person looks at a photograph.
LOOKS = 1.0


def scattered(photographs: Path, folder: Path) -> dict[str, str]:
    """Copy the photographs to one folder, in a random order; returns the class of each copy by name."""
    files = sorted(path for path in photographs.glob("*/*") if path.is_file() and not path.name.startswith("."))
    random.Random(0).shuffle(files)
    names = {f"{number:05}{path.suffix.lower()}": path for number, path in enumerate(files)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in names.items():
        if not (folder / name).exists():
            shutil.copyfile(path, folder / name)
    return {name: path.parent.name for name, path in names.items()}


def start(words: list[str], out: Path) -> subprocess.Popen[str]:
    """Start a command of momatch in the directory `out`."""
    print("$", shlex.join(["momatch", *words]), flush=True)
    return subprocess.Popen([sys.executable, "-m", "momatch", *words], cwd=out, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str], begin: float) -> dict[str, float]:
    """Wait for a command; seconds since `begin` and of the processor, with its own children."""
    print(process.stdout.read(), flush=True)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}")
    return {"seconds": time.perf_counter() - begin, "CPU seconds": usage.ru_utime + usage.ru_stime}


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Of a running command so far (Linux)."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(words: list[str], out: Path) -> dict[str, object]:
    """A row of the table for a command that runs by itself."""
    begin = time.perf_counter()
    return {"command": f"`{shlex.join(['momatch', *words])}`", **finished(start(words, out), begin)}


def labeled_on_the_page(words: list[str], truth: dict[str, str], out: Path) -> tuple[dict[str, object], str]:
    """The row of `momatch label` up to its first photograph, and a sentence about the answers."""
    begin = time.perf_counter()
    process = start([*words, "--no-browser"], out)
    address = process.stdout.readline().strip()

    def ask(path: str, body: object = None):
        origin = address.rsplit("/", 2)[0]
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(address + path, data, {"Origin": origin})) as response:
            return json.load(response)

    def offered():
        while not (offers := ask("offers?count=1")):
            time.sleep(0.02)
        return offers[0]

    offer = offered()
    row = {
        "command": f"`{shlex.join(['momatch', *words])}`, up to the first photograph",
        "seconds": time.perf_counter() - begin,
        "CPU seconds": cpu_seconds(process),
    }
    waits = []
    for _ in range(LABELS):
        time.sleep(LOOKS)
        sent = time.perf_counter()
        label = truth[Path(offer["name"]).name]
        ask("answers", {"answers": [{"row": offer["row"], "known": offer["known"], "label": label}]})
        offer = offered()
        waits.append(time.perf_counter() - sent)
    state = ask("state")
    process.send_signal(signal.SIGINT)
    used = finished(process, begin)
    sentence = (
        f"{LABELS} answers: the next photograph after {statistics.median(waits):.2f} s (median), {max(waits):.2f} s at most; "
        f"{state['right']} of {state['guesses']} guesses were right; the whole session used {used['CPU seconds']:.0f} s of CPU."
    )
    return row, sentence


def accuracy(out: Path, truth: dict[str, str]) -> float:
    """The share of right predictions among photographs that nobody labelled."""
    with open(out / "photos" / "labels.csv", newline="", encoding="utf-8") as file:
        labeled = {row["path"] for row in csv.DictReader(file) if row["label"]}
    with open(out / "predictions.csv", newline="", encoding="utf-8") as file:
        predicted = {Path(row["path"]).name: row["label"] for row in csv.DictReader(file)}
    right = [label == truth[name] for name, label in predicted.items() if name not in labeled]
    return sum(right) / len(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--fast", action="store_true", help="momatch embed --fast")
    parser.add_argument("--notes", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    truth = scattered(arguments.photographs, out / "photos")
    for made in ("labels.csv", "labels.classes.txt"):
        (out / "photos" / made).unlink(missing_ok=True)
    shutil.rmtree(out / "runs", ignore_errors=True)
    features, quiet = "photos/features.npz", "--no-progress"
    embed = ["embed", "photos", "--out", features, *(["--fast"] if arguments.fast else []), quiet]
    first = timed(embed, out)
    rows = [timed(embed, out)]
    rows.append(timed(["suggest", features, "--n", str(LABELS), "--out", "to_label.csv", "--overwrite"], out))
    classes = ",".join(sorted(set(truth.values())))
    row, answers = labeled_on_the_page(["label", "photos", "--classes", classes, quiet], truth, out)
    rows.append(row)
    train = ["train", "--dataset", features, "--labels", "photos/labels.csv", "--run-dir", "runs/photos", quiet]
    rows.append(timed(train, out))
    rows.append(timed(["predict", "runs/photos", "photos", "--out", "predictions.csv", "--overwrite", quiet], out))
    size = "at about half the size (--fast)" if arguments.fast else "at the network's own size"
    notes = (
        f"{len(truth):,} photographs of {len(set(truth.values()))} classes, efficientnet-lite0 {size}. Embedding them for the "
        f"first time: {first['seconds']:.0f} s, {first['CPU seconds']:.0f} s of CPU; then, as a person runs them, with what is "
        f"already embedded: the table. {answers} Accuracy on the photographs without a label: "
        f"{accuracy(out, truth):.1%}. {arguments.notes}"
    )
    write_result("folder", rows, notes)


if __name__ == "__main__":
    main()
