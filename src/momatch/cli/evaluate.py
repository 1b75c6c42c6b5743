"""``momatch evaluate``: metrics of a trained classifier, as tables and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from momatch.console.warned import warnings_said
from momatch.storage.durable import json_bytes, replace_files

#: A confusion matrix with more classes does not fit a terminal.
MOST_CLASSES = 20


@dataclass(frozen=True)
class Arguments:
    """Compute the metrics of a trained classifier.

    Attributes:
        run: directory of a finished run.
        dataset: name or path of a dataset to use instead of the run's own. Classes are matched by name.
        data_dir: directory of known datasets and downloads ($MOMATCH_DATA).
        image_size: resize the shorter side of image files to this, then crop the centre to a square.
        test_fraction: evaluate on this fraction of each class if the other dataset has no test images.
        outliers: dataset of outliers to detect among the test images, with every outlier score; may be repeated.
        json: write all metrics to this file.
        batch_size: images per batch.
        trust_code: allow importing the run's custom backbone (package.module:factory).
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
    path = arguments.json  # checked first: evaluation takes a while
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"--json: got {path}, expected a file in an existing directory")
    from momatch.inference.evaluate import evaluate_run
    from momatch.training.allocator import keep_large_blocks
    from momatch.training.run import Run

    keep_large_blocks()
    with warnings_said("evaluate"):
        metrics = evaluate_run(
            Run.load(arguments.run, trust_code=arguments.trust_code),
            dataset=arguments.dataset,
            data_dir=arguments.data_dir,
            image_size=arguments.image_size,
            test_fraction=arguments.test_fraction,
            outliers=arguments.outliers,
            batch_size=arguments.batch_size,
        )
    for line in tables(metrics):
        print(line)
    if path is not None:
        replace_files({path: json_bytes(metrics)})
        print(f"\nall metrics: {path}")
    return 0


def tables(metrics: Mapping[str, Any]) -> Iterator[str]:
    """All tables of the metrics that `evaluate_run` returns."""
    yield f"{metrics['run']} on {metrics['dataset']}: {metrics['n']:,} {metrics['images']}"
    yield ""
    yield from _overall(metrics)
    yield ""
    names = [f"{k} {name}" if name != str(k) else name for k, name in enumerate(metrics["class_names"])]
    yield from _per_class(metrics, names)
    yield ""
    yield from (
        _matrix(metrics["confusion"], names) if len(names) <= MOST_CLASSES else _pairs(metrics["confusion"], names)
    )
    for name, found in metrics["outliers"].items():
        yield ""
        yield from _outliers(name, found)
    if metrics["outliers"]:
        yield "AUROC: 1 is perfect, 0.5 is chance. FPR95: share of outliers accepted when 95 % of the test images are."


def _overall(metrics: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        ("accuracy", _percent(metrics["accuracy"])),
        ("calibration error (ECE)", _percent(metrics["ece"])),
        ("negative log likelihood", _number(metrics["nll"])),
        ("compactness: mean distance to the assigned center", _number(metrics["compactness"])),
        ("             and to the true class's center", _number(metrics["compactness_true"])),
        ("spread of the centers relative to the class means (0: collapsed)", _number(metrics["center_spread"])),
        ("distance of centers to class means, relative to class spread", _number(metrics["center_offset"])),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"{name:{width}}  {value:>9}"


def _per_class(metrics: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    rows = [
        (name, sum(counts), accuracy)
        for name, counts, accuracy in zip(names, metrics["confusion"], metrics["per_class"], strict=True)
    ]
    title = "class"
    if len(rows) > MOST_CLASSES:
        title = f"worst {MOST_CLASSES} classes"
        seen = [row for row in rows if row[2] is not None]
        rows = sorted(seen, key=lambda row: row[2])[:MOST_CLASSES]
    width = max(len(title), *(len(name) for name, _, _ in rows))
    yield f"{title:{width}}  {'images':>7}  {'accuracy':>9}"
    for name, count, accuracy in rows:
        yield f"{name:{width}}  {count:>7,}  {_percent(accuracy):>9}"


def _matrix(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Iterator[str]:
    numbers = range(len(names))
    cell = 1 + max(len(str(value)) for value in (*numbers, *(count for row in confusion for count in row)))
    title = "confusion"
    width = max(len(title), *(len(name) for name in names))
    yield f"{title:{width}} {''.join(f'{k:>{cell}}' for k in numbers)}   (rows: true class, columns: predicted class)"
    for name, row in zip(names, confusion, strict=True):
        # Zeros as dots, so that mistakes stand out.
        yield f"{name:{width}} {''.join(str(count or '.').rjust(cell) for count in row)}"


def _pairs(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Iterator[str]:
    mistakes = [(count, k, j) for k, row in enumerate(confusion) for j, count in enumerate(row) if count > 0 and j != k]
    worst = sorted(mistakes, key=lambda mistake: (-mistake[0], *mistake[1:]))[:MOST_CLASSES]
    yield "most confused classes (images, true class, predicted class)"
    width = max((len(names[k]) for _, k, _ in worst), default=0)
    for count, k, j in worst:
        yield f"{count:>7,}  {names[k]:{width}}  as  {names[j]}"
    if not worst:
        yield "      0"


def _outliers(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    by = {"judge": found["judge"], "head as trained": found["as_trained"], "head refitted": found["refitted"]}
    shown = {name: scores for name, scores in by.items() if scores is not None}
    title = f"outliers: {name}, {found['n']:,} images"
    width = max(len(title), 24)
    yield f"{title:{width}}" + "".join(f"  {head:>17}" for head in shown)
    yield f"{'score':{width}}" + f"  {'AUROC':>8} {'FPR95':>8}" * len(shown)
    for score in dict.fromkeys(score for scores in shown.values() for score in scores):
        values = (scores.get(score) for scores in shown.values())
        yield (
            f"{score:{width}}"
            + "".join(
                f"  {'':>17}" if value is None else f"  {value['auroc']:>8.4f} {_percent(value['fpr95']):>8}"
                for value in values
            ).rstrip()
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
