"""Decode a list of image files into a cache entry: in parallel processes, with progress, resumable.

Each process decodes a chunk of files and writes the rows itself, so no pixels are sent between processes. Finished chunks are
journaled after their rows have reached the disk, so an interrupted build can be resumed.
"""

import json
import os
import shlex
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from momatch.console.progress import CountProgress
from momatch.data.cache import IMAGES, JOURNAL, Journal, read_journal, require_space
from momatch.data.decode import ColorFound, Task, decode_chunk, probe
from momatch.data.report import DataError, LoadOptions, MixedSizesError, NothingReadableError, Skipped, examples

CHUNK = 64
_PLAN = "plan.json"
#: With fewer files, starting processes costs more time than it saves.
_MIN_PARALLEL = 512


class DecodePool:
    """Builds ``images.bin`` from image files.

    Args:
        root: directory that `paths` are relative to.
        paths: the files, in row order.
        name: row -> name of its file in messages.
        source: the folder or manifest, as the user named it.
        options: uses `size`, `strict`, `max_skipped`, `workers` and `progress`.
        already_skipped: number of files skipped before decoding; counts towards the limit.
    """

    def __init__(
        self,
        root: str,
        paths: Sequence[str],
        *,
        name: Callable[[int], str],
        source: str,
        options: LoadOptions,
        already_skipped: int = 0,
    ) -> None:
        # Absolute, because worker processes are reused and keep the working directory they were started in.
        self.root = os.path.abspath(root)
        self.paths = paths
        self.name = name
        self.source = source
        self.options = options
        self.limit = options.skip_limit(len(paths) + already_skipped) - already_skipped
        self.done: list[dict[str, Any]] = []
        self.model = 0  # the row that sets the size for the others

    def build(self, part: Path) -> dict[str, Any]:
        """Decode everything into `part`; see `cache.open_or_build`.

        Returns:
            The metadata: ``shape``, ``skipped`` (row, reason) and ``conversions``.

        Raises:
            DataError: on mixed sizes or too many unreadable files.
            ChildProcessError: if a decoding process dies.
        """
        shape = self._plan(part)
        require_space(part, len(self.paths) * int(np.prod(shape)) - (part / IMAGES).stat().st_size)
        try:
            self._decode_all(part, shape)
        except ColorFound:
            # The first file was gray, a later one is colour: start over with three channels.
            self._start(part, (3, *shape[1:]))
            return self.build(part)
        skipped = sorted((row, reason) for record in self.done for row, reason in record["skipped"])
        kept = len(self.paths) - len(skipped)
        # First, because a build interrupted while rows are moved must start over.
        for scrap in (_PLAN, JOURNAL):
            (part / scrap).unlink()
        _remove_rows(part / IMAGES, [row for row, _ in skipped], len(self.paths), int(np.prod(shape)))
        conversions = sum((Counter(record["conversions"]) for record in self.done), Counter[str]())
        return {"shape": [kept, *shape], "skipped": skipped, "conversions": dict(conversions)}

    def _plan(self, part: Path) -> tuple[int, int, int]:
        """The shape of a row: from an interrupted build if there is one, else from the first readable file."""
        plan = part / _PLAN
        if plan.exists():
            self.model, channels, height, width = json.loads(plan.read_text("utf-8"))
            self.done = read_journal(part)
            return channels, height, width
        failures = []
        for row, path in enumerate(self.paths):
            try:
                shape = probe(os.path.join(self.root, path), self.options.size)
                self.model = row
                break
            except Exception as error:
                failures.append(self._skip(row, f"{type(error).__name__}: {error}"))
                self._check_limit(failures)
        else:
            raise NothingReadableError(f"none of the {len(self.paths)} files can be read:\n{examples(failures)}")
        self._start(part, shape)
        return shape

    def _start(self, part: Path, shape: tuple[int, int, int]) -> None:
        shutil.rmtree(part)
        part.mkdir()
        (part / IMAGES).touch()
        (part / JOURNAL).touch()
        # Last, because a plan without its files would look like an interrupted build.
        (part / _PLAN).write_text(json.dumps([self.model, *shape]), "utf-8")
        self.done = []

    def _tasks(self, part: Path, shape: tuple[int, int, int]) -> Iterator[Task]:
        finished = {record["first"] for record in self.done}
        out = os.path.abspath(part / IMAGES)
        for first in range(0, len(self.paths), CHUNK):
            if first not in finished:
                yield Task(first, self.root, self.paths[first : first + CHUNK], out, shape, self.options.size)

    def _rows(self, record: dict[str, Any]) -> int:
        return min(CHUNK, len(self.paths) - int(record["first"]))

    def _decode_all(self, part: Path, shape: tuple[int, int, int]) -> None:
        before = sum(map(self._rows, self.done))
        bar = CountProgress(len(self.paths), label="decode", done=before, enabled=self.options.progress)
        journal = Journal(part)
        failures = [self._skip(row, why) for record in self.done for row, why in record["skipped"]]
        results = self._run(self._tasks(part, shape))
        try:
            with bar:
                for record in results:
                    self._refuse_misfit(record)
                    self.done.append(record)
                    journal.add(record)
                    failures += [self._skip(row, reason) for row, reason in record["skipped"]]
                    self._check_limit(failures)
                    bar.add(self._rows(record))
        except BrokenProcessPool as error:
            size = "" if self.options.size is None else f" --size {self.options.size}"
            raise ChildProcessError(
                "a decoding process died, perhaps out of memory; decoded images are kept: run again, or first decode in one "
                f"process: momatch data {shlex.quote(self.source)}{size} --workers 1"
            ) from error
        finally:
            results.close()
            journal.sync()

    def _run(self, tasks: Iterator[Task]) -> Generator[dict[str, Any], None, None]:
        workers = self.options.workers or os.cpu_count() or 1
        if workers == 1 or len(self.paths) < _MIN_PARALLEL:
            yield from map(decode_chunk, tasks)
            return
        # Workers start with -m, which would put the current directory on their import path, and they inherit this.
        with _environment("PYTHONSAFEPATH", "1"):
            yield from self._run_parallel(tasks, workers)

    def _run_parallel(self, tasks: Iterator[Task], workers: int) -> Generator[dict[str, Any], None, None]:
        pool = Parallel(n_jobs=workers, return_as="generator_unordered", pre_dispatch="3*n_jobs", batch_size=1)
        stopped = threading.Event()
        outputs = pool(delayed(decode_chunk)(task) for task in takewhile(lambda _: not stopped.is_set(), tasks))
        try:
            while (record := next(outputs, None)) is not None:
                yield record
        finally:
            # If stopped early, submit no more tasks and wait for those running. Closing the generator instead would race the
            # pool's own thread.
            stopped.set()
            for _ in outputs:
                pass

    def _skip(self, row: int, reason: str) -> Skipped:
        return Skipped(self.name(row), reason)

    def _refuse_misfit(self, record: dict[str, Any]) -> None:
        if "color" in record:
            raise ColorFound
        if "wrong_size" in record:
            raise MixedSizesError(
                f"mixed sizes: {self.name(record['wrong_size'])}: {record['reason']} like {self.name(self.model)}. Convert "
                "them to one size",
                {"size": ": {} resizes the shorter side and crops the centre to a square"},
            )

    def _check_limit(self, failures: list[Skipped]) -> None:
        if len(failures) > self.limit:
            raise DataError(
                f"{len(failures)} files cannot be read, expected at most {max(self.limit, 0)} of {len(self.paths)}:\n"
                f"{examples(failures)}\nRepair or remove them",
                self.options.skip_remedy,
            )


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _remove_rows(path: Path, rows: list[int], total: int, row_size: int) -> None:
    """Remove the rows of skipped files and truncate the file, moving a bounded amount at a time."""
    with open(path, "r+b") as images:
        target = 0
        for first, end in zip([0, *(row + 1 for row in rows)], [*rows, total], strict=True):
            for start in range(first, end, CHUNK):
                count = min(CHUNK, end - start)
                if start != target:
                    images.seek(start * row_size)
                    block = images.read(count * row_size)
                    images.seek(target * row_size)
                    images.write(block)
                target += count
        images.truncate(target * row_size)
