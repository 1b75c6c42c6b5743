"""``momatch sweep``: train grids of settings x seeds in parallel, and write their tables."""

import os
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import tyro

from momatch.config import TrainConfig
from momatch.config.layers import FlagError, Layer, code_named_in, preset_layer
from momatch.console.signals import Interrupted
from momatch.sweep.grid import load_grid, paper_grids
from momatch.sweep.jobs import Job, SweepOptions, plan_jobs, read_progress, run_state

if TYPE_CHECKING:
    from momatch.sweep.launch import Launcher
    from momatch.sweep.sweep import RecordKeeper, SweepResult

_TEXT = tyro.conf.arg(metavar="TEXT", help_behavior_hint="")
_NUMBER = tyro.conf.arg(metavar="INT", help_behavior_hint="")
_DESCRIPTION = """\
Train grids of settings x seeds in parallel, and write their tables.

GRID is the path of a .toml file (docs/experiments.md){names}. Several grids share the runs that they have in common. A sweep
that was stopped or killed resumes when the same command is run again.
"""
_RESULTS = "python -m reproduction.results PAGE --records DIR"


@dataclass(frozen=True)
class Arguments:
    """The command line.

    Attributes:
        grids: .toml files, or names of the paper's grids.
        preset: the settings below the grids' own: see momatch train --help.
        seeds: instead of those of the grids.
        outliers: datasets to detect as outliers, instead of those of the grids that name any; runs on features take features
            files.
        set: a setting for all runs, on top of all others, such as steps=20; may be repeated.
        runs: folder of the run directories.
        out: folder of records and tables.
        workers: runs at a time (default: as many as the cores allow).
        threads: of each run.
        data_dir: folder of the known datasets, downloaded there as needed ($MOMATCH_DATA).
        launcher: local: processes of this machine. slurm: a cluster's queue, through submitit. submitit-local: the same with
            processes of this machine, to try it out.
        slurm_partition: of the cluster.
        slurm_time: minutes for each job; one that needs more is queued again and resumed.
        slurm_gpus: GPUs for each job.
        trust_code: import the module of a backbone or algorithm of your own (package.module:name) that a grid names; one given
            with --set needs no permission.
        dry_run: print what would be run and what is done; change nothing.
    """

    grids: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="GRID...", help_behavior_hint="")]]
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: digits)")] = None
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT...", help_behavior_hint="")] = ()
    outliers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DATASET...", help_behavior_hint="")] = ()
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=VALUE", help_behavior_hint="")
    ] = ()
    runs: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("sweeps")
    workers: Annotated[int | None, _NUMBER] = None
    threads: Annotated[int, tyro.conf.arg(metavar="INT")] = 1
    data_dir: Annotated[str | None, _TEXT] = None
    launcher: Literal["local", "slurm", "submitit-local"] = "local"
    slurm_partition: Annotated[str | None, _TEXT] = None
    slurm_time: Annotated[int, tyro.conf.arg(metavar="INT")] = 24 * 60
    slurm_gpus: Annotated[int, tyro.conf.arg(metavar="INT")] = 0
    trust_code: tyro.conf.FlagCreatePairsOff[bool] = False
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False


def main(argv: Sequence[str]) -> int:
    """Run ``momatch sweep``; returns the exit code: 1 if a run failed."""
    if any(word.partition("=")[0] == "--results" for word in argv):
        raise FlagError(
            f"--results: got a flag that is gone; in a checkout of the repository, write the results page with: {_RESULTS}"
        )
    named = ", ".join(paper_grids())
    description = _DESCRIPTION.format(names=f", or one of the paper's grids: {named}" if named else "")
    arguments = tyro.cli(Arguments, prog="momatch sweep", description=description, args=list(argv))
    _check(arguments)
    grids = [load_grid(grid) for grid in arguments.grids]
    overrides = read_overrides(arguments.set)
    options = SweepOptions(
        preset=Layer({}) if arguments.preset is None else preset_layer(arguments.preset),
        overrides=overrides,
        seeds=arguments.seeds or None,
        runs=arguments.runs,
        data_dir=arguments.data_dir,
        trust_code=arguments.trust_code or code_named_in(overrides),
        outliers=arguments.outliers or None,
    )
    jobs, notes = plan_jobs(grids, options)
    for note in notes:
        print(f"momatch sweep: note: {note}", file=sys.stderr)
    from momatch.storage.machine import machine_facts
    from momatch.sweep.sweep import RecordKeeper, run_sweep

    command, workers = ["momatch", "sweep", *argv], _workers(arguments)
    environment = machine_facts(command, workers=workers or len(jobs), threads=arguments.threads)
    preset = arguments.preset or _default_preset(jobs)
    folder = arguments.out / preset
    about: dict[str, Any] = {"preset": preset, "overrides": overrides, "environment": environment}
    keepers = {grid.name: RecordKeeper(grid, jobs, folder, **about) for grid in grids}
    if arguments.dry_run:
        for line in forecast(jobs, keepers):
            print(line)
        return 0
    result = run_sweep(jobs, keepers, _launcher(arguments, folder), workers=workers, folder=folder)
    if result.signal is not None:
        raise Interrupted(
            f"stopped; {result.done} of {len(jobs)} runs are done, the others are saved; "
            f"resume with: {shlex.join(command)}",
            result.signal,
        )
    return _report(result)


def _default_preset(jobs: Sequence[Job]) -> str:
    """The preset of a sweep that names none: a features file brings its own."""
    return next((job.config.preset_name for job in jobs if job.config.preset_name is not None), "digits")


def _report(result: "SweepResult") -> int:
    """Print the tables' paths and the failed runs; returns the exit code."""
    for path in result.tables:
        print(path)
    if result.failed:
        runs = {outcome.run for outcome in result.failed.values()}
        lines = [f"  {trial} ({outcome.run}): {outcome.error}" for trial, outcome in result.failed.items()]
        words = (
            f"momatch sweep: error: {len(runs)} of {result.jobs} runs failed; run the same command to try them again"
        )
        print(words, *lines, sep="\n", file=sys.stderr)
    return 1 if result.failed else 0


def forecast(jobs: Sequence[Job], keepers: Mapping[str, "RecordKeeper"]) -> Iterator[str]:
    """What a sweep would run, and what is done, line by line."""
    from momatch.sweep.sweep import recorded_outcomes

    counts: Counter[str] = Counter()
    for job in jobs:
        detail = ""
        try:
            state: str = run_state(job)
            if recorded_outcomes(job, keepers) is not None:
                state = "done"
            elif state == "unfinished":
                detail = f" (step {read_progress(job.directory)[0]:,} of {job.config.steps:,})"
        except (ValueError, OSError) as error:
            state, detail = "refused", f": {error}"
        counts[state] += 1
        yield f"{state:10}  {job.name}{detail}"
        yield from (f"{'':14}{trial}" for trial in job.trials)
    yield f"{len(jobs)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())


def read_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Settings from KEY=VALUE, each value as in TOML, or else as text: steps=20, lr=1e-2, head=linear.

    Raises:
        FlagError: if there is no "=".
    """
    overrides = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key.strip() and equals):
            raise FlagError(f"--set: got {word!r}, expected KEY=VALUE, for example steps=20")
        overrides[key.strip().replace("-", "_")] = _value(key.strip().replace("-", "_"), text.strip())
    return overrides


def _value(key: str, text: str) -> Any:
    kinds = {field.name: get_args(field.type) or (field.type,) for field in fields(TrainConfig)}.get(key, ())
    if text == "None" and NoneType in kinds:
        return None
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = read.get("value") if len(read) == 1 else text
    # A text that looks like a number: held_out_classes=6.
    return text if str in kinds and not isinstance(value, str) else value


def _check(arguments: Arguments) -> None:
    """Refuse wrong arguments before anything is run."""
    if not arguments.grids:
        named = "".join(f"{name}, " for name in paper_grids())
        raise FlagError(f"GRID: got none, expected {named}{'or ' if named else ''}the path of a .toml file")
    for name in ("workers", "threads", "slurm_time"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise FlagError(f"--{name.replace('_', '-')}: got {value}, expected at least 1")
    if arguments.slurm_gpus < 0:
        raise FlagError(f"--slurm-gpus: got {arguments.slurm_gpus}, expected 0 or more")
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise FlagError(f"--seeds: got {' '.join(map(str, arguments.seeds))}, expected different ones")
    for name in ("runs", "out"):
        folder = getattr(arguments, name)
        if folder.exists() and not folder.is_dir():
            raise FlagError(f"--{name}: got {folder}, which is a file, expected a directory")


def _workers(arguments: Arguments) -> int | None:
    """Runs at a time; None if a cluster's queue decides."""
    if arguments.workers is not None or arguments.launcher == "slurm":
        return arguments.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // arguments.threads)


def _launcher(arguments: Arguments, folder: Path) -> "Launcher":
    from momatch.sweep.launch import ClusterLauncher, LocalLauncher

    if arguments.launcher == "local":
        return LocalLauncher(arguments.threads, folder / "workers")
    parameters = {
        "name": "momatch",
        "timeout_min": arguments.slurm_time,
        "cpus_per_task": arguments.threads,
        "gpus_per_node": arguments.slurm_gpus,
        "slurm_partition": arguments.slurm_partition,
    }
    given = {key: value for key, value in parameters.items() if value is not None}
    slurm = arguments.launcher == "slurm"
    return ClusterLauncher(arguments.threads, folder / "submitit", slurm=slurm, parameters=given)
