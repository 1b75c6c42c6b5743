"""What the report reads of a run, so that it can be written for anything that offers this."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from momatch.classifier import Classifier
from momatch.config import TrainConfig


@runtime_checkable
class ReportedRun(Protocol):
    """What the report reads of a run."""

    @property
    def directory(self) -> Path:
        """Where the report goes."""

    @property
    def config(self) -> TrainConfig:
        """The settings."""

    @property
    def result(self) -> dict[str, Any] | None:
        """The final figures; None if the run has not finished."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name a class."""

    @property
    def classifier(self) -> Classifier:
        """The trained model, asked for its centers."""

    def metrics(self) -> list[dict[str, Any]]:
        """The lines that were logged."""
