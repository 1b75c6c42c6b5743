"""``momatch evaluate``: figures about a trained classifier, as tables and as JSON."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from momatch.commands.evaluate_tables import tables

if TYPE_CHECKING:
    from momatch.training.run import Run


@dataclass(frozen=True)
class Arguments:
    """Measure a trained classifier.

    Attributes:
        run: directory of a finished run.
        dataset: evaluate on this dataset instead of the run's own: a name or a path. Classes are matched by name.
        data_dir: where known datasets lie and are downloaded to ($MOMATCH_DATA).
        image_size: resize the shorter side of image files to this, then crop the centre to a square.
        test_fraction: hold out this fraction of each class, where the dataset has no test images.
        outliers: tell images of this dataset from the test images by each outlier score; may be repeated.
        json: write all figures to this file.
        batch_size: images a pass.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    dataset: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    data_dir: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    image_size: Annotated[int | None, tyro.conf.arg(metavar="INTEGER", help_behavior_hint="")] = None
    test_fraction: Annotated[float | None, tyro.conf.arg(metavar="NUMBER", help_behavior_hint="")] = None
    outliers: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="DATASET", help_behavior_hint="")
    ] = ()
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    batch_size: Annotated[int, tyro.conf.arg(metavar="INTEGER")] = 512


def main(argv: Sequence[str]) -> int:
    """Run ``momatch evaluate``; returns the exit code."""
    arguments = tyro.cli(Arguments, prog="momatch evaluate", args=list(argv))
    # Known before the work, not after it.
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise ValueError(f"--json: got {arguments.json}, expected a file in a directory that exists")
    from momatch.training.run import Run

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures = evaluate_run(
            Run.load(arguments.run),
            dataset=arguments.dataset,
            data_dir=arguments.data_dir,
            image_size=arguments.image_size,
            test_fraction=arguments.test_fraction,
            outliers=arguments.outliers,
            batch_size=arguments.batch_size,
        )
    for warning in caught:
        print(f"momatch evaluate: warning: {warning.message}", file=sys.stderr)
    for line in tables(figures):
        print(line)
    if arguments.json is not None:
        _write(arguments.json, figures)
        print(f"\nall figures: {arguments.json}")
    return 0


def evaluate_run(
    run: "Run",
    *,
    dataset: str | None = None,
    data_dir: str | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    outliers: Sequence[str] = (),
    batch_size: int = 512,
) -> dict[str, Any]:
    """Figures about a run's classifier, as plain values.

    Args:
        run: finished.
        dataset: name or path; None for the run's own. Its test images are taken; of another dataset than the run's all labelled
            images, where it has no test images.
        data_dir: where known datasets lie; None for the run's.
        image_size: of image files, as in training; None for the run's.
        test_fraction: held out where there are no test images; None for the run's.
        outliers: datasets whose images (test images, where there are any) are to be told from the test images.
        batch_size: images a pass.

    Returns:
        What `Evaluation.to_dict` gives, with `run`, `dataset`, `class_names` and `outliers`: dataset -> `n`, `as_trained` and
        `refitted` (None without a refitted head), each score -> auroc and fpr95.

    Raises:
        ValueError: if the run is not finished, a dataset cannot be used, has no test images or classes that the run does not
            know.
    """
    from momatch.evaluate import evaluate_outputs, outlier_scores, run_classifier, separation

    classifier, config = run.classifier, run.config
    if dataset is None or dataset == config.dataset:
        image_size = config.image_size if image_size is None else image_size
        test_fraction = config.test_fraction if test_fraction is None else test_fraction
        loaded = _load(config.dataset, data_dir or config.data_dir, image_size, test_fraction)
        split = loaded.test
        if split is None:
            raise ValueError(
                f"{config.dataset}: got no test images; hold some out with --test-fraction, in training as well, or name another "
                "--dataset"
            )
    else:
        image_size = _size_of_files(dataset, run) if image_size is None else image_size
        loaded = _load(dataset, data_dir or config.data_dir, image_size, test_fraction or 0.0)
        split = loaded.test or loaded.train
    labels = _matched(loaded, split, run.class_names)
    inliers = run_classifier(classifier, _fitted(split, run), batch_size=batch_size)
    figures = {
        "run": str(run.directory),
        "dataset": dataset or config.dataset,
        "class_names": list(run.class_names),
        **evaluate_outputs(classifier.head, inliers, labels).to_dict(),
        "outliers": {},
    }
    heads = {"as_trained": classifier.head, "refitted": run.refitted_head}
    for name in outliers:
        other = _load(name, data_dir or config.data_dir, _size_of_files(name, run), 0.0)
        strangers = run_classifier(classifier, _fitted(other.test or other.train, run), batch_size=batch_size)
        figures["outliers"][name] = {"n": len(strangers.z)} | {
            key: head and separation(outlier_scores(head, inliers), outlier_scores(head, strangers))
            for key, head in heads.items()
        }
    return figures
