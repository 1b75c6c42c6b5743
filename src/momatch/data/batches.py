"""An endless, seeded, resumable stream of labelled and unlabelled batches.

Which samples a batch holds is a function of (seed, step): the whole state of a stream is its step counter, and neither
the machine, the number of processes nor where the images live changes a batch.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from momatch.data.permutations import Purpose, check_seed
from momatch.data.placement import ResidentImages, StreamedImages, default_device_budget
from momatch.data.rows import ImageRows
from momatch.data.sampling import EpochSampler
from momatch.numerics.checks import check_positive_int


@dataclass(frozen=True)
class Batch:
    """What one step trains on: this process's part of the global batch.

    Attributes:
        step: which step of the stream it is.
        labeled_images: uint8, (b, C, H, W); or features, (b, V, F); or rows of a table that the views know, (b,).
        labels: (b,) their labels.
        labeled_indices: (b,) their positions in the labelled set.
        unlabeled_images: the same of the unlabelled samples.
        unlabeled_indices: (u,) their positions in the unlabelled pool, from 0 to N_u - 1. A position can occur twice,
            where one epoch ends and the next begins.
        labeled_offset: where this process's labelled part starts in the global batch; views want it.
        unlabeled_offset: the same for the unlabelled part.
    """

    step: int
    labeled_images: UInt8[Tensor, "b C H W"] | Float[Tensor, "b V F"] | Int64[Tensor, " b"]
    labels: Int64[Tensor, " b"]
    labeled_indices: Int64[Tensor, " b"]
    unlabeled_images: UInt8[Tensor, "u C H W"] | Float[Tensor, "u V F"] | Int64[Tensor, " u"]
    unlabeled_indices: Int64[Tensor, " u"]
    labeled_offset: int = 0
    unlabeled_offset: int = 0


class BatchStream:
    """The batches of a training run; ``for batch in stream`` never ends.

    Each set is passed through in whole shuffled epochs, one after the other, so a labelled batch may be larger than the
    labelled set. With several processes each gets consecutive, equal parts of the same global batch: concatenated by
    rank they are the batch of a single process.

    Args:
        labeled_images: m images.
        labels: (m,) their labels.
        unlabeled_images: the pool of N_u images.
        labeled_batch_size: labelled images in the global batch.
        unlabeled_batch_size: unlabelled images in the global batch; 0 for supervised training.
        seed: a non-negative integer; the same seed may be used for the split, the draws are independent.
        device: where batches are wanted.
        device_budget: how many bytes of the device may hold images. The labelled set and then the pool live on the
            device if they fit, else they are streamed. None for `default_device_budget`; 0 streams everything (on the
            CPU that reads a memory-mapped pool one batch ahead).
        rank: number of this process,
        world_size: of how many.

    Raises:
        ValueError: if the labels do not fit the images, a set is empty, a batch does not divide among the processes, or
            an argument is out of range.
    """

    def __init__(
        self,
        labeled_images: ImageRows | Tensor,
        labels: Int64[Tensor, " m"],
        unlabeled_images: ImageRows | Tensor,
        *,
        labeled_batch_size: int,
        unlabeled_batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        device_budget: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        labeled_images, unlabeled_images = ImageRows.of(labeled_images), ImageRows.of(unlabeled_images)
        seed = check_seed(seed)
        check_positive_int("labeled_batch_size", labeled_batch_size)
        if unlabeled_batch_size:
            check_positive_int("unlabeled_batch_size", unlabeled_batch_size)
        _check_images(labeled_images, labels, unlabeled_images)
        if device_budget is not None and device_budget < 0:
            raise ValueError(f"device_budget: got {device_budget}, expected a number of bytes, 0 or more")
        self._device = torch.device(device)
        self._budget = default_device_budget(self._device) if device_budget is None else device_budget
        self._sharding = {"seed": seed, "rank": rank, "world_size": world_size}
        self._labeled = self._place(labeled_images, labeled_batch_size, Purpose.LABELED_BATCHES)
        self._unlabeled = self._place(unlabeled_images, unlabeled_batch_size, Purpose.UNLABELED_BATCHES)
        self._labels = labels.to(self._device)
        self._identity = {
            "seed": seed,
            "labeled_batch_size": labeled_batch_size,
            "unlabeled_batch_size": unlabeled_batch_size,
            "labeled_samples": len(labeled_images),
            "unlabeled_samples": len(unlabeled_images),
            "selection_crc32": _crc32(labeled_images.rows, labels, unlabeled_images.rows),
        }
        self.step = 0

    def batch(self, step: int) -> Batch:
        """The batch of any step; the stream does not move."""
        labeled_images, labeled_indices = self._labeled.get(step)
        unlabeled_images, unlabeled_indices = self._unlabeled.get(step)
        return Batch(
            step=step,
            labeled_images=labeled_images,
            labels=self._labels.index_select(0, labeled_indices),
            labeled_indices=labeled_indices,
            unlabeled_images=unlabeled_images,
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
        """The state as plain integers: the step of the next batch, and what it is a step of."""
        return {"step": self.step, **self._identity}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken. The device, its budget and the number of processes may be others.

        Raises:
            ValueError: if `state` is of a stream with another seed, other batch sizes or other images.
        """
        expected = {"step", *self._identity}
        if set(state) != expected:
            raise ValueError(f"state: got the keys {sorted(state)}, expected {sorted(expected)}")
        for name, value in self._identity.items():
            if state[name] != value:
                raise ValueError(
                    f"state: got {name} = {state[name]}, expected {value}; the state is of another stream, "
                    "whose batches this one would not repeat: use the seed, split and batch sizes of the saved run"
                )
        if state["step"] < 0:
            raise ValueError(f"state: got step = {state['step']}, expected at least 0")
        self.step = state["step"]

    def _place(self, images: ImageRows, batch_size: int, purpose: Purpose) -> ResidentImages | StreamedImages:
        """Put `images` on the device if they fit in what is left of the budget."""
        if batch_size == 0:
            images = images.select(torch.empty(0, dtype=torch.int64))
        fits = self._budget is None or images.nbytes <= self._budget
        if fits and self._budget is not None:
            self._budget -= images.nbytes
        sampler = EpochSampler(
            len(images),
            batch_size,
            purpose=purpose,
            device=self._device if fits else torch.device("cpu"),
            **self._sharding,
        )
        return ResidentImages(images, sampler) if fits else StreamedImages(images, sampler, self._device)


def _check_images(labeled_images: ImageRows, labels: Tensor, unlabeled_images: ImageRows) -> None:
    """Check that the parts of a stream fit together.

    Raises:
        ValueError: if they do not.
    """
    if labels.shape != (len(labeled_images),):
        raise ValueError(
            f"labels: got shape {tuple(labels.shape)}, expected one for each of {len(labeled_images)} images"
        )
    if len(labels) and int(labels.min()) < 0:
        raise ValueError(
            f"labels: got {int(labels.min())}, expected class numbers; unlabelled images belong in the pool"
        )
    if labeled_images.image_shape != unlabeled_images.image_shape:
        raise ValueError(
            f"unlabeled_images: got images of shape {unlabeled_images.image_shape}, "
            f"expected {labeled_images.image_shape} as the labelled ones; see convert_images"
        )


def _crc32(*tensors: Int64[Tensor, " _"]) -> int:
    """A checksum that tells one choice of samples from another on any machine."""
    checksum = 0
    for tensor in tensors:
        checksum = zlib.crc32(tensor.contiguous().numpy().astype("<i8", copy=False).data, checksum)
    return checksum
