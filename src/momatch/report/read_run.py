"""A run as far as it can be read: its files, its dataset and its model, with a sentence for everything that cannot.

`momatch.training.run.Run` refuses a run with a damaged file; a report makes do with the rest.
"""

import shlex
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from momatch.config import TrainConfig
from momatch.console.wording import plural
from momatch.data.catalog import KNOWN
from momatch.data.contaminate import HeldOut
from momatch.data.dataset import Dataset
from momatch.data.locate import data_root, is_at_hand
from momatch.data.report import DataError, DataWarning
from momatch.data.rows import Rows
from momatch.data.splits import SemiSupervised
from momatch.evaluation.evaluate import Evaluation
from momatch.heads import Head
from momatch.inference.evaluate import fitted, size_of_files
from momatch.models.backbones.custom import UntrustedCodeError
from momatch.models.classifier import Classifier
from momatch.models.model_files import load_model
from momatch.models.spec import ModelSpec
from momatch.outliers import Judge
from momatch.report.formats import is_number, percent
from momatch.report.run_report import Missing
from momatch.storage.checkpoint import FOLDER, load_newest
from momatch.storage.durable import read_object
from momatch.storage.metrics_file import MetricsFile
from momatch.storage.run_config import read_config
from momatch.training.data import load_by_name, load_run_data, part_classes, split_rows
from momatch.training.inputs import input_of
from momatch.training.refit import fit_to_outputs
from momatch.training.setup import build_training
from momatch.training.state import restore

METRICS, RESULT, LOG = "metrics.jsonl", "result.json", "run.log"

#: Another device or release may change a few predictions. A larger change than this, and more than two, means other images.
ACCURACY_TOLERANCE = 0.005

T = TypeVar("T")


def attempt(compute: Callable[[], T]) -> T | Missing:
    """What `compute` returns, or why it failed.

    Every error is caught but `UntrustedCodeError`: damaged files and custom backbones can raise anything, and a report is
    most useful when something is wrong.
    """
    try:
        return compute()
    except UntrustedCodeError:
        raise
    except (ValueError, OSError) as error:
        return Missing(sentence(str(error) or type(error).__name__))
    except Exception as error:
        return Missing(sentence(f"{type(error).__name__}: {error}"))


def sentence(text: str) -> str:
    """`text` on one line, with a full stop."""
    line = " ".join(text.split())
    return line if line.endswith((".", "!", "?")) else f"{line}."


# --- Files ---


@dataclass(frozen=True)
class RunFiles:
    """The files of a run that could be read.

    Attributes:
        config: config.json.
        result: result.json; None if it is missing or damaged.
        metrics: the intact lines of metrics.jsonl.
        problems: what could not be read, one sentence each.
    """

    config: TrainConfig | Missing
    result: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    problems: tuple[str, ...]


def read_run(directory: Path) -> RunFiles:
    """Read settings, metrics and result of the run in `directory`, which exists. Changes nothing on disk."""
    entries = attempt(lambda: sorted(path.name for path in directory.iterdir()))
    if isinstance(entries, Missing) or not entries:
        reason = entries.reason if isinstance(entries, Missing) else f"{directory}: the directory is empty."
        reason += " Pass a run directory, as printed by momatch train."
        return RunFiles(Missing(reason), None, [], (reason,))
    problems = []
    config = attempt(lambda: read_config(directory))
    if isinstance(config, Missing):
        problems.append(f"The settings cannot be read: {config.reason}")
    lines, damage = _read_metrics(directory / METRICS)
    problems += damage
    result = attempt(lambda: read_object(directory / RESULT))
    if isinstance(result, Missing):
        problems.append(f"The result cannot be read: {result.reason}{rewrite_advice(directory)}")
        return RunFiles(config, None, lines, tuple(problems))
    if result is None and not isinstance(config, Missing):
        problems.append(_unfinished(directory, config, lines))
        problems += _reason_for_stopping(directory / LOG)
    elif result is not None:
        problems += _missing_steps(directory / METRICS, config, lines)
    return RunFiles(config, result, lines, tuple(problems))


def rewrite_advice(directory: Path) -> str:
    """How to restore the model and the result if there is a checkpoint to restore them from."""
    if not (directory / FOLDER).is_dir():
        return ""
    return f" To rewrite it from the last checkpoint, delete {directory / RESULT} and run: {_resume(directory)}"


def _resume(directory: Path) -> str:
    return f"momatch train --resume --run-dir {shlex.quote(str(directory))}"


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The intact lines, and a sentence about the damaged ones."""
    try:
        lines, damaged = MetricsFile(path).read_intact()
    except OSError as error:
        return [], [sentence(f"The metrics cannot be read: {error}")]
    if not damaged:
        return lines, []
    shown = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
    return lines, [
        f"{path}: skipped {plural(len(damaged), 'damaged line')} of {len(lines) + len(damaged):,} (line {shown}); delete "
        "them to silence this warning."
    ]


def _unfinished(directory: Path, config: TrainConfig, lines: list[dict[str, Any]]) -> str:
    done = max((line["step"] for line in lines), default=0)
    return (
        f"The run has not finished: its metrics end at step {done:,} of {config.steps:,}. If it is no longer running, "
        f"continue it with: {_resume(directory)}"
    )


def _missing_steps(path: Path, config: TrainConfig | Missing, lines: list[dict[str, Any]]) -> list[str]:
    """Whether a finished run lacks metrics; the last step always has a line."""
    if not lines:
        return [f"{path}: there are no metrics, so there are no training curves."]
    last = max(line["step"] for line in lines)
    if isinstance(config, Missing) or last >= config.steps:
        return []
    return [f"{path}: the metrics end at step {last:,} of {config.steps:,}, although the run has finished."]


def _reason_for_stopping(path: Path) -> list[str]:
    """Why the run stopped, if its log says so."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    _, mark, reason = lines[-1].partition(" stopped: ") if lines else ("", "", "")
    return [sentence(f"The last line of {path.name} says: {reason}")] if mark else []


# --- Data ---


@dataclass(frozen=True)
class RunData:
    """The dataset of a run.

    Attributes:
        dataset: as loaded.
        parts: its known and held-out classes.
        config: the settings of the run.
        warnings: the loader's warnings.
    """

    dataset: Dataset
    parts: HeldOut
    config: TrainConfig
    warnings: tuple[str, ...]

    @cached_property
    def split(self) -> SemiSupervised:
        """Labelled set and unlabelled pool, as in training.

        Raises:
            ValueError: if there are too few images by now.
        """
        return split_rows(self.config, self.parts)[0]


def read_data(directory: Path, config: TrainConfig, data_dir: str | None, dataset: Dataset | None = None) -> RunData:
    """The dataset that a run was trained on. Downloads nothing.

    Args:
        directory: the run directory.
        config: the settings of the run.
        data_dir: directory of known datasets; None for the run's.
        dataset: the dataset itself, if it was passed to `fit` and cannot be loaded by name.

    Raises:
        ValueError: if the dataset cannot be found or used, or is not the one that the run was trained on.
    """
    load = partial(load_run_data, directory, dataset=dataset)
    dataset, messages = _load(load, config.dataset, data_dir or config.data_dir)
    return RunData(dataset, part_classes(dataset, config.held_out_classes), config, messages)


def read_outliers(
    name: str, data_dir: str | None, spec: ModelSpec, classifier: Classifier
) -> tuple[Rows, tuple[str, ...], tuple[str, ...]]:
    """Images of another dataset (its test images if it has any) in the shape that the model takes; file names; warnings.

    Raises:
        ValueError: if the dataset cannot be found or used, or holds features of another backbone.
    """
    dataset, messages = _load(partial(load_by_name, name, image_size=size_of_files(name, spec)), name, data_dir)
    input_of(dataset).check_model(classifier)
    split = dataset.test or dataset.train
    return fitted(split.rows, spec), split.files, messages


def _load(load: Callable[..., Dataset], name: str, data_dir: str | None) -> tuple[Dataset, tuple[str, ...]]:
    """The dataset that `load` returns without a download, and its warnings."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataWarning)
            dataset = load(data_dir=data_dir, progress=False, download=False)
    except DataError as error:
        root = data_root(data_dir)
        if name in KNOWN and not is_at_hand(name, root):
            raise ValueError(
                f"{name} is not in {root}; download it with `momatch data {name}`, or pass its directory as data_dir "
                "(--data-dir, $MOMATCH_DATA)"
            ) from error
        raise
    return dataset, tuple(str(warning.message) for warning in caught)


# --- Model ---


@dataclass(frozen=True)
class Model:
    """The classifier of a run, on the CPU.

    Attributes:
        classifier: with averaged weights.
        spec: how it was built.
        refitted: the mixture refitted in closed form; None if there is none.
        judge: of the network's stages, which scores outliers; None if the head does.
        temperature: of the posteriors.
        step: of the checkpoint that it was taken from; None for the model saved at the end of the run.
        warnings: about that checkpoint and those that could not be used.
    """

    classifier: Classifier
    spec: ModelSpec
    refitted: Head | None
    judge: Judge | None = None
    temperature: float = 1.0
    step: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def outlier_head(self) -> Head:
        """The head that scores outliers if there is no judge: the refitted one if there is one."""
        return self.classifier.head if self.refitted is None else self.refitted


def saved_model(directory: Path, *, trust_code: bool | str = False) -> Model:
    """The model that the run saved when it finished.

    Raises:
        ValueError: if a file is missing, damaged, or of another format or version.
        OSError: if it cannot be read.
    """
    saved = load_model(directory, trust_code=trust_code)
    return Model(saved.classifier, saved.spec, saved.refitted_head, saved.judge, saved.temperature)


def checkpoint_model(directory: Path, config: TrainConfig, data: RunData, *, trust_code: bool | str = False) -> Model:
    """The averaged model of the newest intact checkpoint, refitted if the settings say so.

    Raises:
        ValueError: if there is no usable checkpoint, or it belongs to another model or other data.
        OSError: if it cannot be read.
    """
    checkpoint = load_newest(directory / FOLDER)
    if checkpoint is None:
        raise ValueError(f"{directory / FOLDER}: there is no checkpoint")
    if checkpoint.step == 0:
        newer = "".join(f"; a newer one cannot be used: {reason}" for reason in checkpoint.rejected)
        raise ValueError(
            f"{checkpoint.path}: the checkpoint is from before the first step{newer}; let the run continue"
        )
    here = replace(config, device="cpu", compile=False, progress=False).resolved()
    training = build_training(here, torch.device("cpu"), dataset=data.dataset, trust_code=trust_code)
    restore(training, checkpoint.tensors, checkpoint.facts)
    fitted = fit_to_outputs(training, here)
    judge = None if fitted.judged is None else fitted.judged.judge
    source = f"This page shows the averaged model at step {checkpoint.step:,}, from {checkpoint.path}."
    rejected = (f"A checkpoint cannot be used: {reason}." for reason in checkpoint.rejected)
    return Model(
        training.model.eval(),
        training.spec,
        fitted.refitted,
        judge,
        fitted.temperature,
        checkpoint.step,
        (source, *rejected),
    )


def disagreements(
    config: TrainConfig, result: dict[str, Any] | None, model: Model, evaluation: Evaluation | Missing
) -> list[str]:
    """A sentence for each value that two files of the run give differently: one may be edited, or from another run."""
    cause = "one of the two files was edited or belongs to another run."
    found = []
    for key in ("backbone", "backbone_variant", "head", "embedding_dim"):
        ours, theirs = getattr(config, key), getattr(model.spec, key)
        if ours != theirs:
            found.append(f"config.json says {key} {ours!r}, model.json says {theirs!r}: {cause}")
    result = result or {}
    for key in ("seed", "steps"):
        if key in result and result[key] != getattr(config, key):
            found.append(f"config.json says {key} {getattr(config, key)!r}, result.json says {result[key]!r}: {cause}")
    recorded = result.get("test_accuracy")
    # The model of an earlier step has another accuracy.
    if isinstance(evaluation, Missing) or not is_number(recorded) or model.step not in (None, config.steps):
        return found
    if abs(evaluation.accuracy - recorded) > max(ACCURACY_TOLERANCE, 2 / evaluation.n):
        found.append(
            f"The test accuracy is {percent(evaluation.accuracy)}, but result.json says {percent(recorded)}: these are not "
            "the test images of the run, or one of its files belongs to another run."
        )
    return found
