"""The directory of a run: its files, its lock, and when the run is finished.

- config.json: the resolved settings; its format marker makes a directory a run
- data.json, labels.csv: see `momatch.storage.data_record`
- metrics.jsonl: one line per log interval
- checkpoints/: see `momatch.storage.checkpoint`
- model.safetensors, model.json, README.md: see `momatch.models.model_files`
- model.onnx, model.pt2: see `momatch.inference.export`
- outliers.csv: images of the pool that look like outliers, see `momatch.training.pool_outliers`
- report.html, tensorboard/: optional
- run.log: events with timestamps
- result.json: written last; its presence means that the run is finished
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
#: The pool's likely outliers.
OUTLIERS = "outliers.csv"
_METRICS, _RESULT, _LOG, _LOCK = "metrics.jsonl", "result.json", "run.log", "run.lock"
#: Files that overwriting deletes, in this order: the result goes first, so an interrupted deletion never looks finished.
_DELETED = (
    *(_RESULT, "data.json", "labels.csv", OUTLIERS, "report.html"),
    *("model.onnx", "model.pt2", "model.json", "model.safetensors"),
)
#: Files that are written under a temporary name first, which a kill may leave behind.
_REPLACED = (CONFIG, _METRICS, CARD, *_DELETED)
_EVENTS = "events.out.tfevents.*"


class RunDirectory:
    """A run on disk. The constructor opens it for reading; `create` and `open` lock it for writing.

    Attributes:
        path: the directory.
        checkpoints: the checkpoint folder.
        tensorboard: the folder for TensorBoard events.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / FOLDER
        self.tensorboard = self.path / "tensorboard"
        self._lock: FileLock | None = None
        self._metrics = MetricsFile(self.path / _METRICS)

    @classmethod
    def create(cls, path: str | Path, config: TrainConfig, overwrite: bool = False) -> "RunDirectory":
        """Create and lock the directory of a new run.

        Args:
            path: a new or empty directory, or with `overwrite` an existing run.
            config: resolved settings, written to config.json.
            overwrite: delete the files of an existing run, and nothing else.

        Raises:
            ValueError: if the directory holds a run, or files that are not a run.
            OSError: if another process holds the lock, or writing fails.
        """
        directory = cls(path)
        directory.check_new(config, overwrite)
        with explain_write_errors("creating the directory", directory.path):
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
        """Lock the directory of an existing run, to resume it.

        Raises:
            ValueError: if there is no run, or its config is damaged.
            OSError: if another process holds the lock.
        """
        directory = cls(path)
        directory._require_run()
        _ = directory.config
        directory._acquire()
        return directory

    @property
    def exists(self) -> bool:
        """Whether the directory holds a run, finished or not.

        Raises:
            ValueError: if its config.json is damaged or of another kind.
            OSError: if it cannot be read.
        """
        return is_run(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run is finished (result.json exists)."""
        return (self.path / _RESULT).exists()

    @property
    def config(self) -> TrainConfig:
        """The settings of the run.

        Raises:
            ValueError: if there is no run, or config.json is damaged or of another kind or version.
            OSError: if it cannot be read.
        """
        return read_config(self.path)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl; NaN and infinities become null.

        The line survives a kill of the process; call `sync` for it to survive a power failure.

        Args:
            metrics: with the key ``step``.

        Raises:
            ValueError: if there is no step, or the directory is not locked.
            OSError: if writing fails; no part of the line is left then.
        """
        self._require_lock()
        with explain_write_errors(f"writing the metrics of step {metrics.get('step')}", self.path):
            self._metrics.append(metrics)

    def sync(self) -> None:
        """Sync metrics.jsonl to disk. Call it before saving a checkpoint, which must not be newer than the metrics.

        Raises:
            OSError: if that fails.
        """
        with explain_write_errors("writing the metrics", self.path):
            self._metrics.sync()

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without an incomplete last one.

        Raises:
            ValueError: if any other line is damaged.
        """
        return self._metrics.read()

    def truncate_metrics(self, last_step: int) -> None:
        """Drop the lines after `last_step` and an incomplete last line.

        Raises:
            ValueError: if one of the lines to keep is damaged, or the directory is not locked.
            OSError: if writing fails.
        """
        self._require_lock()
        with explain_write_errors("writing the metrics", self.path):
            self._metrics.truncate(last_step)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write result.json, which finishes the run; NaN and infinities become null. Save the model first.

        Raises:
            ValueError: if the directory is not locked.
            OSError: if writing fails; the run is then unfinished.
        """
        self._require_lock()
        self.sync()
        self._replace(_RESULT, json_bytes(finite(result)))

    def write_outliers(self, data: bytes | None) -> None:
        """Write outliers.csv; None removes that of an earlier attempt.

        Raises:
            ValueError: if the directory is not locked.
            OSError: if writing fails.
        """
        self._require_lock()
        if data is not None:
            self._replace(OUTLIERS, data)
            return
        with explain_write_errors(f"removing {OUTLIERS}", self.path):
            (self.path / OUTLIERS).unlink(missing_ok=True)

    def read_result(self) -> dict[str, Any] | None:
        """The contents of result.json; None if the run is not finished.

        Raises:
            ValueError: if the file is damaged.
        """
        return read_object(self.path / _RESULT)

    def log(self, text: str) -> None:
        """Append a line with a timestamp to run.log.

        Raises:
            ValueError: if the directory is not locked.
            OSError: if writing fails.
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
        """Close the files and release the lock."""
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
        """Check whether `create` would refuse the directory, before any work is done.

        Args:
            config: resolved settings of the new run.
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
                    f"{self.path}: got a directory with {others[0]!r} that is not a run, expected an empty one; "
                    "choose another run_dir"
                )
            return
        if overwrite:
            return
        raise ValueError(f"{self.path}: {self._occupied_by(config)}")

    def _occupied_by(self, config: TrainConfig) -> str:
        """How the existing run compares with the new one, and what the user can do."""
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
                f"{overwrite}, for example with labels that are new since"
            )
        command = f"momatch train --resume --run-dir {shlex.quote(str(self.path))}"
        return (
            f"the directory holds an unfinished run with the same settings; resume it with: {command}, choose another "
            f"run_dir (--run-dir), or {overwrite}"
        )

    def check_resumed(self, config: TrainConfig) -> None:
        """Check that the run can be resumed with `config`: settings that affect the result must be the same.

        Args:
            config: resolved settings.

        Raises:
            ValueError: if there is no run, its config is damaged, or a setting differs.
        """
        self._require_run()
        stored = self.config.resolved()
        key = config.first_difference(stored)
        if key is not None:
            raise ValueError(
                f"{key}: got {getattr(config, key)!r}, expected {getattr(stored, key)!r}, with which the run in {self.path} "
                "was started; use that value to resume, or another run_dir to start a new run"
            )

    def _delete_run(self) -> None:
        """Delete a run except for its config, which is replaced later, so that the directory is a run at any moment."""
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
            # If it is not empty, the rest is the user's.
            with contextlib.suppress(OSError):
                self.tensorboard.rmdir()

    def _acquire(self) -> None:
        lock = FileLock(self.path / _LOCK)
        with explain_write_errors("locking the directory", self.path):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                pass
            except NotImplementedError as error:  # raised by older releases of filelock
                raise OSError(errno.ENOLCK, "this file system does not support locks") from error
        if not lock.is_locked:
            raise OSError(f"{self.path}: another process is using this run; wait for it, or choose another run_dir")
        self._lock = lock
        for name in _REPLACED:
            remove_file(part_of(self.path / name))

    def _require_run(self) -> None:
        if not is_run(self.path):
            raise ValueError(f"{self.path}: no run to resume; start one without resume")

    def _require_lock(self) -> None:
        if self._lock is None:
            raise ValueError(f"{self.path}: the directory is open for reading only; use RunDirectory.open or .create")

    def _replace(self, name: str, data: bytes) -> None:
        with explain_write_errors(f"writing {name}", self.path):
            replace_files({self.path / name: data})
