"""``momatch suggest``: which images to label next."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from momatch.console.warned import warnings_said
from momatch.console.wording import plural
from momatch.storage.durable import check_target, replace_files

if TYPE_CHECKING:
    import numpy as np

    from momatch.suggestions import Pool, Suggestions

#: Names shown of each list, if it is printed.
_SHOWN = 100


@dataclass(frozen=True)
class Arguments:
    """Suggest which images to label next.

    Without labels: the most typical image of each of n clusters. With labels or a run: images near which a label is needed
    most. Images that look like no class are listed apart.

    Attributes:
        source: a features file (momatch embed) or the directory of a finished run.
        labels: features files only: where to read labels, as for momatch train; by default also in the labels.csv of momatch
            label beside the features file.
        n: images to suggest.
        out: write them to this CSV file, with an empty column label to fill in; likely outliers go to NAME-outliers.csv.
        seed: seed for clusters, and for the images considered if there are many.
        overwrite: replace an existing file.
        trust_code: allow importing the run's custom backbone (package.module:factory).
    """

    source: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FEATURES_OR_RUN")]]
    labels: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    n: Annotated[int, tyro.conf.arg(metavar="INT")] = 20
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.csv", help_behavior_hint="")] = None
    seed: Annotated[int, tyro.conf.arg(metavar="INT")] = 0
    overwrite: bool = False
    trust_code: tyro.conf.FlagCreatePairsOff[bool] = False


def main(argv: Sequence[str]) -> int:
    """Run ``momatch suggest``; returns the exit code."""
    arguments = tyro.cli(Arguments, prog="momatch suggest", args=list(argv))
    if arguments.out is not None:
        if arguments.out.suffix.lower() != ".csv":
            raise ValueError(f"out: got {arguments.out}, expected a .csv file")
        check_target(arguments.out, overwrite=arguments.overwrite)
    from momatch.suggestions import page_labels, read_pool

    labels: str | Path | None = arguments.labels
    if labels is None and (labels := page_labels(arguments.source)) is not None:
        print(f"momatch suggest: labels are read from {labels} (--labels for others)", file=sys.stderr)
    with warnings_said("suggest"):
        pool = read_pool(arguments.source, labels=labels, trust_code=arguments.trust_code)
        found = pool.suggest(arguments.n, seed=arguments.seed)
    if arguments.out is None:
        for line in lines(pool, found):
            print(line)
        return 0
    of_outliers = arguments.out.with_name(f"{arguments.out.stem}-outliers{arguments.out.suffix}")
    files = {arguments.out: table(pool, found)}
    if len(found.outliers):
        files[of_outliers] = outlier_table(pool, found.outliers)
    replace_files(files)
    print(f"{arguments.out}: {plural(len(found.rows), 'image')} to label")
    if len(found.outliers):
        print(f"{of_outliers}: {plural(len(found.outliers), 'image')} unlike every class")
    return 0


def lines(pool: "Pool", found: "Suggestions") -> Iterator[str]:
    """Both lists, for a person."""
    for row, guess, confidence in _rows(found):
        known = f"  {pool.class_names[guess]}, {confidence:.0%} sure" if guess >= 0 else ""
        yield f"{_printable(pool.name(row))}{known}"
    if len(found.outliers):
        yield ""
        yield f"{plural(len(found.outliers), 'image')} unlike every class, the most outlying first:"
        yield from (_printable(pool.name(row)) for row in found.outliers[:_SHOWN].tolist())
        if len(found.outliers) > _SHOWN:
            yield f"and {len(found.outliers) - _SHOWN:,} more; --out FILE.csv lists all"


def _printable(name: str) -> str:
    """A name in one line: line breaks and other control characters are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


def table(pool: "Pool", found: "Suggestions") -> bytes:
    """The suggested images as CSV: path, row in the dataset, an empty label, guess and its probability."""
    return _csv(
        ("path", "label", "row", "guess", "confidence"),
        (
            (_path(pool, row), "", pool.dataset_rows[row], *_known(pool, guess, confidence))
            for row, guess, confidence in _rows(found)
        ),
    )


def outlier_table(pool: "Pool", rows: "np.ndarray") -> bytes:
    """The likely outliers as CSV: path, an empty label and row in the dataset."""
    return _csv(("path", "label", "row"), ((_path(pool, row), "", pool.dataset_rows[row]) for row in rows.tolist()))


def _rows(found: "Suggestions") -> Iterator[tuple[int, int, float]]:
    """Row, guess and confidence of each suggested image."""
    return zip(found.rows.tolist(), found.guess.tolist(), found.confidence.tolist(), strict=True)


def _path(pool: "Pool", row: int) -> str:
    return pool.files[row] if pool.files else ""


def _known(pool: "Pool", guess: int, confidence: float) -> tuple[str, str]:
    return (pool.class_names[guess], f"{confidence:.4f}") if guess >= 0 else ("", "")


def _csv(columns: Sequence[str], rows: Iterator[tuple[object, ...]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    # File names that are not valid UTF-8 are written as their original bytes.
    return text.getvalue().encode("utf-8", "surrogateescape")
