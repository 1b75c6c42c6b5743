"""The directory of a run: what lies where, who may write, and when a run counts as finished.

- config.json: the resolved settings; its format marker makes a directory a run
- data.json: see `momatch.storage.data_record`
- metrics.jsonl: one line a log interval
- checkpoints/: see `momatch.storage.checkpoint`
- model.safetensors, model.json, README.md: see `momatch.models.model_files`
- model.onnx, model.pt2: see `momatch.inference.export`
- report.html, tensorboard/: where asked for
- run.log: what happened, with times
- result.json: written last; a run is finished when it is there
- run.lock: held by the process that writes
"""

import contextlib
import errno
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from momatch.config import TrainConfig
from momatch.storage.checkpoint import FOLDER, delete_checkpoints, explain_write_errors
from momatch.storage.durable import finite, json_bytes, may_replace, part_of, read_object, remove_file, replace_files
from momatch.storage.metrics_file import MetricsFile
from momatch.storage.run_config import CONFIG, encode_config, is_run, read_config

#: The card of the saved model.
CARD = "README.md"
_METRICS, _RESULT, _LOG, _LOCK = "metrics.jsonl", "result.json", "run.log", "run.lock"
#: What overwriting deletes, in this order: without a result a run is unfinished, so half a deletion never looks finished.
_DELETED = (_RESULT, "data.json", "report.html", "model.onnx", "model.pt2", "model.json", "model.safetensors")
#: Files that are written beside their place first, so that a kill may leave the beginning of one.
_REPLACED = (CONFIG, _METRICS, CARD, *_DELETED)
_EVENTS = "events.out.tfevents.*"


class RunDirectory:
    """A run on disk. The constructor only looks; `create` and `open` lock the directory for writing.

    Args:
        path: the directory.

    Attributes:
        path: the directory.
        checkpoints: the folder of its checkpoints.
        tensorboard: the folder for TensorBoard's events.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / FOLDER
        self.tensorboard = self.path / "tensorboard"
        self._lock: FileLock | None = None
        self._metrics = MetricsFile(self.path / _METRICS)

    @classmethod
    def create(cls, path: str | Path, config: TrainConfig, overwrite: bool = False) -> "RunDirectory":
        """Make the directory of a new run and lock it.

        Args:
            path: does not exist, or is empty, or with `overwrite` holds a run.
            config: resolved; it is written down.
            overwrite: delete the files of the run that is there, and nothing else.

        Raises:
            ValueError: if a run is there already, or something that is no run.
            OSError: if another process writes there, or nothing can be written.
        """
        directory = cls(path)
        directory.check_new(config, overwrite)
        with explain_write_errors("making the directory", directory.path):
            directory.path.mkdir(parents=True, exist_ok=True)
        directory._acquire()
        try:
            directory.check_new(config, overwrite)
            directory._delete_run()
            directory._replace(CONFIG, encode_config(config))
        except BaseException:
            directory.close()
            raise
        return directory

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Lock the directory of a run that is there, to go on with it.

        Raises:
            ValueError: if there is no run, or its config is damaged.
            OSError: if another process writes there.
        """
        directory = cls(path)
        directory._require_run()
        _ = directory.config
        directory._acquire()
        return directory

    @property
    def exists(self) -> bool:
        """Whether there is a run in the directory, finished or not.

        Raises:
            ValueError: if there is a config.json that is damaged or of another kind.
            OSError: if it cannot be read.
        """
        return is_run(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end (its result.json is there)."""
        return (self.path / _RESULT).exists()

    @property
    def config(self) -> TrainConfig:
        """The settings of the run.

        Raises:
            ValueError: if there is no run, or config.json is damaged, of another kind or of another version.
            OSError: if it cannot be read.
        """
        return read_config(self.path)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl; NaN and infinities become null.

        The line is out of the process when this returns: a kill does not lose it. `sync` makes it survive a power cut.

        Args:
            metrics: with the key ``step``.

        Raises:
            ValueError: if there is no step, or the directory is not locked.
            OSError: if it cannot be written; then no part of the line is left.
        """
        self._require_lock()
        with explain_write_errors(f"writing the metrics of step {metrics.get('step')}", self.path):
            self._metrics.append(metrics)

    def sync(self) -> None:
        """Bring metrics.jsonl to the disk. Do it before a checkpoint: no checkpoint may know of lines that are lost.

        Raises:
            OSError: if that fails.
        """
        with explain_write_errors("writing the metrics", self.path):
            self._metrics.sync()

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line that was cut off is left out.

        Raises:
            ValueError: if any other line is damaged.
        """
        return self._metrics.read()

    def truncate_metrics(self, last_step: int) -> None:
        """Drop lines of steps after `last_step`, and a last line that was cut off.

        Raises:
            ValueError: if a line that is to stay is damaged, or the directory is not locked.
            OSError: if the rest cannot be written.
        """
        self._require_lock()
        with explain_write_errors("writing the metrics", self.path):
            self._metrics.truncate(last_step)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write result.json, which finishes the run; NaN and infinities become null. Save the model first.

        Raises:
            ValueError: if the directory is not locked.
            OSError: if it cannot be written; the run is then unfinished.
        """
        self._require_lock()
        self.sync()
        self._replace(_RESULT, json_bytes(finite(result)))

    def read_result(self) -> dict[str, Any] | None:
        """What `write_result` wrote; None for a run that is not finished.

        Raises:
            ValueError: if it is damaged.
        """
        return read_object(self.path / _RESULT)

    def log(self, text: str) -> None:
        """Add a line with the time to run.log.

        Raises:
            ValueError: if the directory is not locked.
            OSError: if it cannot be written.
        """
        self._require_lock()
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        line = f"{time} {' | '.join(text.splitlines())}\n"
        with (
            explain_write_errors(f"writing {_LOG}", self.path),
            open(self.path / _LOG, "a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(line)

    def close(self) -> None:
        """Release the directory."""
        self._metrics.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def check_new(self, config: TrainConfig, overwrite: bool) -> None:
        """Refuse a directory that `create` would refuse, before any work is done.

        Args:
            config: resolved, of the run that is to be made.
            overwrite: as for `create`.

        Raises:
            ValueError: as `create`.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ValueError(f"{self.path}: got a file, expected a directory or nothing")
        if not is_run(self.path):
            ours = {_LOCK, part_of(self.path / CONFIG).name}
            others = sorted(path.name for path in self.path.iterdir() if path.name not in ours)
            if others:
                raise ValueError(
                    f"{self.path}: got a directory with {others[0]!r} that is no run, expected an empty one; "
                    "choose another run_dir"
                )
            return
        if overwrite:
            return
        raise ValueError(f"{self.path}: {self._occupied_by(config)}")

    def _occupied_by(self, config: TrainConfig) -> str:
        """Which run is there already, compared with the one that is to be made, and what can be done about it."""
        key = config.first_difference(self.config.resolved())
        if key is not None:
            theirs, ours = getattr(self.config.resolved(), key), getattr(config, key)
            return (
                f"the directory holds another run ({key} is {theirs!r} there and {ours!r} here); choose another run_dir "
                "(--run-dir)"
            )
        overwrite = "pass overwrite (--overwrite) to delete it and start again"
        if self.finished:
            return (
                "the directory holds a finished run with the same settings; choose another run_dir (--run-dir) to keep it, or "
                f"{overwrite}"
            )
        command = f"momatch train --resume --run-dir {shlex.quote(str(self.path))}"
        return (
            f"the directory holds an unfinished run with the same settings; continue it with: {command}, choose another "
            f"run_dir (--run-dir), or {overwrite}"
        )

    def check_resumed(self, config: TrainConfig) -> None:
        """Refuse to go on with a run by settings that would give another result.

        Args:
            config: resolved.

        Raises:
            ValueError: if there is no run, its config is damaged, or a setting differs, naming stored and given value.
        """
        self._require_run()
        stored = self.config.resolved()
        key = config.first_difference(stored)
        if key is not None:
            raise ValueError(
                f"{key}: got {getattr(config, key)!r}, expected {getattr(stored, key)!r}, with which the run in {self.path} "
                "was started; give that to go on with the run, or another run_dir to start a new one"
            )

    def _delete_run(self) -> None:
        """Delete a run but for its config, which is replaced: at no moment is the directory something else than a run."""
        if not is_run(self.path):
            return
        with explain_write_errors("removing the old run", self.path):
            for name in _DELETED:
                (self.path / name).unlink(missing_ok=True)
            if may_replace(self.path / CARD):
                (self.path / CARD).unlink(missing_ok=True)
            delete_checkpoints(self.checkpoints)
            for path in [*self.tensorboard.glob(_EVENTS), self.path / _METRICS, self.path / _LOG]:
                path.unlink(missing_ok=True)
            # Not empty: what is left is not ours.
            with contextlib.suppress(OSError):
                self.tensorboard.rmdir()

    def _acquire(self) -> None:
        lock = FileLock(self.path / _LOCK)
        with explain_write_errors("locking the directory", self.path):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                pass
            except NotImplementedError as error:  # older releases of filelock say it so
                raise OSError(errno.ENOLCK, "this file system has no locks") from error
        if not lock.is_locked:
            raise OSError(
                f"{self.path}: another process is at work on this run; wait for it, or choose another run_dir"
            )
        self._lock = lock
        for name in _REPLACED:
            remove_file(part_of(self.path / name))

    def _require_run(self) -> None:
        if not is_run(self.path):
            raise ValueError(f"{self.path}: nothing to resume, there is no run; start one without resume")

    def _require_lock(self) -> None:
        if self._lock is None:
            raise ValueError(f"{self.path}: got a directory that is open for reading; use RunDirectory.open or .create")

    def _replace(self, name: str, data: bytes) -> None:
        with explain_write_errors(f"writing {name}", self.path):
            replace_files({self.path / name: data})
