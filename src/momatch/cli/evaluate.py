"""``momatch evaluate``: figures about a trained classifier, as tables and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from momatch.cli.evaluate_tables import tables
from momatch.console.warned import warnings_said
from momatch.storage.durable import json_bytes, replace_files


@dataclass(frozen=True)
class Arguments:
    """Measure a trained classifier.

    Attributes:
        run: directory of a finished run.
        dataset: evaluate on this dataset instead of the run's own: a name or a path. Classes are matched by name.
        data_dir: where known datasets lie and are downloaded to ($MOMATCH_DATA).
        image_size: resize the shorter side of image files to this, then crop the centre to a square.
        test_fraction: evaluate on this fraction of each class, where another dataset has no test images.
        outliers: tell images of this dataset from the test images by each outlier score; may be repeated.
        json: write all figures to this file.
        batch_size: images a pass.
        trust_code: import the module of a backbone of your own (package.module:factory) that the run names.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    dataset: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    data_dir: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    image_size: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    test_fraction: Annotated[float | None, tyro.conf.arg(metavar="NUMBER", help_behavior_hint="")] = None
    outliers: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="DATASET", help_behavior_hint="")
    ] = ()
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    batch_size: Annotated[int, tyro.conf.arg(metavar="INT")] = 512
    trust_code: tyro.conf.FlagCreatePairsOff[bool] = False


def main(argv: Sequence[str]) -> int:
    """Run ``momatch evaluate``; returns the exit code."""
    arguments = tyro.cli(Arguments, prog="momatch evaluate", args=list(argv))
    # Known before the work, not after it.
    path = arguments.json
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"--json: got {path}, expected a file, not a directory, in a directory that exists")
    from momatch.inference.evaluate import evaluate_run
    from momatch.training.allocator import keep_large_blocks
    from momatch.training.run import Run

    keep_large_blocks()
    with warnings_said("evaluate"):
        figures = evaluate_run(
            Run.load(arguments.run, trust_code=arguments.trust_code),
            dataset=arguments.dataset,
            data_dir=arguments.data_dir,
            image_size=arguments.image_size,
            test_fraction=arguments.test_fraction,
            outliers=arguments.outliers,
            batch_size=arguments.batch_size,
        )
    for line in tables(figures):
        print(line)
    if path is not None:
        replace_files({path: json_bytes(figures)})
        print(f"\nall figures: {path}")
    return 0
