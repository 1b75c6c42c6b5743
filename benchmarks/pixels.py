"""The learning curves of CIFAR-10 from pixels: test accuracy over the steps of each run of pixels.toml, and what it cost.

    SETTINGS="--set precision=bfloat16 --set steps=5000"
    momatch sweep benchmarks/pixels.toml --preset cifar10-cpu --seeds 0 $SETTINGS --out benchmarks/results/pixels
    python benchmarks/pixels.py benchmarks/results/pixels/cifar10-cpu/pixels.json --runs runs --data-dir DATA

Test accuracy of the averaged model, in percent, at the steps at which a run was evaluated. Cost: minutes of training,
evaluations included, of a process of one thread beside other measurements on two cores. Nothing was chosen by these curves.
docs/results.md shows them.
"""

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from torch.utils._python_dispatch import TorchDispatchMode

from _record import write_result
from gpu_estimate import count, hours_on_an_a100
from momatch import TrainConfig, fit
from momatch.storage.metrics_file import MetricsFile
from momatch.sweep.record import read_record

POINTS = 10
#: Seconds to start an operator on a GPU from Python: what is usual, not measured here.
LAUNCH = (5e-6, 10e-6)
#: Steps of two runs, whose difference tells the operators of a step from those of the rest.
SHORT_RUNS = (10, 30)


def curve(run):
    """(step, seconds, accuracy in percent) of each evaluation of a run."""
    lines = MetricsFile(run / "metrics.jsonl").read()
    return [(line["step"], line["seconds"], 100 * line["test_accuracy"]) for line in lines if "test_accuracy" in line]


def thinned(points):
    """The evaluations nearest to each tenth of the run, the last one included."""
    last = points[-1][0]
    wanted = [last * part / POINTS for part in range(1, POINTS + 1)]
    return [min(points, key=lambda point: abs(point[0] - step)) for step in wanted]


def recipe(config):
    """What every run does, in words."""
    return (
        f"{config.backbone}, images of {config.image_size} px, {config.labeled_batch_size} labelled and "
        f"{config.unlabeled_batch_size} unlabelled images a step, {config.steps:,} steps, {config.precision}"
    )


class Counted(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def operators_a_step(config, data_dir):
    """Operators that a step calls, views and optimiser included: on a GPU each has to be started, one after the other."""
    calls = []
    for steps in SHORT_RUNS:
        with tempfile.TemporaryDirectory() as folder, Counted() as counted:
            short = {"steps": steps, "eval_interval": 0, "checkpoint_interval": 0, "judge": "head", "refit": False}
            fit(replace(config, **short, data_dir=str(data_dir), run_dir=f"{folder}/run", progress=False))
        calls.append(counted.calls)
    return (calls[1] - calls[0]) / (SHORT_RUNS[1] - SHORT_RUNS[0])


def on_a_gpu(config, data_dir):
    """What a run would cost on an A100, in words: its operations, and the time to start them."""
    operations = count(config, config.image_size)[0] * config.steps
    low, high = (3600 * hours for hours in hours_on_an_a100(operations, config.precision))
    operators = operators_a_step(config, data_dir)
    fast, slow = (seconds * operators * config.steps / 60 for seconds in LAUNCH)
    return (
        f"{operations / 1e12:.0f} tera-operations, {low:.0f} to {high:.0f} seconds at the rates of gpu_estimate.md; but "
        f"{operators:.0f} operators a step have to be started one after the other: {fast:.1f} to {slow:.1f} minutes at 5 to 10 "
        "microseconds each"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path, help="the record of the sweep")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the --runs of the sweep (default: runs)")
    parser.add_argument("--data-dir", type=Path, required=True, help="with CIFAR-10: a short training counts operators")
    args = parser.parse_args()
    try:
        record = read_record(args.record)
        outcomes = [outcome for outcome in record.outcomes if outcome.result is not None]
        if not outcomes or len(outcomes) < len(record.outcomes):
            raise ValueError(f"{args.record}: got runs that failed or none at all; run the sweep again")
        curves = {outcome.run: thinned(curve(args.runs / outcome.run)) for outcome in outcomes}
    except (ValueError, OSError, LookupError) as error:
        raise SystemExit(f"pixels: {error}; expected the record and the runs of benchmarks/pixels.toml") from error
    rows = []
    for outcome in outcomes:
        points = curves[outcome.run]
        row = {"labels": outcome.column, "head": outcome.row, "seed": outcome.seed}
        row |= {f"step {step:,}": f"{accuracy:.1f}" for step, _, accuracy in points}
        rows.append(row | {"minutes": f"{outcome.result['seconds'] / 60:.1f}"})
    seconds = [outcome.result["seconds"] for outcome in outcomes]
    details = [
        {"row": outcome.row, "column": outcome.column, "seed": outcome.seed, "curve": curves[outcome.run]}
        for outcome in outcomes
    ]
    config = TrainConfig.preset(record.preset, **record.overrides).resolved()
    made = record.environment
    extra = {
        "sweep": f"{made['command']} ({made['date']}, commit {made['commit']})",
        "recipe": recipe(config),
        "median minutes of a run": round(statistics.median(seconds) / 60, 1),
        "a run on an A100, an estimate": on_a_gpu(config, args.data_dir),
    }
    write_result("pixels", rows, __doc__.split("\n\n", 2)[2].strip().replace("\n", " "), details=details, **extra)


if __name__ == "__main__":
    main()
