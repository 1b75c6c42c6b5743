"""An endless, seeded, resumable stream of labelled and unlabelled batches.

A batch depends only on (seed, step): the only state of a stream is its step counter, and the machine, the number of processes
and the place of the rows do not change a batch. Rows are kept in one of two places, which affects only speed and memory:

- `ResidentRows`: all rows on the device; a batch is one ``index_select``. On the CPU nothing is copied (a memory-mapped tensor
  is read through the page cache).
- `StreamedRows`: rows on the host; a worker thread gathers the next batch while the step runs. For CUDA it gathers into pinned
  memory and copies on its own stream, so that neither the host nor the running step waits.
"""

import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from momatch.data.rows import Rows, RowTensor
from momatch.data.sampling import EpochSampler, Purpose, check_seed
from momatch.numerics.checks import check_positive_int

#: Budget in bytes for accelerators that do not report free memory.
FALLBACK_BUDGET = 2**30


@dataclass(frozen=True)
class Batch:
    """The data of one training step: this process's part of the global batch.

    Attributes:
        step: step of the stream.
        labeled: uint8 (b, C, H, W); or features (b, V, F); or row numbers (b,) of a table that the views look up.
        labels: (b,) labels.
        labeled_indices: (b,) positions in the labelled set.
        unlabeled: unlabelled samples, like `labeled`.
        unlabeled_indices: (u,) positions in the unlabelled pool, 0 to N_u - 1. A position may occur twice where one epoch ends
            and the next begins.
        labeled_offset: start of this process's labelled part in the global batch; pass it to the views.
        unlabeled_offset: the same for the unlabelled part.
    """

    step: int
    labeled: UInt8[Tensor, "b C H W"] | Float[Tensor, "b V F"] | Int64[Tensor, " b"]
    labels: Int64[Tensor, " b"]
    labeled_indices: Int64[Tensor, " b"]
    unlabeled: UInt8[Tensor, "u C H W"] | Float[Tensor, "u V F"] | Int64[Tensor, " u"]
    unlabeled_indices: Int64[Tensor, " u"]
    labeled_offset: int = 0
    unlabeled_offset: int = 0


def default_device_budget(device: torch.device) -> int | None:
    """Default number of bytes of `device` for rows.

    A quarter of the free memory on CUDA (activations need the rest), `FALLBACK_BUDGET` on other accelerators, and None (no
    limit) on the CPU and on ``meta``, where nothing is copied.
    """
    if device.type in ("cpu", "meta"):
        return None
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // 4
    return FALLBACK_BUDGET


class ResidentRows:
    """Rows on the device (see the module docstring).

    Args:
        rows: the N rows.
        sampler: draws positions, on the device.
    """

    def __init__(self, rows: Rows, sampler: EpochSampler) -> None:
        self.sampler = sampler
        on_host = sampler.device.type == "cpu"
        self._gather = rows.gather if on_host else partial(torch.index_select, rows.to_device(sampler.device), 0)

    def get(self, step: int) -> tuple[RowTensor, Int64[Tensor, " n"]]:
        """Rows and positions of `step`."""
        positions = self.sampler.positions(step)
        return self._gather(positions), positions


class StreamedRows:
    """Rows on the host, prefetched to `device` one batch ahead (see the module docstring).

    Args:
        rows: the N rows.
        sampler: draws positions, on the CPU.
        device: device of the batches.
    """

    def __init__(self, rows: Rows, sampler: EpochSampler, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self.sampler = sampler
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="momatch-batches")
        #: Step and sampler of the batch that is being loaded, and the batch.
        self._ahead: tuple[int, EpochSampler, Future[tuple[Tensor, Tensor]]] | None = None

    def get(self, step: int) -> tuple[RowTensor, Int64[Tensor, " n"]]:
        """Rows and positions of `step`; starts to prefetch the next step."""
        if self._ahead is None or self._ahead[:2] != (step, self.sampler):
            self._ahead = self._start(step)
        rows, positions = self._ahead[2].result()
        if self._copies is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._copies)  # Before the next copy is queued, so that the step does not wait for it.
            # The memory belongs to the copying stream; without this it could be reused while a step reads it.
            rows.record_stream(current)
            positions.record_stream(current)
        self._ahead = self._start(step + 1)
        return rows, positions

    def _start(self, step: int) -> tuple[int, EpochSampler, Future[tuple[Tensor, Tensor]]]:
        return step, self.sampler, self._worker.submit(self._load, self.sampler, step)

    def _load(self, sampler: EpochSampler, step: int) -> tuple[Tensor, Tensor]:
        positions = sampler.positions(step)
        if self._copies is None:
            return self._rows.gather(positions).to(self._device), positions.to(self._device)
        with torch.cuda.stream(self._copies):  # Also makes the device current in this thread.
            # Fresh pinned memory each time: torch's pinned allocator reuses it only after the copy has finished.
            shape, dtype = (len(positions), *self._rows.shape), self._rows.dtype
            pinned = torch.empty(shape, dtype=dtype, pin_memory=True)
            self._rows.gather(positions, out=pinned)
            return (
                pinned.to(self._device, non_blocking=True),
                positions.pin_memory().to(self._device, non_blocking=True),
            )


class BatchStream:
    """The batches of a training run; ``for batch in stream`` never ends.

    Each set is traversed in shuffled epochs, one after the other, so a labelled batch may be larger than the labelled set. With
    several processes, each gets an equal, consecutive part of the same global batch: concatenated by rank, the parts are the
    batch of a single process.

    Args:
        labeled: m images or features.
        labels: (m,) labels.
        unlabeled: the pool of N_u images or features.
        labeled_batch_size: labelled images in the global batch.
        unlabeled_batch_size: unlabelled images in the global batch; 0 for supervised training.
        seed: a non-negative integer; may equal the split's seed, the draws are independent.
        device: device of the batches.
        device_budget: bytes of the device to use for images. The labelled set, then the pool, is placed on the device if it
            fits, else streamed. None for `default_device_budget`; 0 streams everything (on the CPU this reads a memory-mapped
            pool one batch ahead).
        rank: rank of this process.
        world_size: number of processes.

    Raises:
        ValueError: if the labels do not match the images, a set is empty, a batch does not divide evenly among the processes,
            or an argument is out of range.
    """

    def __init__(
        self,
        labeled: Rows | Tensor,
        labels: Int64[Tensor, " m"],
        unlabeled: Rows | Tensor,
        *,
        labeled_batch_size: int,
        unlabeled_batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        device_budget: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        labeled, unlabeled = Rows.of(labeled), Rows.of(unlabeled)
        seed = check_seed(seed)
        check_positive_int("labeled_batch_size", labeled_batch_size)
        if unlabeled_batch_size:
            check_positive_int("unlabeled_batch_size", unlabeled_batch_size)
        _check_parts(labeled, labels, unlabeled)
        if device_budget is not None and device_budget < 0:
            raise ValueError(f"device_budget: got {device_budget}, expected a number of bytes, 0 or more")
        self._device = torch.device(device)
        self._budget = default_device_budget(self._device) if device_budget is None else device_budget
        self._sharding = {"seed": seed, "rank": rank, "world_size": world_size}
        self._labeled = self._place(labeled, labeled_batch_size, Purpose.LABELED_BATCHES)
        self._unlabeled = self._place(unlabeled, unlabeled_batch_size, Purpose.UNLABELED_BATCHES)
        self._whole_pool = self._unlabeled.sampler
        self._labels = labels.to(self._device)
        self._identity = {
            "seed": seed,
            "labeled_batch_size": labeled_batch_size,
            "unlabeled_batch_size": unlabeled_batch_size,
            "labeled_samples": len(labeled),
            "unlabeled_samples": len(unlabeled),
            "selection_crc32": _crc32(labeled.index, labels, unlabeled.index),
        }
        self.step = 0

    def draw_among(self, positions: Int64[Tensor, " k"]) -> None:
        """Draw unlabelled batches only from these positions of the pool, until the next call.

        Batches then depend on (seed, step, positions). It is not part of the state: call it again after `load_state_dict`.

        Raises:
            ValueError: if there are none.
        """
        is_all = len(positions) == self._whole_pool.size
        self._unlabeled.sampler = self._whole_pool if is_all else self._whole_pool.among(positions)

    @property
    def pool_drawn(self) -> int:
        """Number of samples of the pool that batches are drawn from."""
        return self._unlabeled.sampler.size

    def batch(self, step: int) -> Batch:
        """The batch of any step, without advancing the stream."""
        labeled, labeled_indices = self._labeled.get(step)
        unlabeled, unlabeled_indices = self._unlabeled.get(step)
        return Batch(
            step=step,
            labeled=labeled,
            labels=self._labels.index_select(0, labeled_indices),
            labeled_indices=labeled_indices,
            unlabeled=unlabeled,
            unlabeled_indices=unlabeled_indices,
            labeled_offset=self._sharding["rank"] * len(labeled_indices),
            unlabeled_offset=self._sharding["rank"] * len(unlabeled_indices),
        )

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self.batch(self.step)
        self.step += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        """The state as plain integers: the next step, and what identifies the stream."""
        return {"step": self.step, **self._identity}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume from `state`. The device, its budget and the number of processes may differ.

        Raises:
            ValueError: if `state` belongs to a stream with another seed, other batch sizes or other images.
        """
        expected = {"step", *self._identity}
        if set(state) != expected:
            raise ValueError(f"state: got the keys {sorted(state)}, expected {sorted(expected)}")
        for name, value in self._identity.items():
            if state[name] != value:
                raise ValueError(
                    f"state: got {name} = {state[name]}, expected {value}; the state belongs to another stream: "
                    "use the seed, split and batch sizes of the saved run"
                )
        if state["step"] < 0:
            raise ValueError(f"state: got step = {state['step']}, expected at least 0")
        self.step = state["step"]

    def _place(self, rows: Rows, batch_size: int, purpose: Purpose) -> ResidentRows | StreamedRows:
        """Put `rows` on the device if they fit in the remaining budget."""
        if batch_size == 0:
            rows = rows.select(torch.empty(0, dtype=torch.int64))
        fits = self._budget is None or rows.nbytes <= self._budget
        if fits and self._budget is not None:
            self._budget -= rows.nbytes
        sampler = EpochSampler(
            len(rows),
            batch_size,
            purpose=purpose,
            device=self._device if fits else torch.device("cpu"),
            **self._sharding,
        )
        return ResidentRows(rows, sampler) if fits else StreamedRows(rows, sampler, self._device)


def _check_parts(labeled: Rows, labels: Tensor, unlabeled: Rows) -> None:
    """Raise `ValueError` if the parts of a stream do not match."""
    if labels.shape != (len(labeled),):
        raise ValueError(f"labels: got shape {tuple(labels.shape)}, expected ({len(labeled)},), one per labelled row")
    if len(labels) and int(labels.min()) < 0:
        raise ValueError(
            f"labels: got {int(labels.min())}, expected class numbers; unlabelled samples belong in the pool"
        )
    if labeled.shape != unlabeled.shape:
        raise ValueError(
            f"unlabeled: got {unlabeled.noun} of shape {unlabeled.shape}, expected {labeled.shape} like the labelled ones; "
            "convert images with PixelRows.converted"
        )


def _crc32(*tensors: Int64[Tensor, " _"]) -> int:
    """Checksum of the tensors' values, the same on every machine."""
    checksum = 0
    for tensor in tensors:
        checksum = zlib.crc32(tensor.contiguous().numpy().astype("<i8", copy=False).data, checksum)
    return checksum
