"""The whole training step with WRN-28-2 at 8 + 56 + 56 images: its share of bare network time, and images/s against USB.

    python benchmarks/step.py
    python benchmarks/step.py --usb PYTHON USB_STEP.py

Each takes about two minutes on two idle cores. USB_STEP.py builds USB's algorithm on the CPU (see usb_turns.py); PYTHON is the
interpreter of an environment that has semilearn.
"""

import argparse
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
from momatch.config import TrainConfig
from momatch.data.dataset import Dataset, Split
from momatch.models.backbones import build_backbone
from momatch.training.allocator import keep_large_blocks
from momatch.training.setup import build_training

THREADS = 2
WARMUP = 2
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
#: Side -> settings; each a process of its own.
SIDES = {
    "joint": USB_SETTINGS,
    "split": {**USB_SETTINGS, "forward": "split"},
    "joint, compiled": {**USB_SETTINGS, "compile": True},
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


def serve(side):
    """One step of ours for each line on standard input; answers with the seconds it took."""
    _, call = whole(SIDES[side], dataset())
    print(torch.__version__, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        call()
        print(time.perf_counter() - start, flush=True)


class Contender:
    """A process that takes a step when asked to, and sleeps otherwise. It gets the allocator as the system has it."""

    def __init__(self, command):
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
        self.folder = tempfile.TemporaryDirectory()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen(command, cwd=self.folder.name, env=kept, **pipes)
        self.version = self._answer()

    def _answer(self):
        answer = self.process.stdout.readline().strip()
        if not answer:
            sys.exit(f"{self.process.args[1]} ended with code {self.process.wait()}")
        return answer

    def step(self):
        """Seconds of one step."""
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self):
        """End the process."""
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def against_usb(python, script, rounds):
    """Rows of images/s: all contenders take turns step by step, so that a slow moment of the machine hits all alike."""
    own = [sys.executable, os.path.abspath(__file__), "--serve"]
    usb = [
        python,
        str(Path(__file__).with_name("usb_turns.py")),
        script,
        str(LABELED),
        str(UNLABELED // LABELED),
        str(THREADS),
    ]
    commands = {"USB": usb, **{side: [*own, side] for side in SIDES}}
    commands["joint, allocator as the system has it"] = [*own, "joint", "--leave-allocator"]
    contenders = {name: Contender(command) for name, command in commands.items()}
    seconds = {name: [] for name in contenders}
    for turn in range(WARMUP + rounds):
        for name, contender in contenders.items():
            # The threads of the one before must have gone to sleep.
            time.sleep(0.3)
            taken = contender.step()
            if turn >= WARMUP:
                seconds[name].append(taken)
        print({name: round(IMAGES / values[-1], 1) for name, values in seconds.items() if values}, flush=True)
    for contender in contenders.values():
        contender.close()
    ratios = {
        name: sorted(u / own for u, own in zip(seconds["USB"], values, strict=True)) for name, values in seconds.items()
    }
    rows = [
        {
            "step": name,
            "images/s (median)": round(IMAGES / statistics.median(values), 1),
            "times USB (median of turns)": round(statistics.median(ratios[name]), 2),
            "middle half of the turns": f"{ratios[name][rounds // 4]:.2f} to {ratios[name][-1 - rounds // 4]:.2f}",
        }
        for name, values in seconds.items()
    ]
    return rows, contenders["USB"].version


def record_share(rounds):
    rows, parts = share(rounds)
    notes = (
        f"WRN-28-2, 8 + 56 + 56 images of 32 x 32, float32, channels_last, {THREADS} threads, FlexMatch; medians of up to "
        f"{rounds} rounds in turns, one process. Network alone: forward and backward of the backbone on ready tensors; for "
        "split, the weak view's forward without gradient and the rest with. Whole step: batch, views, forward, losses, "
        "backward, clipping, optimiser, average, thresholds. Share: the first by the second."
    )
    write_result("step", rows, notes, parts_ms=parts, seeds=[0])


def record_usb(python, script, rounds):
    # The recorded command names no place of this machine.
    place = sys.argv.index("--usb") + 1
    sys.argv[place : place + 2] = ["PYTHON", Path(script).name]
    rows, version = against_usb(os.path.abspath(python), os.path.abspath(script), rounds)
    notes = (
        f"FlexMatch, WRN-28-2 as USB has it, linear head (but where named), 8 + 56 + 56 images, {THREADS} threads, torch "
        f"{version} for USB. Each contender is a process of its own; they take turns step by step, {rounds} turns after "
        f"{WARMUP} of warm-up, and one computes at a time. Ours counts batch and augmentation, USB's gets its batch as ready "
        "tensors. Split is another algorithm: the weak view takes no gradient and has batch statistics of its own."
    )
    write_result("step_usb", rows, notes, seeds=[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each kind in turns")
    parser.add_argument("--usb", nargs=2, metavar=("PYTHON", "USB_STEP.py"), help="compare with USB's step as well")
    parser.add_argument("--usb-rounds", type=int, default=12, help="turns of each contender")
    parser.add_argument("--serve", choices=SIDES, help="(one contender of ours)")
    parser.add_argument("--leave-allocator", action="store_true", help="(with --serve) without keep_large_blocks")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    if not arguments.leave_allocator:
        keep_large_blocks()
    if arguments.serve:
        serve(arguments.serve)
    elif arguments.usb:
        record_usb(*arguments.usb, arguments.usb_rounds)
    else:
        record_share(arguments.rounds)


if __name__ == "__main__":
    main()
