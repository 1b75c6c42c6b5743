"""Trackers: the interface for logging metrics elsewhere, and TensorBoard.

docs/trackers.md shows how to write your own, for instance for Weights & Biases or MLflow.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of a run. A resumed run may log steps again that were logged before it was killed."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of `step`: the numbers in a line of metrics.jsonl, without unknown ones."""

    def close(self) -> None:
        """Flush and close; called when the run finishes or is interrupted."""


class TensorBoardTracker:
    """Writes event files for TensorBoard.

    Steps that a resumed run logs again are shown once: its first step hides everything logged earlier from there on.

    Args:
        directory: where to write event files; view them with ``tensorboard --logdir``.

    Raises:
        ValueError: if tensorboard is not installed.
    """

    def __init__(self, directory: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "tracker: got 'tensorboard', but the package tensorboard is not installed; "
                "run pip install 'momatch[tensorboard]', or use tracker 'none'"
            ) from error
        self._open: Callable[..., Any] = SummaryWriter
        self._directory = str(directory)
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to the curve of each metric."""
        if self._writer is None:
            self._writer = self._open(self._directory, purge_step=step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        # Keep the metrics of a run that gets killed.
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


def _none(directory: Path) -> None:
    """No tracker."""


def _tensorboard(directory: Path) -> TensorBoardTracker:
    return TensorBoardTracker(directory / "tensorboard")


#: Name in the config -> factory that takes the run directory.
TRACKERS: dict[str, Callable[[Path], Tracker | None]] = {"none": _none, "tensorboard": _tensorboard}
