"""The classifier that a report looks at: the run's own, or else what its newest whole checkpoint holds of it."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from momatch.config import TrainConfig
from momatch.heads import Head
from momatch.models.classifier import Classifier
from momatch.models.model_files import load_model
from momatch.models.spec import ModelSpec
from momatch.report.run_images import RunImages
from momatch.storage.checkpoint import FOLDER, load_newest
from momatch.training.refit import refitted_head
from momatch.training.setup import build_training
from momatch.training.state import restore


@dataclass(frozen=True)
class Model:
    """A classifier on the CPU.

    Attributes:
        classifier: with averaged weights.
        facts: what it was built from.
        refitted: the mixture in closed form; None where there is none.
        step: of the checkpoint that it was taken from; None for the model that the run saved at its end.
        remarks: about that checkpoint and those that could not be used.
    """

    classifier: Classifier
    facts: ModelSpec
    refitted: Head | None
    step: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def judge(self) -> Head:
        """The head that tells outliers: the refitted one where there is one."""
        return self.classifier.head if self.refitted is None else self.refitted


def saved_model(directory: Path, *, trust_code: bool = False) -> Model:
    """The model that the run saved at its end.

    Raises:
        ValueError: if a file is missing, damaged, or of another kind or version.
        OSError: if it cannot be read.
    """
    saved = load_model(directory, trust_code=trust_code)
    return Model(saved.classifier, saved.spec, saved.refitted_head)


def checkpoint_model(directory: Path, config: TrainConfig, images: RunImages, *, trust_code: bool = False) -> Model:
    """The averaged model of the newest whole checkpoint, with its mixture refitted if the run was to do so.

    Raises:
        ValueError: if there is no checkpoint that can be used, or it is of another model or other data.
        OSError: if it cannot be read.
    """
    checkpoint = load_newest(directory / FOLDER)
    if checkpoint is None:
        raise ValueError(f"{directory / FOLDER}: there is no checkpoint")
    if checkpoint.step == 0:
        newer = "".join(f"; a newer one cannot be used: {reason}" for reason in checkpoint.rejected)
        raise ValueError(f"{checkpoint.path}: the checkpoint is from before the first step{newer}; let the run go on")
    here = replace(config, device="cpu", compile=False, progress=False).resolved()
    training = build_training(here, torch.device("cpu"), dataset=images.dataset, trust_code=trust_code)
    restore(training, checkpoint.tensors, checkpoint.facts)
    refitted = refitted_head(training, here.cutoff) if here.refit else None
    source = f"What follows is about the averaged model as it was at step {checkpoint.step:,}, from {checkpoint.path}."
    remarks = (source, *(f"A checkpoint cannot be used: {reason}." for reason in checkpoint.rejected))
    return Model(training.model.eval(), training.facts, refitted, checkpoint.step, remarks)
