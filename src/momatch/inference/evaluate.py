"""`evaluate_run`: metrics of a finished run on its own or other data, and outlier detection against other datasets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.dataset import Dataset, Examples, Split
from momatch.data.load import BY_NAME, takes_size
from momatch.data.rows import Rows
from momatch.evaluation.evaluate import Outputs, evaluate_outputs, outlier_scores, run_classifier, separation
from momatch.evaluation.judging import judge_scores
from momatch.models.spec import ModelSpec
from momatch.storage.data_record import read_data_record
from momatch.training.data import HELD_OUT, load_by_name, load_run_data, part_classes
from momatch.training.inputs import input_of
from momatch.training.run import Run


def evaluate_run(
    run: Run,
    *,
    dataset: Dataset | str | None = None,
    data_dir: str | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    outliers: Sequence[str] = (),
    batch_size: int = 512,
) -> dict[str, Any]:
    """Metrics of a run's classifier, as plain values for JSON.

    Args:
        run: finished.
        dataset: None for the run's own data, which must not have changed; the `Dataset` that was passed to `fit`; or another
            dataset, as an object, name or path. Of the latter, the test images are used, or all labelled images if it has
            none, and classes are matched by name.
        data_dir: directory of the known datasets; None for the run's.
        image_size: as `TrainConfig.image_size`; None for the run's.
        test_fraction: as `TrainConfig.test_fraction`, for another dataset than the run's; None for the run's.
        outliers: datasets to detect as outliers against the test images; their test images are used if they have any. The
            run's held-out classes are always included.
        batch_size: images per batch.

    Returns:
        `Evaluation.to_dict`, with `run`, `dataset`, `images` (a description), `class_names` and `outliers`: dataset -> `n`,
        and `judge` (None without one), `as_trained` and `refitted` (None without a refitted head): score -> `auroc` and
        `fpr95`.

    Raises:
        ValueError: if the run is not finished; its data have changed; a dataset is unusable, has no test images or classes
            unknown to the run; or `test_fraction` differs from the run's for its own dataset.
    """
    classifier = run.classifier
    data_dir = data_dir or run.config.data_dir
    own, other = _choose(run, dataset, data_dir, image_size, test_fraction)
    outlier_rows: dict[str, Rows] = {}
    if own is not None:
        parts = part_classes(own, run.config.held_out_classes)
        test, source = parts.test, "test images"
        if test is None:
            raise ValueError(f"{run.config.dataset}: {input_of(own).no_test}, or name another dataset")
        if parts.unknown_test is not None and len(parts.unknown_test):
            outlier_rows[HELD_OUT] = fitted(parts.unknown_test.rows, run.spec)
    else:
        assert other is not None, "one of the two"
        test, source = _labeled_examples(run, other)
    # Loaded first, so that a wrong name fails at once.
    outlier_rows |= {name: _outlier_rows(run, name, data_dir) for name in outliers}
    names = run.model.stage_names
    inliers = run_classifier(classifier, fitted(test.rows, run.spec), stage_names=names, batch_size=batch_size)
    return {
        "run": str(run.directory),
        "dataset": dataset if isinstance(dataset, str) else run.config.dataset if dataset is None else dataset.name,
        "images": source,
        "class_names": list(run.class_names),
        **evaluate_outputs(classifier.head, inliers, test.labels, temperature=run.model.temperature).to_dict(),
        "outliers": {
            name: _separations(run, inliers, run_classifier(classifier, rows, stage_names=names, batch_size=batch_size))
            for name, rows in outlier_rows.items()
        },
    }


def test_outputs(run: Run) -> tuple[Outputs, Int64[Tensor, " n"]] | None:
    """A finished run's outputs for its own labelled test images, and their labels; None if there are none."""
    data = load_run_data(run.directory)
    input_of(data).check_model(run.classifier)
    test = part_classes(data, run.config.held_out_classes).test
    if test is None or not bool((test.labels >= 0).any()):
        return None
    return run_classifier(run.classifier, fitted(test.rows, run.spec)), test.labels


def _choose(
    run: Run, dataset: Dataset | str | None, data_dir: str | None, image_size: int | None, test_fraction: float | None
) -> tuple[Dataset | None, Dataset | None]:
    """The run's own data or another dataset; the other one is None."""
    if isinstance(dataset, Dataset):
        own = dataset.digest() == read_data_record(run.directory).digest
        loaded = dataset
    else:
        own = dataset is None or _is_same(dataset, run.config.dataset)
        if own and test_fraction not in (None, run.config.test_fraction):
            raise ValueError(
                f"test_fraction: got {test_fraction}, expected {run.config.test_fraction} as in training: another fraction "
                "splits training and test images differently"
            )
        if dataset is None and image_size in (None, run.config.image_size):
            loaded = load_run_data(run.directory, data_dir=data_dir)
        else:
            name = dataset or run.config.dataset
            if image_size is None:
                image_size = run.config.image_size if own else size_of_files(name, run.spec)
            fraction = run.config.test_fraction if own else test_fraction
            loaded = load_by_name(name, data_dir=data_dir, image_size=image_size, test_fraction=fraction)
    input_of(loaded).check_model(run.classifier)
    return (loaded, None) if own else (None, loaded)


def _labeled_examples(run: Run, dataset: Dataset) -> tuple[Examples, str]:
    """Labelled images of another dataset than the run's, and a description of them."""
    split = dataset.test or dataset.train
    examples = Examples(split.rows, _matched(dataset, split, run.class_names))
    return examples, "test images" if split is dataset.test else "all labelled images"


def _is_same(name: str, other: str) -> bool:
    """Whether two names mean the same dataset; paths are compared resolved."""
    if name in BY_NAME or other in BY_NAME:
        return name == other
    return Path(name).expanduser().resolve() == Path(other).expanduser().resolve()


def _outlier_rows(run: Run, name: str, data_dir: str | None) -> Rows:
    loaded = load_by_name(name, data_dir=data_dir, image_size=size_of_files(name, run.spec))
    input_of(loaded).check_model(run.classifier)
    return fitted((loaded.test or loaded.train).rows, run.spec)


def _separations(run: Run, inliers: Outputs, outliers: Outputs) -> dict[str, Any]:
    heads = {"as_trained": run.classifier.head, "refitted": run.refitted_head}
    judge = run.model.judge
    of_heads = {
        key: None if head is None else separation(outlier_scores(head, inliers), outlier_scores(head, outliers))
        for key, head in heads.items()
    }
    of_judge = None if judge is None else separation(judge_scores(judge, inliers), judge_scores(judge, outliers))
    return {"n": len(outliers), "judge": of_judge, **of_heads}


def size_of_files(name: str, spec: ModelSpec) -> int | None:
    """The size at which to load image files for a model; None for datasets with a fixed size."""
    return min(spec.image_size) if takes_size(name) else None


def fitted(rows: Rows, spec: ModelSpec) -> Rows:
    """The rows as the model takes them: images are converted to its channels and size, features are unchanged."""
    return rows.for_model((spec.in_channels, *spec.image_size))


def _matched(dataset: Dataset, split: Split, class_names: Sequence[str]) -> Int64[Tensor, " n"]:
    """The labels of `split` as indices of the run's classes, matched by name."""
    unknown = [name for name in dataset.class_names if name not in class_names]
    if unknown:
        raise ValueError(
            f"{dataset.name}: got classes unknown to the run: {_listed(unknown)}; expected some of "
            f"{_listed(class_names)}; pass images of other classes as outliers"
        )
    numbers = torch.tensor([class_names.index(name) for name in dataset.class_names])
    return torch.where(split.labels < 0, split.labels, numbers[split.labels.clamp_min(0)])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
