"""The whole training step with WRN-28-2 at 8 + 56 + 56 images: its share of bare network time, and images/s against USB.

    python benchmarks/step.py
    python benchmarks/step.py --usb PYTHON USB_STEP.py

The first takes about two minutes, the second six, on two idle cores. USB_STEP.py prints a JSON object with the images/s of
USB's FlexMatch step (`images_per_s`); PYTHON is the interpreter of an environment that has semilearn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from _record import medians, write_result
from momatch.backbones import build_backbone
from momatch.config import TrainConfig
from momatch.data.dataset import Dataset, Split
from momatch.training.allocator import keep_large_blocks
from momatch.training.setup import build_training

THREADS = 2
LABELED, UNLABELED = 8, 56
IMAGES = LABELED + 2 * UNLABELED
BASE = {
    "backbone": "wrn-28-2",
    "labeled_batch_size": LABELED,
    "unlabeled_batch_size": UNLABELED,
    "steps": 2**20,
    "ema_decay": 0.999,
}
#: Row -> settings.
STEPS = {
    "AAGMM 8-D, order 1": {},
    "AAGMM 8-D, order 4": {"moment_order": 4},
    "linear, wide": {"head": "linear", "embedding_dim": 0},
    "AAGMM 8-D, order 1, split": {"forward": "split"},
}
#: The algorithm, network and optimiser that USB's step has.
USB_SETTINGS = {"head": "linear", "embedding_dim": 0, "backbone_variant": "published", "clip_norm": 0.0}
#: Side -> settings; measured in turns in one fresh process.
SIDES = {
    "joint": USB_SETTINGS,
    "split": {**USB_SETTINGS, "forward": "split"},
    "AAGMM 8-D, order 1, joint": {"backbone_variant": "published"},
}


def dataset():
    """Random images in the numbers of CIFAR-10: which pixels they hold changes no time here."""
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Dataset("cifar10", tuple("abcdefghij"), Split(images, torch.arange(50_000) % 10), None)


def whole(settings, data):
    """The call that does one whole step: batch, views, forward, losses, backward, optimiser, average, thresholds."""
    config = TrainConfig.from_dict({**BASE, **settings}).resolved()
    training = build_training(config, torch.device("cpu"), dataset=data)
    return training, lambda: training.step(next(training.stream), lr=config.lr, progress=0.5)


def bare(*, split=False):
    """The call that takes ready tensors forward and backward through the network alone."""
    network = build_backbone("wrn-28-2", 3).to(memory_format=torch.channels_last)
    sizes = [UNLABELED, LABELED + UNLABELED] if split else [0, IMAGES]
    images = [torch.randn(n, 3, 32, 32).contiguous(memory_format=torch.channels_last) for n in sizes]

    def call():
        if split:
            with torch.no_grad():
                network(images[0])
        network(images[1]).square().mean().backward()
        network.zero_grad(set_to_none=True)

    return call


@contextmanager
def timed(*places):
    """Seconds spent in each (name, owner, attribute) since, as a dict that fills while the block runs."""
    spent = {name: 0.0 for name, _, _ in places}

    def wrapped(name, function):
        def call(*arguments, **options):
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    found = [(owner, attribute, getattr(owner, attribute)) for _, owner, attribute in places]
    for (name, _, _), (owner, attribute, function) in zip(places, found, strict=True):
        setattr(owner, attribute, wrapped(name, function))
    try:
        yield spent
    finally:
        for owner, attribute, function in found:
            setattr(owner, attribute, function)


def breakdown(training, call, rounds):
    """Median milliseconds of the parts of a step."""
    step = training.step
    places = (
        ("batch", training.stream, "batch"),
        ("weak views", step, "weak"),
        ("strong view", step, "strong"),
        ("forward, with normalisation", step.classifier, "embed"),
        ("losses and thresholds", step.objective, "forward"),
        ("backward", torch.Tensor, "backward"),
        ("optimiser", step.optimizer, "step"),
        ("average", step.average, "update"),
    )
    rows = []
    with timed(*places) as spent:
        for _ in range(rounds):
            spent.update(dict.fromkeys(spent, 0.0))
            start = time.perf_counter()
            call()
            taken = time.perf_counter() - start
            rows.append({**spent, "rest (guard, clipping, metrics)": taken - sum(spent.values())})
    return {name: round(statistics.median(row[name] for row in rows) * 1e3, 1) for name in rows[0]}


def share(rounds):
    """Rows of the share table, and the parts of the first row's step."""
    data = dataset()
    steps = {name: whole(settings, data) for name, settings in STEPS.items()}
    calls = {"bare": bare(), "bare, split": bare(split=True), **{name: call for name, (_, call) in steps.items()}}
    seconds = medians(calls, repeats=rounds, warmup=2, at_most=150.0)
    rows = []
    for name in STEPS:
        network = seconds["bare, split" if "split" in name else "bare"]
        rows.append(
            {
                "step": name,
                "network alone (ms)": round(network * 1e3),
                "whole step (ms)": round(seconds[name] * 1e3),
                "share": round(network / seconds[name], 3),
                "images/s": round(IMAGES / seconds[name], 1),
            }
        )
        print(rows[-1], flush=True)
    return rows, breakdown(*steps["AAGMM 8-D, order 1"], rounds)


def print_sides(names, steps):
    """Images/s of each of the named sides, as JSON on the standard output."""
    data = dataset()
    calls = {name: whole(SIDES[name], data)[1] for name in names}
    seconds = medians(calls, repeats=steps, warmup=2, at_most=120.0)
    print(json.dumps({name: IMAGES / taken for name, taken in seconds.items()}))


def run(command, cwd):
    """The JSON object that `command` prints last. It gets the allocator as the system has it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed with code {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def against_usb(python, script, rounds, steps):
    """Rows of images/s, ours and USB's in alternating processes: while one runs, nothing else does."""
    usb_command = [python, script, "--batch", str(LABELED), "--uratio", str(UNLABELED // LABELED)]
    usb_command += ["--steps", str(steps), "--warmup", "2", "--threads", str(THREADS), "--workers", "none"]
    own_command = [sys.executable, os.path.abspath(__file__), "--steps", str(steps), "--side"]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            one = run([*own_command, *SIDES], None)
            usb = run(usb_command, folder)
            one["joint, allocator as the system has it"] = run([*own_command, "joint", "--leave-allocator"], None)[
                "joint"
            ]
            found.append({**one, "USB": usb["images_per_s"]})
            print({name: round(value, 1) for name, value in found[-1].items()}, flush=True)
    rows = [
        {
            "step": name,
            "images/s (median)": round(statistics.median(row[name] for row in found), 1),
            "times USB (median)": round(statistics.median(row[name] / row["USB"] for row in found), 2),
            "times USB (each round)": ", ".join(f"{row[name] / row['USB']:.2f}" for row in found),
        }
        for name in found[0]
    ]
    return rows, usb["torch"]


def record_share(rounds):
    rows, parts = share(rounds)
    notes = (
        f"WRN-28-2, 8 + 56 + 56 images of 32 x 32, float32, channels_last, {THREADS} threads, FlexMatch; medians of up to "
        f"{rounds} rounds in turns, one process. Network alone: forward and backward of the backbone on ready tensors; for "
        "split, the weak view's forward without gradient and the rest with. Whole step: batch, views, forward, losses, "
        "backward, clipping, optimiser, average, thresholds. Share: the first by the second."
    )
    write_result("step", rows, notes, parts_ms=parts, seeds=[0])


def record_usb(python, script, rounds, steps):
    # The recorded command names no place of this machine.
    place = sys.argv.index("--usb") + 1
    sys.argv[place : place + 2] = ["PYTHON", Path(script).name]
    rows, version = against_usb(os.path.abspath(python), os.path.abspath(script), rounds, steps)
    notes = (
        f"FlexMatch, WRN-28-2 as USB has it, linear head (but where named), 8 + 56 + 56 images, {THREADS} threads, torch "
        f"{version} for USB; medians of {steps} steps a turn, {rounds} turns, each in a fresh process and alone. Ours counts "
        "batch and augmentation, USB's gets its batches as ready tensors. Split is another algorithm: the weak view takes no "
        "gradient and has batch statistics of its own."
    )
    write_result("step_usb", rows, notes, seeds=[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each kind in turns")
    parser.add_argument("--usb", nargs=2, metavar=("PYTHON", "USB_STEP.py"), help="compare with USB's step as well")
    parser.add_argument("--usb-rounds", type=int, default=3, help="how often both sides take turns")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each side and turn")
    parser.add_argument("--side", nargs="+", choices=SIDES, help="(one turn of ours, prints JSON)")
    parser.add_argument("--leave-allocator", action="store_true", help="(with --side) without keep_large_blocks")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    if not arguments.leave_allocator:
        keep_large_blocks()
    if arguments.side:
        print_sides(arguments.side, arguments.steps)
        return
    if arguments.usb:
        record_usb(*arguments.usb, arguments.usb_rounds, arguments.steps)
    record_share(arguments.rounds)


if __name__ == "__main__":
    main()
