"""`collect`: everything that a report says about a run, from whatever of it there is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from momatch.config import TrainConfig
from momatch.data.dataset import UNLABELED, Dataset
from momatch.evaluation.evaluate import Evaluation, evaluate_outputs
from momatch.inference.evaluate import fitted
from momatch.report.agreement import disagreements
from momatch.report.contact_sheets import confident_mistakes, drawn_from_pool, most_outlying, truths_of_pool
from momatch.report.densities import collect_densities
from momatch.report.findings import ClusterFindings, Findings, Missing, Picture
from momatch.report.gaussianity import cluster_findings
from momatch.report.judged import Judged
from momatch.report.maps import map_points
from momatch.report.models import Model, checkpoint_model, saved_model
from momatch.report.run_files import RunFiles, attempt, read_run, written_again
from momatch.report.run_images import RunImages, load_run_images, load_strangers
from momatch.training.data import HELD_OUT
from momatch.training.inputs import input_of

TEST = "test images"
_SEE = "(see the problems of this run)"


def collect(
    directory: Path,
    *,
    outliers: Sequence[str] = (),
    data_dir: str | None = None,
    most_points: int = 2000,
    name: str | None = None,
    dataset: Dataset | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Findings:
    """Collect what a report says about the run in `directory`. Nothing on disk is changed and nothing is downloaded.

    What is missing or damaged never raises: the findings say so, and hold what can be shown without it. A run without a model
    is looked at through its newest whole checkpoint.

    Args:
        directory: of the run: finished, under way, damaged or empty.
        outliers: other datasets, by name or path, whose images are to be told from the test images.
        data_dir: where known datasets lie; None for where the run found them.
        most_points: images on the map.
        name: of the run on the page; by default that of the directory.
        dataset: that the run was trained on, where it was handed to `fit`; None to load it again.
        say: is told what is being done, before each thing that may take long.

    Raises:
        ValueError: if there is no such directory, or `most_points` is below 1.
    """
    directory = Path(directory)
    if not directory.is_dir():
        kind = "got a file" if directory.exists() else "there is no such directory"
        raise ValueError(f"{directory}: {kind}, expected the directory of a run")
    if most_points < 1:
        raise ValueError(f"most_points: got {most_points}, expected at least 1")
    files = read_run(directory)
    findings = _without_model(name or directory.resolve().name, directory, files)
    model, images, remarks = _model_and_images(directory, files, data_dir, dataset, say)
    findings = replace(findings, problems=(*findings.problems, *remarks))
    if isinstance(model, Missing):
        names = () if isinstance(images, Missing) else images.parts.class_names
        return _all_missing(replace(findings, class_names=names), model)
    findings = replace(findings, class_names=model.facts.class_names)
    if isinstance(images, Missing):
        return _all_missing(findings, images)
    assert isinstance(files.config, TrainConfig), "without it there are no images"
    found = attempt(lambda: _judge_test(model, images, say))
    if isinstance(found, Missing):
        findings = _all_missing(findings, found)
    else:
        strangers, remarks = _judge_strangers(model, images, outliers, data_dir or files.config.data_dir, say)
        findings = replace(findings, problems=(*findings.problems, *remarks))
        findings = _about_test(findings, [found, *strangers], files.config, most_points, say)
    outlying, notes = _outlying(model, images, files.config, say)
    problems = (*findings.problems, *disagreements(files.config, files.result, model, findings.evaluation))
    return replace(findings, outlying=outlying, notes=(*findings.notes, *notes), problems=problems)


def _without_model(name: str, directory: Path, files: RunFiles) -> Findings:
    nothing = Missing("The run has not been looked at.")
    return Findings(
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


def _all_missing(findings: Findings, why: Missing) -> Findings:
    return replace(findings, evaluation=why, points=why, clusters=why, densities=why, mistakes=why, outlying=why)


def _model_and_images(
    directory: Path, files: RunFiles, data_dir: str | None, dataset: Dataset | None, say: Callable[[str], None]
) -> tuple[Model | Missing, RunImages | Missing, list[str]]:
    """The model, the images, and what is wrong with them."""
    remarks: list[str] = []
    model: Model | Missing = attempt(lambda: saved_model(directory))
    # A run that is under way has no model yet, which is nothing to complain of.
    expected = files.result is not None or (directory / "model.json").exists()
    if isinstance(model, Missing) and expected:
        remarks.append(f"The model cannot be used: {model.reason}{written_again(directory)}")
    config = files.config
    if isinstance(config, Missing):
        unknown = Missing("Without the settings it is not known which images the run was trained on.")
        return (unknown if isinstance(model, Missing) else model), unknown, remarks
    say(f"loading {config.dataset}")
    images = attempt(lambda: load_run_images(directory, config, data_dir, dataset))
    if isinstance(images, Missing):
        remarks.append(f"The images cannot be loaded: {images.reason}")
        gone = Missing(f"This needs the images of {config.dataset!r}, which could not be loaded {_SEE}.")
        return (gone if isinstance(model, Missing) else model), gone, remarks
    remarks += images.remarks
    if isinstance(model, Missing):
        say("building the model from its newest checkpoint")
        model = attempt(partial(checkpoint_model, directory, config, images))
        remarks += [f"There is no model to look at: {model.reason}"] if isinstance(model, Missing) else model.remarks
    if isinstance(model, Missing):
        return Missing(f"There is no model to look at {_SEE}."), images, remarks
    if model.facts.class_names != images.parts.class_names:
        remarks.append(
            f"{config.dataset!r} has other classes than the model was trained with; put the old images back."
        )
        return model, Missing(f"The images are not those that the model was trained with {_SEE}."), remarks
    strange = attempt(lambda: input_of(images.dataset).check_model(model.classifier))
    if isinstance(strange, Missing):
        remarks.append(strange.reason)
        return model, Missing(f"The features are not those that the model was trained with {_SEE}."), remarks
    return model, images, remarks


def _judge_test(model: Model, images: RunImages, say: Callable[[str], None]) -> Judged:
    test = images.parts.test
    if test is None or len(test) == 0:
        raise ValueError(f"There is nothing to evaluate on: {input_of(images.dataset).no_test}")
    say(f"running the model over {len(test):,} test images")
    return Judged.by(model, TEST, fitted(test.rows, model.facts), test.labels)


def _judge_strangers(
    model: Model, images: RunImages, outliers: Sequence[str], data_dir: str | None, say: Callable[[str], None]
) -> tuple[list[Judged], list[str]]:
    """Images that do not belong, by origin; and which are not at hand."""
    strangers, remarks = [], []
    unknown = images.parts.unknown_test
    if unknown is not None and len(unknown):
        say(f"running the model over {len(unknown):,} test images of held-out classes")
        strangers.append(Judged.by(model, HELD_OUT, fitted(unknown.rows, model.facts)))
    for name in dict.fromkeys(outliers):
        if name == model.facts.dataset:
            remarks.append(
                f"The outliers {name!r} are left out: the run was trained on them; held_out_classes makes outliers of classes."
            )
            continue
        say(f"running the model over {name}")
        loaded = attempt(partial(_judge_dataset, model, name, data_dir))
        if isinstance(loaded, Missing):
            remarks.append(f"The outliers {name!r} are left out: {loaded.reason}")
        else:
            strangers.append(loaded[0])
            remarks += loaded[1]
    return strangers, remarks


def _judge_dataset(model: Model, name: str, data_dir: str | None) -> tuple[Judged, tuple[str, ...]]:
    images, remarks = load_strangers(name, data_dir, model.facts, model.classifier)
    return Judged.by(model, name, images), remarks


def _about_test(
    findings: Findings, origins: Sequence[Judged], config: TrainConfig, most_points: int, say: Callable[[str], None]
) -> Findings:
    test = origins[0]
    points = attempt(lambda: map_points(origins, most_points, say))
    notes = list(findings.notes)
    total = sum(map(len, origins))
    if not isinstance(points, Missing) and len(points.labels) < total:
        notes.append(f"The map shows {len(points.labels):,} of {total:,} images, of each class the same share.")
    return replace(
        findings,
        evaluation=attempt(lambda: _evaluate(test)),
        points=points,
        clusters=attempt(lambda: _clusters(test, config)),
        densities=attempt(lambda: collect_densities(origins)),
        mistakes=attempt(lambda: confident_mistakes(test)),
        notes=tuple(notes),
    )


def _evaluate(test: Judged) -> Evaluation:
    if not bool((test.labels != UNLABELED).any()):
        raise ValueError("There are no labelled test images, so it is not known how many predictions are right")
    return evaluate_outputs(test.model.classifier.head, test.outputs, test.labels)


def _clusters(test: Judged, config: TrainConfig) -> tuple[ClusterFindings, ...]:
    head = test.model.classifier.head
    if not head.has_centers:
        raise ValueError("A linear head has no centers, so there are no clusters to hold against a Gaussian")
    usable = test.select(test.is_finite.nonzero().flatten())
    names = test.model.facts.class_names
    found = cluster_findings(head, usable.outputs.z, usable.labels, names, whiten=config.moment_whiten)
    if not found:
        raise ValueError(
            "There are no labelled test images with a finite embedding, so nothing is known about clusters"
        )
    return found


def _outlying(
    model: Model, images: RunImages, config: TrainConfig, say: Callable[[str], None]
) -> tuple[tuple[Picture, ...] | Missing, list[str]]:
    """The most outlying images of the pool, and a note if not all of it was looked at."""
    split = attempt(lambda: images.split)
    if isinstance(split, Missing):
        return split, []
    size = len(split.unlabeled)
    if size == 0:
        return Missing("There are no unlabelled images."), []
    positions = drawn_from_pool(size, config.seed)
    say(f"running the model over {len(positions):,} unlabelled images")

    def look() -> tuple[Picture, ...]:
        rows = fitted(split.unlabeled.select(positions), model.facts)
        return most_outlying(Judged.by(model, "unlabelled images", rows), truths_of_pool(images, positions))

    part = f"The most outlying images are those of {len(positions):,} of the {size:,} unlabelled ones, drawn by the run's seed."
    return attempt(look), [part] if len(positions) < size else []
