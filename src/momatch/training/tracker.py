"""Where metrics go besides the run directory: one small interface, and TensorBoard behind it.

Other trackers (Weights & Biases, MLflow) are a class of a few lines in the user's own code: docs/trackers.md.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Takes the metrics of a run as they come. A resumed run may log steps again that were logged before it was killed."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of `step`: the numbers of a line of metrics.jsonl, without those that are unknown."""

    def close(self) -> None:
        """The run is finished or interrupted: write out what is still held."""


class TensorBoardTracker:
    """Writes event files for TensorBoard.

    Steps that an earlier process logged and this one logs again are shown once: from its first step on, what was there is
    hidden.

    Args:
        directory: where the event files go. See them by ``tensorboard --logdir`` and this directory or any above it.

    Raises:
        ValueError: if tensorboard is not installed.
    """

    def __init__(self, directory: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "tracker: got 'tensorboard', but the package tensorboard is not installed; "
                "run pip install 'momatch[tensorboard]', or take tracker 'none'"
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
        # The curves of a run that was killed are looked at as well.
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


def _none(directory: Path) -> None:
    """No tracker."""


def _tensorboard(directory: Path) -> TensorBoardTracker:
    return TensorBoardTracker(directory / "tensorboard")


#: Name in the config -> what makes the tracker of a run from the run's directory.
TRACKERS: dict[str, Callable[[Path], Tracker | None]] = {"none": _none, "tensorboard": _tensorboard}
