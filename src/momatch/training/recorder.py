"""What a run leaves behind while it trains: metrics, checkpoints, log, tracker and the progress on the terminal.

In a run of several processes only the first one records; the others call the same methods to no effect.
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
        tracker: where metrics go beside metrics.jsonl; None for what the config names.

    Raises:
        ValueError: if the run directory holds another run and neither resume nor overwrite is set, or nothing to resume.
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
            # What is asked of this call is no setting of the run.
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
                # On a full disk this fails as well; the first error is the one to be told.
                with contextlib.suppress(OSError):
                    self._directory.log(f"stopped: {error}")
        finally:
            self._directory.close()

    def begin(self, step: int, text: str) -> None:
        """Show progress from `step` on; later lines of an interrupted run are dropped, they will be written again."""
        if self._directory is None:
            return
        self._directory.truncate_metrics(step)
        self._directory.log(text)
        if self._config.progress:
            self._progress = Progress(self._config.steps, step, stream=sys.stderr)
            self._progress.message(text)

    def say(self, text: str) -> None:
        """Say something to the log and the terminal."""
        if self._directory is not None:
            self._directory.log(text)
        if self._progress is not None:
            self._progress.message(text)

    def metrics(self, line: Mapping[str, Any], images: int) -> None:
        """Write a line of metrics.

        Args:
            line: metrics by name, `step` among them.
            images: processed since the line before.
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
        """Save the whole state; then delete what is older than needed."""
        if self._directory is None:
            return
        # A checkpoint counts the lines before it: they must be on the disk first.
        self._directory.sync()
        tensors, facts = collect(training, history)
        saved = save_checkpoint(self.path / FOLDER, training.stream.step, tensors, facts)
        prune(self.path / FOLDER, self._config.keep_checkpoints, saved=saved)

    def result(self, result: Mapping[str, Any]) -> None:
        """Write the result; from here on the run is finished."""
        if self._directory is not None:
            self._directory.write_result(dict(result))
            self.say("finished")
