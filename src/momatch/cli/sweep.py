"""``momatch sweep``: carry out grids of settings x seeds in parallel, and make their tables."""

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
from momatch.config.layers import FlagError, preset_layer
from momatch.console.signals import Interrupted
from momatch.sweep.grid import SHIPPED, Grid, load_grid
from momatch.sweep.jobs import Job, Wishes, plan_jobs

if TYPE_CHECKING:
    from momatch.sweep.launch import Launcher
    from momatch.sweep.ledger import Ledger
    from momatch.sweep.sweep import Swept

_TEXT = tyro.conf.arg(metavar="TEXT", help_behavior_hint="")
_NUMBER = tyro.conf.arg(metavar="INT", help_behavior_hint="")
_DESCRIPTION = f"""\
Carry out grids of settings x seeds in parallel, and make their tables.

GRID: {", ".join(SHIPPED)}; or the path of a .toml file of your own (docs/experiments.md). Several grids share the runs
that they have in common. A sweep that was stopped or killed goes on when it is started again; what is done is not done twice.
"""


@dataclass(frozen=True)
class Arguments:
    """What the command line said.

    Attributes:
        grids: names or .toml files; none to write the page of --results from the records alone.
        preset: the settings beneath the grids' own: see momatch train --help.
        seeds: instead of those of the grids.
        set: a setting of all runs, on top of everything, such as steps=20; may be repeated.
        runs: folder of the run directories.
        out: folder of records and tables.
        workers: runs at a time (default: as many as the cores allow).
        threads: of each run.
        data_dir: where known datasets lie and are downloaded to ($MOMATCH_DATA).
        launcher: local: processes of this machine. slurm: a cluster's queue, by submitit. submitit-local: the same with
            processes of this machine, to try it out.
        slurm_partition: of the cluster.
        slurm_time: minutes that the cluster gives each job; one that needs more is queued again and goes on.
        slurm_gpus: GPUs of each job.
        results: afterwards write a page of results to this file, from all records in the folder of --out.
        trust_code: import the module of a backbone of your own (package.module:factory) that a grid names; one given with
            --set backbone=... needs no permission.
        dry_run: say what would be run and what is done; change nothing.
    """

    grids: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="GRID...")]]
    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "digits"
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT...", help_behavior_hint="")] = ()
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
    results: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    trust_code: tyro.conf.FlagCreatePairsOff[bool] = False
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False


def main(argv: Sequence[str]) -> int:
    """Run ``momatch sweep``; returns the exit code: 1 if a run failed."""
    arguments = tyro.cli(Arguments, prog="momatch sweep", description=_DESCRIPTION, args=list(argv))
    _check(arguments)
    if arguments.results is not None:
        from momatch.sweep.results import check_page, find_records, write_results

        check_page(arguments.results)
        if not arguments.grids:
            print(write_results(arguments.out, arguments.results))
            return 0
        # Now, not after hours of work.
        find_records(arguments.out)
    grids = [_checked(load_grid(grid)) for grid in arguments.grids]
    overrides = read_overrides(arguments.set)
    wishes = Wishes(
        preset=preset_layer(arguments.preset),
        overrides=overrides,
        seeds=arguments.seeds or None,
        runs=arguments.runs,
        data_dir=arguments.data_dir,
        trust_code=arguments.trust_code or "backbone" in overrides,
    )
    jobs, remarks = plan_jobs(grids, wishes)
    for remark in remarks:
        print(f"momatch sweep: note: {remark}", file=sys.stderr)
    from momatch.storage.machine import machine_facts
    from momatch.sweep.ledger import Ledger

    command, workers = ["momatch", "sweep", *argv], _workers(arguments)
    made = machine_facts(command, workers=workers or len(jobs), threads=arguments.threads)
    folder = arguments.out / arguments.preset
    ledgers = {
        grid.name: Ledger(grid, jobs, folder, preset=arguments.preset, overrides=overrides, made=made) for grid in grids
    }
    if arguments.dry_run:
        for line in forecast(jobs, ledgers):
            print(line)
        return 0
    from momatch.sweep.sweep import run_sweep

    swept = run_sweep(jobs, ledgers, _launcher(arguments, folder), workers=workers, folder=folder)
    if swept.signal is not None:
        raise Interrupted(
            f"stopped; {swept.done} of {len(jobs)} runs are done, what was under way is saved; "
            f"go on with: {shlex.join(command)}",
            swept.signal,
        )
    return _conclude(arguments, swept)


def _conclude(arguments: Arguments, swept: "Swept") -> int:
    """Say what came of a sweep that went to its end; returns the exit code."""
    for path in swept.tables:
        print(path)
    if swept.failed:
        runs = {outcome.run for outcome in swept.failed.values()}
        lines = [f"  {place} ({outcome.run}): {outcome.error}" for place, outcome in swept.failed.items()]
        words = f"momatch sweep: error: {len(runs)} of {swept.jobs} runs failed; the same command tries them again"
        print(words, *lines, sep="\n", file=sys.stderr)
    if arguments.results is not None:
        from momatch.sweep.results import write_results

        print(write_results(arguments.out, arguments.results))
    return 1 if swept.failed else 0


def forecast(jobs: Sequence[Job], ledgers: Mapping[str, "Ledger"]) -> Iterator[str]:
    """The lines that say what a sweep would do, and what is done."""
    from momatch.sweep.run_state import look, progress
    from momatch.sweep.sweep import known_outcomes

    counts: Counter[str] = Counter()
    for job in jobs:
        detail = ""
        try:
            state: str = look(job)
            if known_outcomes(job, ledgers) is not None:
                state = "done"
            elif state == "unfinished":
                detail = f" (step {progress(job.directory)[0]:,} of {job.config.steps:,})"
        except (ValueError, OSError) as error:
            state, detail = "refused", f": {error}"
        counts[state] += 1
        yield f"{state:10}  {job.name}{detail}"
        yield from (f"{'':14}{place}" for place in job.places)
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
    """Refuse what can be seen to be wrong before the work."""
    if not arguments.grids and (arguments.results is None or arguments.dry_run):
        raise FlagError(
            f"GRID: got none, expected {', '.join(SHIPPED)}, or the path of a .toml file; only --results alone needs none"
        )
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
    page = arguments.results
    if page is not None and (page.is_dir() or not page.absolute().parent.is_dir()):
        raise FlagError(f"--results: got {page}, expected a file, not a directory, in a directory that exists")


def _checked(grid: Grid) -> Grid:
    """The grid, if its figures are known: not after hours of work.

    Raises:
        ValueError: naming the grid, if there is no such figure.
    """
    from momatch.sweep.figures import figures_named

    try:
        for name in grid.figures:
            figures_named(name)
    except ValueError as error:
        raise ValueError(f"grid {grid.name!r}: {error}") from None
    return grid


def _workers(arguments: Arguments) -> int | None:
    """Runs at a time; None where a cluster's queue decides."""
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
