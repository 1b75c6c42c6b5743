"""Records a run: metrics, checkpoints, log, tracker and progress display.

Only the main process records; in the others the methods do nothing.
"""

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from momatch.config import TrainConfig
from momatch.console.progress import Progress
from momatch.storage.checkpoint import FOLDER, prune, save_checkpoint
from momatch.storage.run_directory import RunDirectory
from momatch.training.processes import Processes
from momatch.training.setup import Training
from momatch.training.state import History, collect
from momatch.training.tracker import TRACKERS, Tracker


class Recorder:
    """Writes to the run directory, the tracker and the terminal.

    Args:
        config: the resolved settings.
        processes: which process this is.
        tracker: additional destination of the metrics; None for the one named in the config.

    Raises:
        ValueError: if the run directory holds a run and neither resume nor overwrite is set, or has no run to resume.
        OSError: if it cannot be written.
    """

    def __init__(self, config: TrainConfig, processes: Processes, tracker: Tracker | None = None) -> None:
        assert config.run_dir is not None, "the config is resolved"
        self.path = Path(config.run_dir)
        self._config = config
        self._directory: RunDirectory | None = None
        self._progress: Progress | None = None
        self._tracker: Tracker | None = None
        if not processes.is_main:
            return
        if config.resume:
            self._directory = RunDirectory.open(self.path)
        else:
            # resume and overwrite concern this call, not the run.
            stored = replace(config, resume=False, overwrite=False)
            self._directory = RunDirectory.create(self.path, stored, overwrite=config.overwrite)
        self._tracker = tracker if tracker is not None else TRACKERS[config.tracker](self.path)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._directory is None:
            return
        try:
            if self._progress is not None:
                self._progress.close()
            if self._tracker is not None:
                self._tracker.close()
            if error is not None:
                # On a full disk this fails too; report the first error.
                with contextlib.suppress(OSError):
                    self._directory.log(f"stopped: {error}")
        finally:
            self._directory.close()

    def begin(self, step: int, text: str) -> None:
        """Start recording at `step`; metrics of later steps of an interrupted run are dropped and will be written again."""
        if self._directory is None:
            return
        self._directory.truncate_metrics(step)
        self._directory.log(text)
        if self._config.progress:
            self._progress = Progress(self._config.steps, step, stream=sys.stderr)
            self._progress.message(text)

    def say(self, text: str) -> None:
        """Write a message to the log and the terminal."""
        if self._directory is not None:
            self._directory.log(text)
        if self._progress is not None:
            self._progress.message(text)

    def metrics(self, line: Mapping[str, Any], images: int) -> None:
        """Write a line of metrics.

        Args:
            line: metrics by name, including `step`.
            images: number of images processed since the previous line.
        """
        if self._directory is None:
            return
        self._directory.append_metrics(dict(line))
        if self._tracker is not None:
            numbers = {
                name: float(value) for name, value in line.items() if name != "step" and isinstance(value, int | float)
            }
            self._tracker.log(line["step"], numbers)
        if self._progress is not None:
            self._progress.update(line["step"], line, images)

    def checkpoint(self, training: Training, history: History) -> None:
        """Save a checkpoint and delete old ones."""
        if self._directory is None:
            return
        # The metrics up to this step must be on disk before the checkpoint.
        self._directory.sync()
        tensors, facts = collect(training, history)
        saved = save_checkpoint(self.path / FOLDER, training.stream.step, tensors, facts)
        prune(self.path / FOLDER, self._config.keep_checkpoints, saved=saved)

    def outliers(self, data: bytes | None) -> None:
        """Write the list of the pool's outliers; None if there is none to write."""
        if self._directory is not None:
            self._directory.write_outliers(data)

    def result(self, result: Mapping[str, Any]) -> None:
        """Write the result, which marks the run as finished."""
        if self._directory is not None:
            self._directory.write_result(dict(result))
            self.say("finished")
