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
    from momatch.report.run_report import RunReport


@dataclass(frozen=True)
class Arguments:
    """Write an interactive HTML report about one run or several: metrics, curves, latent space, outliers, mistakes.

    Attributes:
        runs: run directories, finished or not. Several are shown side by side.
        out: output file (default: report.html in the run directory, or in the current one for several runs).
        outliers: show how well images of this dataset are detected as outliers; may be repeated.
        data_dir: directory of known datasets ($MOMATCH_DATA).
        points: number of images on the map of the latent space, at most.
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
    """Run ``momatch report``; returns the exit code."""
    arguments = tyro.cli(Arguments, prog="momatch report", args=list(argv))
    if not arguments.runs:
        raise ValueError("got no run, expected at least one run directory: momatch report RUN")
    if arguments.points < 1:
        raise ValueError(f"--points: got {arguments.points}, expected at least 1")
    path = arguments.out or (arguments.runs[0] if len(arguments.runs) == 1 else Path()) / "report.html"
    _check(arguments.runs, path)
    from momatch.report import write_page
    from momatch.report.collect import collect
    from momatch.training.allocator import keep_large_blocks

    keep_large_blocks()
    reports = []
    for run, name in zip(arguments.runs, unique_names(arguments.runs), strict=True):
        report = collect(
            run,
            outliers=arguments.outliers,
            data_dir=arguments.data_dir,
            most_points=arguments.points,
            name=name,
            trust_code=arguments.trust_code,
            log=partial(_log, name),
        )
        for problem in report.problems:
            _log(f"warning: {name}", problem)
        reports.append(report)
    if not any(map(has_content, reports)):
        raise ValueError(f"{', '.join(map(str, arguments.runs))}: there is nothing to show, so no report was written")
    print(f"report: {write_page(reports, path)}")
    return 0


def unique_names(runs: Sequence[Path]) -> list[str]:
    """Names of the runs on the page: the directory, with as many parents as it takes to make the names unique."""
    paths = [run.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        found = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(found)) == len(found):
            return found
    # The same run was given twice.
    seen: Counter[str] = Counter()
    numbered = []
    for path in paths:
        seen[path.name] += 1
        numbered.append(path.name if seen[path.name] == 1 else f"{path.name} ({seen[path.name]})")
    return numbered


def has_content(report: "RunReport") -> bool:
    """True if at least one file of the run could be read."""
    return isinstance(report.config, TrainConfig) or bool(report.metrics) or report.result is not None


def _check(runs: Sequence[Path], path: Path) -> None:
    """Refuse bad arguments before the slow work."""
    from momatch.report.page import check_replaceable

    for run in runs:
        if not run.is_dir():
            kind = "got a file" if run.exists() else "there is no such directory"
            raise ValueError(f"{run}: {kind}, expected a run directory")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--out: got {path}, expected a file in an existing directory")
    check_replaceable(path)


def _log(subject: str, text: str) -> None:
    print(f"momatch report: {subject}: {text}", file=sys.stderr)
