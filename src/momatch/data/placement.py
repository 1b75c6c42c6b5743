"""Where the images of a batch stream live: on the device, or on the host and sent ahead of their step.

Both give the same batches, so the choice is one of speed and memory alone:

- `ResidentImages`: all images on the device; a batch is one ``index_select``. On the CPU they are there already (a
  memory-mapped tensor is read through the page cache), so nothing is copied.
- `StreamedImages`: a worker thread gathers the next batch while the step runs. For CUDA it gathers into pinned memory
  and copies on a stream of its own, so that neither the host nor the running step waits for it.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.dataset import Rows
from momatch.data.rows import ImageRows
from momatch.data.sampling import EpochSampler

#: For accelerators that cannot say how much memory is free.
FALLBACK_BUDGET = 2**30


def default_device_budget(device: torch.device) -> int | None:
    """How many bytes of `device` may hold images when the user does not say.

    A quarter of what is free on CUDA (activations need the rest), `FALLBACK_BUDGET` on other accelerators, and None
    (no limit) on the CPU and on ``meta``, where nothing is copied.
    """
    if device.type in ("cpu", "meta"):
        return None
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // 4
    return FALLBACK_BUDGET


class ResidentImages:
    """Images on the device (see the module).

    Args:
        images: N images.
        sampler: gives positions among them, on the device.
    """

    def __init__(self, images: ImageRows, sampler: EpochSampler) -> None:
        self._sampler = sampler
        on_host = sampler.device.type == "cpu"
        self._gather = images.gather if on_host else partial(torch.index_select, images.to_device(sampler.device), 0)

    def get(self, step: int) -> tuple[Rows, Int64[Tensor, " n"]]:
        """Images and positions of `step`."""
        positions = self._sampler.positions(step)
        return self._gather(positions), positions


class StreamedImages:
    """Images on the host, one batch ahead on their way to `device` (see the module).

    Args:
        images: N images.
        sampler: gives positions among them, on the CPU.
        device: where batches are wanted.
    """

    def __init__(self, images: ImageRows, sampler: EpochSampler, device: torch.device) -> None:
        self._images, self._sampler, self._device = images, sampler, device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="momatch-batches")
        self._ahead: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def get(self, step: int) -> tuple[Rows, Int64[Tensor, " n"]]:
        """Images and positions of `step`; the next step's are requested before this returns."""
        if self._ahead is None or self._ahead[0] != step:
            self._ahead = step, self._worker.submit(self._load, step)
        images, positions = self._ahead[1].result()
        if self._copies is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._copies)  # Before the next copy is queued: the step must not wait for that one.
            # Their memory belongs to the copying stream; without this it could be given away while a step reads it.
            images.record_stream(current)
            positions.record_stream(current)
        self._ahead = step + 1, self._worker.submit(self._load, step + 1)
        return images, positions

    def _load(self, step: int) -> tuple[Tensor, Tensor]:
        positions = self._sampler.positions(step)
        if self._copies is None:
            return self._images.gather(positions).to(self._device), positions.to(self._device)
        with torch.cuda.stream(self._copies):  # Also makes the device current, which a new thread's is not.
            # Fresh pinned memory each time: torch's pinned allocator recycles it only after the copy from it ended.
            shape, dtype = (len(positions), *self._images.image_shape), self._images.dtype
            pinned = torch.empty(shape, dtype=dtype, pin_memory=True)
            self._images.gather(positions, out=pinned)
            return (
                pinned.to(self._device, non_blocking=True),
                positions.pin_memory().to(self._device, non_blocking=True),
            )
