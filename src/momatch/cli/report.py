"""``momatch report``: one page about a run, or about several side by side."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from momatch.config import TrainConfig

if TYPE_CHECKING:
    from momatch.report.findings import Findings


@dataclass(frozen=True)
class Arguments:
    """Show runs on one HTML page that needs no network: words, curves, maps, outliers, mistakes.

    Attributes:
        runs: directories of runs: finished, under way or damaged. Several are shown side by side.
        out: file of the page (default: report.html in the directory of the run, or in this one for several runs).
        outliers: tell images of this dataset from the test images; may be repeated.
        data_dir: where known datasets lie ($MOMATCH_DATA).
        points: images on the map, at most.
        trust_code: import the module of a backbone of your own (package.module:factory) that a run names.
    """

    runs: tyro.conf.Positional[
        Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="")]
    ]
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    outliers: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="DATASET", help_behavior_hint="")
    ] = ()
    data_dir: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    points: Annotated[int, tyro.conf.arg(metavar="INT")] = 2000
    trust_code: tyro.conf.FlagCreatePairsOff[bool] = False


def main(argv: Sequence[str]) -> int:
    """Run ``momatch report``; returns the exit code: 1 if there is nothing to show."""
    arguments = tyro.cli(Arguments, prog="momatch report", args=list(argv))
    if not arguments.runs:
        raise ValueError("got no run, expected the directory of at least one: momatch report RUN")
    if arguments.points < 1:
        raise ValueError(f"--points: got {arguments.points}, expected at least 1")
    path = arguments.out or (arguments.runs[0] if len(arguments.runs) == 1 else Path()) / "report.html"
    _check(arguments.runs, path)
    from momatch.report import write_page
    from momatch.report.collect import collect
    from momatch.training.allocator import keep_large_blocks

    keep_large_blocks()
    findings = []
    for run, name in zip(arguments.runs, names(arguments.runs), strict=True):
        found = collect(
            run,
            outliers=arguments.outliers,
            data_dir=arguments.data_dir,
            most_points=arguments.points,
            name=name,
            trust_code=arguments.trust_code,
            say=partial(_say_about, name),
        )
        for problem in found.problems:
            _say_about(f"warning: {name}", problem)
        findings.append(found)
    if not any(map(has_something, findings)):
        raise ValueError(f"{', '.join(map(str, arguments.runs))}: nothing in it can be shown, so there is no report")
    print(f"report: {write_page(findings, path)}")
    return 0


def names(runs: Sequence[Path]) -> list[str]:
    """What the runs are called: by their folder, with as many folders above it as make the names differ."""
    paths = [run.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        found = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(found)) == len(found):
            return found
    # The same run twice.
    seen: Counter[str] = Counter()
    numbered = []
    for path in paths:
        seen[path.name] += 1
        numbered.append(path.name if seen[path.name] == 1 else f"{path.name} ({seen[path.name]})")
    return numbered


def has_something(found: "Findings") -> bool:
    """True if there is more to show than that there is nothing."""
    return isinstance(found.config, TrainConfig) or bool(found.metrics) or found.result is not None


def _check(runs: Sequence[Path], path: Path) -> None:
    """Known before the work, not after it."""
    from momatch.report.page import check_replaceable

    for run in runs:
        if not run.is_dir():
            kind = "got a file" if run.exists() else "there is no such directory"
            raise ValueError(f"{run}: {kind}, expected that of a run")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--out: got {path}, expected a file in a directory that exists")
    check_replaceable(path)


def _say_about(what: str, text: str) -> None:
    print(f"momatch report: {what}: {text}", file=sys.stderr)
