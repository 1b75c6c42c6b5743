"""The first 200 steps of the paper's presets, stopped and resumed once: what a CPU can show of runs that are made for a GPU.

    python benchmarks/paper_presets.py --data-dir DATA                    # both presets: hours on two cores
    python benchmarks/paper_presets.py --data-dir DATA --preset paper-cifar10 --steps 4

DATA holds CIFAR-10 as `momatch data cifar10` stores it. Each preset runs with its own settings, 2^20 steps among them, so
that learning rate and batches are those of the real run; only evaluations and the log's lines are placed where these steps
have some. Halfway `momatch train` gets SIGINT, at the end once more, and `--resume` goes on in between. The same command
again goes on where it was stopped itself.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from _record import HERE, write_result
from momatch.data.load import load_dataset

OUT = HERE.parent / "out" / "paper-presets"
PRESETS = ("paper-cifar10", "paper-stl10")
LOG_EVERY = 10
STL10_TRAIN, STL10_TEST = 5_000, 8_000
SIDE = 96


def lay_out_as_stl10(data_dir, folder):
    """CIFAR-10 in STL-10's files: 5,000 labelled images, the other 45,000 unlabelled, 8,000 test images, enlarged to 96 px."""
    folder = folder / "stl10_binary"
    if (folder / "test_y.bin").exists():
        return folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    dataset = load_dataset("cifar10", data_dir)
    train, test = dataset.train, dataset.test
    for name, images, labels in (
        ("train", train.images[:STL10_TRAIN], train.labels[:STL10_TRAIN]),
        ("unlabeled", train.images[STL10_TRAIN:], None),
        ("test", test.images[:STL10_TEST], test.labels[:STL10_TEST]),
    ):
        with open(folder / f"{name}_X.bin", "wb") as file:
            for image in images.permute(0, 2, 3, 1).numpy():
                large = np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
                file.write(large.transpose(2, 1, 0).tobytes())  # planes, column by column
        if labels is not None:
            (labels.numpy() + 1).astype(np.uint8).tofile(folder / f"{name}_y.bin")
    return folder.parent


def lines_of(run):
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def peak_memory(pid):
    """Bytes that the process has had at most."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines.get("VmHWM", "0 kB").split()[0]) * 1024


def run_until(step, command, run):
    """Start or resume a run and stop it by SIGINT at this step: exit code and peak memory."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    try:
        while process.poll() is None:
            time.sleep(0.5)
            found = lines_of(run)
            if process.poll() is None:
                peak = max(peak, peak_memory(process.pid))
            if found and found[-1]["step"] >= step:
                process.send_signal(signal.SIGINT)
                break
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    if code != 128 + signal.SIGINT:
        raise SystemExit(f"{' '.join(command)}: got exit code {code}, expected {128 + signal.SIGINT}")
    return peak


def measure(preset, data_dir, steps, out):
    """Rows of the table, and the log's lines."""
    run = out / preset
    command = [sys.executable, "-m", "momatch", "train", "--preset", preset, "--run-dir", str(run), "--no-progress"]
    command += ["--data-dir", str(data_dir), "--resume", "auto"]
    every = min(LOG_EVERY, max(1, steps // 2))
    command += ["--log-interval", str(every), "--eval-interval", str(steps), "--checkpoint-interval", str(steps)]
    kept = out / f"{preset}.json"
    peaks = json.loads(kept.read_text()) if kept.exists() else []
    for at in (steps // 2, steps)[len(peaks) :]:
        peaks.append(run_until(at, command, run))
        kept.write_text(json.dumps(peaks))
    found = lines_of(run)
    losses = [line for line in found if "loss" in line]
    accuracy = [line["test_accuracy"] for line in found if "test_accuracy" in line]
    last = losses[-1]
    row = {
        "preset": preset,
        "steps": last["step"],
        "stopped and resumed at": f"{steps // 2}",
        "seconds a step": f"{last['seconds'] / last['step']:.1f}",
        "images a second": f"{last['images_per_second']:.0f}",
        "peak memory": f"{max(peaks) / 1e9:.1f} GB",
        "loss, first and last line": f"{losses[0]['loss']:.3f}, {last['loss']:.3f}",
        "of it the constraint": f"{losses[0]['constraint_loss']:.3f}, {last['constraint_loss']:.3f}",
        "pseudo-labels used": f"{last['utilisation']:.1%}",
        "of these correct": f"{last['pseudo_label_accuracy']:.1%}",
        "steps skipped": sum(line["skipped_steps"] for line in losses),
        "test accuracy of the average": f"{accuracy[-1]:.1%}" if accuracy else "",
    }
    return row, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--preset", choices=PRESETS, action="append", help="default: both")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows, details = [], {}
    for preset in args.preset or PRESETS:
        is_stl = preset == "paper-stl10"
        data_dir = lay_out_as_stl10(args.data_dir, args.out / "data") if is_stl else args.data_dir
        row, details[preset] = measure(preset, data_dir, args.steps, args.out)
        rows.append(row)
    write_result("paper_presets", rows, __doc__.split("\n\n", 2)[2].strip().replace("\n", " "), details=details)


if __name__ == "__main__":
    main()
