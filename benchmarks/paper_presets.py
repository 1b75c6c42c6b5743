"""The first 200 steps of a preset of the paper, stopped and resumed once: what a CPU can show of a run that is made for a GPU.

    python benchmarks/paper_presets.py paper-cifar10 --data-dir DATA      # half an hour of one core, and more
    python benchmarks/paper_presets.py paper-stl10 --data-dir DATA        # three times as long
    python benchmarks/paper_presets.py paper-stl10 --precision bfloat16 --data-dir DATA   # half of that, where the CPU has it

DATA holds CIFAR-10 as `momatch data cifar10` stores it; for paper-stl10 it is written in STL-10's files and size first. The
preset runs with its own settings (its precision unless another is asked for), 2^20 steps among them, so that learning rate and
batches are those of the real run; only the log's lines, one evaluation and the checkpoints are placed where so few steps have
some. Halfway `momatch train` gets SIGINT,
`--resume` goes on, and after the last step it gets SIGINT again. The same command goes on where this script was stopped itself.
Seconds a step and images a second (all three views counted, as everywhere) are medians over intervals without an evaluation.
"""

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from _record import HERE, write_result
from momatch.data.load import load_dataset
from momatch.data.report import DataError
from momatch.storage.metrics_file import MetricsFile

OUT = HERE.parent / "out" / "paper-presets"
PRESETS = ("paper-cifar10", "paper-stl10")
PRECISIONS = ("float32", "bfloat16")
IMAGES_A_STEP = 64 + 2 * 448
FEWEST_STEPS = 8
LINES = 20
STL10_TRAIN, STL10_TEST = 5_000, 8_000
SIDE = 96
INTERRUPTED = 128 + signal.SIGINT
STOPPED = re.compile(r"stopped at step (\d+) of (\d+) and saved")


def lay_out_as_stl10(dataset, folder):
    """CIFAR-10 in STL-10's files: 5,000 labelled images, the other 45,000 unlabelled, 8,000 test images, enlarged to 96 px."""
    binary = folder / "stl10_binary"
    if (binary / "test_y.bin").exists():
        return
    binary.mkdir(parents=True, exist_ok=True)
    train, test = dataset.train, dataset.test
    for name, images, labels in (
        ("train", train.images[:STL10_TRAIN], train.labels[:STL10_TRAIN]),
        ("unlabeled", train.images[STL10_TRAIN:], None),
        ("test", test.images[:STL10_TEST], test.labels[:STL10_TEST]),
    ):
        with open(binary / f"{name}_X.bin", "wb") as file:
            for image in images.permute(0, 2, 3, 1).numpy():
                large = np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
                file.write(large.transpose(2, 1, 0).tobytes())  # planes, column by column
        if labels is not None:
            (labels.numpy() + 1).astype(np.uint8).tofile(binary / f"{name}_y.bin")


def lines_of(run):
    path = run / "metrics.jsonl"
    return MetricsFile(path).read() if path.exists() else []


def peak_memory(pid):
    """The most bytes that the process has had in memory; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


def run_until(step, command, run):
    """Start or resume the run, stop it by SIGINT once this step is logged: where it said that it stopped, and its peak memory.

    Raises:
        SystemExit: if it ended otherwise.
    """
    if any(line["step"] >= step for line in lines_of(run)):
        raise SystemExit(f"{run}: got steps that were not watched; remove this folder and start again")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = 0
    try:
        while process.poll() is None and not any(line["step"] >= step for line in lines_of(run)):
            peak = max(peak, peak_memory(process.pid))
            time.sleep(0.5)
        peak = max(peak, peak_memory(process.pid))
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    finally:
        # It would train for days.
        if process.poll() is None:
            process.kill()
            process.wait()
    stopped = STOPPED.search(said)
    if process.returncode != INTERRUPTED or stopped is None:
        raise SystemExit(f"momatch train: got exit code {process.returncode}, expected {INTERRUPTED}:\n{said.strip()}")
    return {"stopped at": int(stopped[1]), "of": int(stopped[2]), "peak": peak}


def measure(preset, precision, data_dir, steps, out):
    """What was seen of both parts of the run, and the log's lines."""
    run, seen = out / "run", out / "legs.json"
    legs = json.loads(seen.read_text()) if seen.exists() else []
    every = max(1, steps // LINES)
    command = [sys.executable, "-m", "momatch", "train", "--preset", preset, "--run-dir", str(run), "--no-progress"]
    command += ["--data-dir", str(data_dir), "--resume", "auto", "--log-interval", str(every)]
    command += ["--eval-interval", str(steps), "--checkpoint-interval", str(steps), "--precision", precision]
    for at in (steps // 2, steps)[len(legs) :]:
        legs.append(run_until(at, command, run))
        seen.write_text(json.dumps(legs))
        print(f"{preset}: stopped at step {legs[-1]['stopped at']} and saved", flush=True)
    return legs, [line for line in lines_of(run) if line["step"] <= steps]


def table(precision, legs, lines):
    speed = statistics.median(line["images_per_second"] for line in lines if "test_accuracy" not in line)
    first, last = lines[0], lines[-1]

    def course(key, form):
        return " → ".join(form.format(line[key]) for line in (first, lines[len(lines) // 2], last))

    values = {
        "precision of the network": precision,
        "stopped at step, resumed, stopped at step": ", ".join(f"{leg['stopped at']:,}" for leg in legs),
        "steps of the whole run": f"{legs[0]['of']:,}",
        "seconds a step": f"{IMAGES_A_STEP / speed:.1f}",
        "images a second": f"{speed:.0f}",
        "peak memory of the process": f"{max(leg['peak'] for leg in legs) / 1e9:.1f} GB",
        f"loss at steps {first['step']}, {lines[len(lines) // 2]['step']}, {last['step']}": course("loss", "{:.3f}"),
        "supervised loss": course("supervised_loss", "{:.3f}"),
        "loss of the constraint": course("constraint_loss", "{:.3f}"),
        "pseudo-labels used": course("utilisation", "{:.1%}"),
        "of these correct": course("pseudo_label_accuracy", "{:.1%}"),
        "steps skipped": f"{last['skipped_steps']:.0f}",
        f"test accuracy of the average at step {last['step']}": f"{last['test_accuracy']:.1%}",
    }
    return [{"what": what, "value": value} for what, value in values.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200, help=f"even, {FEWEST_STEPS} or more")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="float32 is the preset's own (default: float32)"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.steps < FEWEST_STEPS or args.steps % 2:
        parser.error(f"--steps: got {args.steps}, expected an even number, {FEWEST_STEPS} or more")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = args.out / f"{args.preset}-{args.precision}-{args.steps}"
    try:
        dataset = load_dataset("cifar10", args.data_dir, download=False)
        out.mkdir(parents=True, exist_ok=True)
        data_dir = args.data_dir
        if args.preset == "paper-stl10":
            data_dir = args.out / "data"
            lay_out_as_stl10(dataset, data_dir)
        del dataset
        legs, lines = measure(args.preset, args.precision, data_dir, args.steps, out)
    except (DataError, OSError) as error:
        raise SystemExit(f"paper_presets: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("paper_presets: stopped; the same command goes on, unless a step was not watched") from None
    notes = __doc__.split("\n\n", 2)[2].strip().replace("\n", " ")
    write_result(
        f"paper_presets-{args.preset}",
        table(args.precision, legs, lines),
        notes,
        details={"legs": legs, "lines": lines},
    )


if __name__ == "__main__":
    main()
