"""From batches of paths or arrays to rows, in several threads, each of which decodes a batch and runs the network on it.

Decoders and kernels release the GIL, so all cores stay busy: the network never waits for the disk, and threads do not wait for
each other after every layer, as they would if they shared a batch. Only a few batches per thread are in progress, so memory
is bounded.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from momatch.data.decode import decode_for, reason
from momatch.data.rows import PixelRows
from momatch.inference.predict.inputs import ArrayBatch, Batch, FileBatch
from momatch.inference.predict.table import Table, make_table
from momatch.models.saved_model import SavedModel
from momatch.models.scorer import Scores, joined, score_images
from momatch.outliers import StageReader

#: More threads would wait for the GIL; the remaining cores are used inside operations.
_MOST_WORKERS = 16
#: Pixels that the network gets at once on a CPU, 20 images of 224 x 224: larger batches are no faster, and every thread would
#: touch more new memory for its activations.
_PIXELS_AT_ONCE = 2**20
T = TypeVar("T")
U = TypeVar("U")


class Predictor:
    """Turns a batch of paths or arrays into rows, in several threads inside of `threaded`.

    Args:
        model: moved to `device` and converted to channels-last.
        device: where the network runs.
        posterior: include the posterior of each class.
    """

    def __init__(self, model: SavedModel, device: torch.device, *, posterior: bool = False) -> None:
        self.spec = model.spec
        self.image_shape = (model.spec.in_channels, *model.spec.image_size)
        self.device = device
        self.posterior = posterior
        self.classifier = model.classifier.eval().to(device)
        self.classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's annotations lack it
        self.scorer = model.scorer.to(device)
        self.calibration_size = self.scorer.calibration_scores.numel()
        judge = self.scorer.judge
        self._reader = None if judge is None else StageReader(self.classifier.backbone, judge.stage_names)
        # Load Pillow's plugins now: loading them lazily is not thread-safe.
        Image.init()

    def threaded(self) -> AbstractContextManager[None]:
        """To be entered before several threads call it."""
        return nullcontext() if self._reader is None else self._reader.attached()

    def __call__(self, batch: Batch) -> Table:
        """The rows of `batch`; an unreadable image gets a row with the reason."""
        if isinstance(batch, FileBatch):
            pixels, reasons = self._decode(batch)
            paths: list[str] = batch.paths
            rows: list[int | None] = [None] * len(paths)
        else:
            pixels, reasons = self._convert(batch)
            paths = [batch.name] * batch.count
            rows = list(range(batch.first, batch.first + batch.count))
        return make_table(
            paths,
            rows,
            reasons,
            self.scores(pixels) if len(pixels) else None,
            class_names=self.spec.class_names,
            calibration_size=self.calibration_size,
            posterior=self.posterior,
        )

    def scores(self, pixels: UInt8[Tensor, "n C H W"]) -> Scores:
        """Predictions for images of the model's shape, on the CPU."""
        height, width = self.spec.image_size
        size = max(1, _PIXELS_AT_ONCE // (height * width)) if self.device.type == "cpu" else len(pixels)
        with torch.inference_mode():
            found = joined(
                [
                    score_images(self.classifier, self.scorer, part.to(self.device), self._reader)
                    for part in pixels.split(size)
                ]
            )
            if self.device.type == "cpu":
                return found
            return Scores(**{name: value.cpu() for name, value in vars(found).items()})

    def _decode(self, batch: FileBatch) -> tuple[UInt8[Tensor, "n C H W"], dict[int, str]]:
        channels, height, width = self.image_shape
        # Channels last, as in Pillow and in the network.
        pixels = np.empty((len(batch.paths), height, width, channels), np.uint8)
        reasons = dict(batch.reasons)
        count = 0
        for i, path in enumerate(batch.paths):
            if i in reasons:
                continue
            try:
                pixels[count] = decode_for(path, self.image_shape)
                count += 1
            except Exception as error:
                # A broken image can raise almost anything in a decoder.
                reasons[i] = _why(path, error)
        return torch.from_numpy(pixels[:count]).permute(0, 3, 1, 2), reasons

    def _convert(self, batch: ArrayBatch) -> tuple[UInt8[Tensor, "n C H W"], dict[int, str]]:
        if batch.pixels is None:
            return torch.empty((0, *self.image_shape), dtype=torch.uint8), dict.fromkeys(
                range(batch.count), batch.reason or ""
            )
        # A copy, because torch warns about read-only arrays.
        images = PixelRows([torch.from_numpy(batch.pixels.copy())]).converted(self.image_shape)
        (pixels,) = images.chunks(batch.count)
        return pixels.contiguous(memory_format=torch.channels_last), {}


def _why(path: str, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        # Its own message repeats the path.
        return "the file is empty" if os.path.getsize(path) == 0 else "not a recognised image format"
    return reason(error)


def in_order(work: Callable[[T], U], items: Iterable[T], workers: int) -> Generator[U, None, None]:
    """``map(work, items)`` in `workers` threads, with at most three items per thread in progress.

    Args:
        work: called in the threads, which divide torch's threads among them.
        items: consumed lazily.
        workers: number of threads.

    Raises:
        Exception: from `work`, when its item is reached.
    """
    threads = torch.get_num_threads()
    # torch's thread count is per Python thread, and new threads inherit the last value set; it is restored below.
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(max(1, threads // workers),))
    pending: deque[Future[U]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= 3 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)


def default_workers() -> int:
    """torch's thread count (the number of cores), up to `_MOST_WORKERS`."""
    return min(torch.get_num_threads(), _MOST_WORKERS)
