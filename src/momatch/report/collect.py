"""`collect`: everything the report shows about a run, from whatever parts of it exist."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from momatch.config import TrainConfig
from momatch.data.dataset import UNLABELED, Dataset
from momatch.evaluation.evaluate import Evaluation, evaluate_outputs
from momatch.inference.evaluate import fitted
from momatch.report.gaussianity import cluster_moments
from momatch.report.latent_map import map_points
from momatch.report.predictions import (
    Predictions,
    confident_mistakes,
    file_names,
    measure_densities,
    most_outlying,
    pool_sample,
    pool_truths,
    to_label,
)
from momatch.report.read_run import (
    Model,
    RunData,
    RunFiles,
    attempt,
    checkpoint_model,
    disagreements,
    read_data,
    read_outliers,
    read_run,
    rewrite_advice,
    saved_model,
)
from momatch.report.run_report import ClusterMoments, Missing, OutlierList, Picture, RunReport
from momatch.report.tables import MAX_LISTED
from momatch.storage.run_directory import OUTLIERS
from momatch.training.data import HELD_OUT
from momatch.training.inputs import input_of
from momatch.training.pool_outliers import read_outlier_list

Log = Callable[[str], None]

_SEE = "(see the problems of this run)"


def collect(
    directory: Path,
    *,
    outliers: Sequence[str] = (),
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    most_points: int = 2000,
    name: str | None = None,
    trust_code: bool | str = False,
    log: Log = lambda text: None,
) -> RunReport:
    """Collect what the report shows about the run in `directory`. Changes nothing on disk and downloads nothing.

    Missing or damaged parts do not raise: the report says what is wrong and holds what can be shown without them. A run
    without a model is shown by its newest intact checkpoint.

    Args:
        directory: the run directory: finished, unfinished, damaged or empty.
        outliers: other datasets, by name or path, to compare with the test images as outliers.
        dataset: the dataset of the run, if it was passed to `fit`; None to load it by name.
        data_dir: directory of known datasets; None for the run's.
        most_points: number of images on the map, at most.
        name: name of the run on the page; None for that of the directory.
        trust_code: as for `Run.load`.
        log: called with a message before each slow part.

    Raises:
        UntrustedCodeError: if the run names a backbone that has to be imported and `trust_code` is not set.
        ValueError: if there is no such directory, or `most_points` is below 1.
    """
    directory = Path(directory)
    if not directory.is_dir():
        kind = "got a file" if directory.exists() else "there is no such directory"
        raise ValueError(f"{directory}: {kind}, expected a run directory")
    if most_points < 1:
        raise ValueError(f"most_points: got {most_points}, expected at least 1")
    files = read_run(directory)
    report = _without_model(name or directory.resolve().name, directory, files)
    model, data, problems = _model_and_data(directory, files, dataset, data_dir, trust_code=trust_code, log=log)
    report = replace(report, problems=(*report.problems, *problems))
    listed, problems = _outlier_list(directory, data)
    report = replace(report, outlier_list=listed, problems=(*report.problems, *problems))
    if isinstance(model, Missing):
        names = () if isinstance(data, Missing) else data.parts.class_names
        return _all_missing(replace(report, class_names=names), model)
    report = replace(report, class_names=model.spec.class_names, has_judge=model.judge is not None)
    if isinstance(data, Missing):
        return _all_missing(report, data)
    assert isinstance(files.config, TrainConfig), "the data is loaded by the settings"
    test = attempt(lambda: _predict_test(model, data, log))
    if isinstance(test, Missing):
        report = _all_missing(report, test)
    else:
        others, problems = _predict_outliers(model, data, outliers, data_dir or files.config.data_dir, log)
        report = replace(report, problems=(*report.problems, *problems))
        report = _with_test(report, [test, *others], files.config, most_points, log)
    pool, outlying, to_label, notes = _of_pool(model, data, files.config, log)
    if isinstance(test, Missing) and not isinstance(pool, Missing):
        report = replace(report, points=attempt(lambda: map_points([pool], most_points, log)))
    problems = disagreements(files.config, files.result, model, report.evaluation)
    report = replace(report, outlying=outlying, to_label=to_label, notes=(*report.notes, *notes))
    return replace(report, problems=(*report.problems, *problems))


def _without_model(name: str, directory: Path, files: RunFiles) -> RunReport:
    nothing = Missing("This was not computed.")
    return RunReport(
        name=name,
        directory=directory,
        problems=files.problems,
        config=files.config,
        result=files.result,
        metrics=files.metrics,
        class_names=(),
        evaluation=nothing,
        points=nothing,
        clusters=nothing,
        densities=nothing,
        mistakes=nothing,
        outlying=nothing,
    )


def _all_missing(report: RunReport, why: Missing) -> RunReport:
    return replace(
        report, evaluation=why, points=why, clusters=why, densities=why, mistakes=why, outlying=why, to_label=why
    )


def _model_and_data(
    directory: Path, files: RunFiles, dataset: Dataset | None, data_dir: str | None, *, trust_code: bool | str, log: Log
) -> tuple[Model | Missing, RunData | Missing, list[str]]:
    """The model, the data, and what is wrong with them."""
    problems: list[str] = []
    model: Model | Missing = attempt(lambda: saved_model(directory, trust_code=trust_code))
    # An unfinished run has no model yet, which is not a problem.
    expected = files.result is not None or (directory / "model.json").exists()
    if isinstance(model, Missing) and expected:
        problems.append(f"The model cannot be used: {model.reason}{rewrite_advice(directory)}")
    config = files.config
    if isinstance(config, Missing):
        unknown = Missing("Without the settings, the dataset of the run is unknown.")
        return (unknown if isinstance(model, Missing) else model), unknown, problems
    log(f"loading {config.dataset}")
    data = attempt(lambda: read_data(directory, config, data_dir, dataset))
    if isinstance(data, Missing):
        problems.append(f"The dataset cannot be loaded: {data.reason}")
        gone = Missing(f"This needs the dataset {config.dataset!r}, which could not be loaded {_SEE}.")
        return (gone if isinstance(model, Missing) else model), gone, problems
    problems += data.warnings
    if isinstance(model, Missing):
        log("loading the newest checkpoint")
        model = attempt(partial(checkpoint_model, directory, config, data, trust_code=trust_code))
        problems += [f"There is no model to show: {model.reason}"] if isinstance(model, Missing) else model.warnings
    if isinstance(model, Missing):
        return Missing(f"There is no model to show {_SEE}."), data, problems
    if model.spec.class_names != data.parts.class_names:
        problems.append(
            f"The classes of {config.dataset!r} differ from those of the model; restore the dataset of the training."
        )
        return model, Missing(f"The dataset is not the one that the model was trained on {_SEE}."), problems
    foreign = attempt(lambda: input_of(data.dataset).check_model(model.classifier))
    if isinstance(foreign, Missing):
        problems.append(foreign.reason)
        return model, Missing(f"The features are not those that the model was trained on {_SEE}."), problems
    return model, data, problems


def _outlier_list(directory: Path, data: RunData | Missing) -> tuple[OutlierList | None, list[str]]:
    """The run's list of likely outliers, with pictures of the first if the dataset is there; and what is wrong with it."""
    path = directory / OUTLIERS
    listed = attempt(lambda: read_outlier_list(path))
    if isinstance(listed, Missing):
        return None, [f"The list of outliers cannot be read: {listed.reason}"]
    if listed is None:
        return None, []
    rows = [one.row for one in listed[:MAX_LISTED] if one.row is not None]
    pictures = None if isinstance(data, Missing) else data.dataset.train.rows.pictures
    if pictures is None or len(rows) < len(listed[:MAX_LISTED]):
        return OutlierList(path, listed), []
    images = attempt(
        lambda: tuple(pictures.select(torch.tensor(rows, dtype=torch.int64)).to_device(torch.device("cpu")))
    )
    if isinstance(images, Missing):
        return OutlierList(path, listed), [f"The list of outliers is of other images: {images.reason}"]
    return OutlierList(path, listed, images), []


def _predict_test(model: Model, data: RunData, log: Log) -> Predictions:
    test = data.parts.test
    if test is None or len(test) == 0:
        raise ValueError(f"There is nothing to evaluate on: {input_of(data.dataset).no_test}")
    log(f"running the model on {len(test):,} test images")
    assert data.dataset.test is not None, "there are test images"
    files = file_names(data.dataset.test, test.rows)
    return Predictions.of(model, "test images", fitted(test.rows, model.spec), test.labels, files=files)


def _predict_outliers(
    model: Model, data: RunData, outliers: Sequence[str], data_dir: str | None, log: Log
) -> tuple[list[Predictions], list[str]]:
    """Predictions for outliers by origin, and which origins could not be used."""
    predictions, problems = [], []
    unknown = data.parts.unknown_test
    if unknown is not None and len(unknown):
        log(f"running the model on {len(unknown):,} test images of held-out classes")
        assert data.dataset.test is not None, "there are test images"
        names = file_names(data.dataset.test, unknown.rows)
        predictions.append(Predictions.of(model, HELD_OUT, fitted(unknown.rows, model.spec), files=names))
    for name in dict.fromkeys(outliers):
        if name == model.spec.dataset:
            problems.append(
                f"The outliers {name!r} were skipped: the run was trained on this dataset; use held_out_classes to treat "
                "some of its classes as outliers."
            )
            continue
        log(f"running the model on {name}")
        found = attempt(partial(_predict_dataset, model, name, data_dir))
        if isinstance(found, Missing):
            problems.append(f"The outliers {name!r} were skipped: {found.reason}")
        else:
            predictions.append(found[0])
            problems += found[1]
    return predictions, problems


def _predict_dataset(model: Model, name: str, data_dir: str | None) -> tuple[Predictions, tuple[str, ...]]:
    images, files, warnings = read_outliers(name, data_dir, model.spec, model.classifier)
    return Predictions.of(model, name, images, files=files), warnings


def _with_test(
    report: RunReport, origins: Sequence[Predictions], config: TrainConfig, most_points: int, log: Log
) -> RunReport:
    """The report with everything that follows from the test images (first of `origins`) and the outliers."""
    test = origins[0]
    points = attempt(lambda: map_points(origins, most_points, log))
    notes = list(report.notes)
    total = sum(map(len, origins))
    if not isinstance(points, Missing) and len(points.labels) < total:
        notes.append(f"The map shows {len(points.labels):,} of {total:,} images, the same share of every class.")
    return replace(
        report,
        evaluation=attempt(lambda: _evaluate(test)),
        points=points,
        clusters=attempt(lambda: _clusters(test, config)),
        densities=attempt(lambda: measure_densities(origins)),
        mistakes=attempt(lambda: confident_mistakes(test)),
        notes=tuple(notes),
    )


def _evaluate(test: Predictions) -> Evaluation:
    if not bool((test.labels != UNLABELED).any()):
        raise ValueError("There are no labelled test images, so the accuracy is unknown")
    model = test.model
    return evaluate_outputs(model.classifier.head, test.outputs, test.labels, temperature=model.temperature)


def _clusters(test: Predictions, config: TrainConfig) -> tuple[ClusterMoments, ...]:
    head = test.model.classifier.head
    if not head.has_centers:
        raise ValueError("A linear head has no centers, so there are no clusters to compare with a Gaussian")
    usable = test.where(test.is_finite)
    names = test.model.spec.class_names
    clusters = cluster_moments(head, usable.outputs.z, usable.labels, names, whiten=config.moment_whiten)
    if not clusters:
        raise ValueError("There are no labelled test images with a finite embedding, so there are no clusters to show")
    return clusters


def _of_pool(
    model: Model, data: RunData, config: TrainConfig, log: Log
) -> tuple[Predictions | Missing, tuple[Picture, ...] | Missing, tuple[Picture, ...] | Missing, list[str]]:
    """The pool, its most outlying images, those to label next, and a note if only a sample of it was scored."""
    split = attempt(lambda: data.split)
    if isinstance(split, Missing):
        return split, split, split, []
    size = len(split.unlabeled)
    if size == 0:
        none = Missing("There are no unlabelled images.")
        return none, none, none, []
    positions = pool_sample(size, config.seed)
    log(f"running the model on {len(positions):,} unlabelled images")

    def predict() -> Predictions:
        rows = split.unlabeled.select(positions)
        files = file_names(data.dataset.train, rows)
        labels = torch.where(split.is_shown[positions], split.truth.labels[positions], UNLABELED)
        return Predictions.of(model, "images of the pool", fitted(rows, model.spec), labels, files=files)

    pool = attempt(predict)
    if isinstance(pool, Missing):
        return pool, pool, pool, []
    truths = pool_truths(data, positions)
    note = f"The images of the pool were chosen from a random {len(positions):,} of the {size:,} unlabelled images."
    chosen = attempt(lambda: to_label(pool, split.is_shown[positions], seed=config.seed))
    apart = positions[:0] if isinstance(chosen, Missing) else chosen
    return (
        pool,
        attempt(lambda: pool.pictures(most_outlying(pool, apart), truths)),
        chosen if isinstance(chosen, Missing) else attempt(lambda: pool.pictures(chosen, truths)),
        [note] if len(positions) < size else [],
    )
