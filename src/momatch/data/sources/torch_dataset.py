"""Convert any ``torch.utils.data.Dataset`` of images to a `Dataset`: every sample is read once and kept as uint8."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from momatch.console.progress import CountProgress
from momatch.data.cache import cache_key as make_key
from momatch.data.cache import open_or_build, write_rows
from momatch.data.dataset import UNLABELED, Dataset, Split
from momatch.data.image_files import check_class_labels, check_class_names
from momatch.data.report import DataError

_Sample = tuple[UInt8[np.ndarray, "C H W"], int]


def to_uint8(image: object, index: int = 0) -> UInt8[np.ndarray, "C H W"]:
    """One sample's image as uint8 (C, H, W).

    Args:
        image: a Pillow image (L or RGB); a tensor (C, H, W) or (H, W); an array (H, W, C) or (H, W). Floats must be in [0, 1]
            and become round(255 x).
        index: the sample's number, for errors.

    Raises:
        DataError: if it is none of these.
    """
    mode = image.mode if isinstance(image, Image.Image) else ""
    if not isinstance(image, Image.Image | Tensor | np.ndarray) or mode not in ("", "L", "RGB"):
        raise DataError(
            f"sample {index}: got {type(image).__name__} {mode}, expected a Pillow image (L or RGB), a tensor or an array"
        )
    pixels: Shaped[np.ndarray, "..."] = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[None]
    elif pixels.ndim == 3 and not isinstance(image, Tensor):
        pixels = pixels.transpose(2, 0, 1)
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        raise DataError(f"sample {index}: got an image of shape {pixels.shape}, expected (C, H, W) with C = 1 or 3")
    if pixels.dtype.kind == "f":
        if not (pixels.min() >= 0.0 and pixels.max() <= 1.0):
            raise DataError(
                f"sample {index}: got floats from {pixels.min():g} to {pixels.max():g}, expected 0 to 1; "
                "remove the normalisation from the dataset's transform"
            )
        return np.asarray(np.rint(pixels * 255), np.uint8)
    if pixels.dtype != np.uint8:
        raise DataError(f"sample {index}: got dtype {pixels.dtype}, expected uint8, or floats from 0 to 1")
    return pixels


def _to_label(label: object, index: int) -> int:
    if label is None:
        return UNLABELED
    values = np.asarray(label)
    if values.size != 1 or values.dtype.kind not in "iu" or int(values.item()) < UNLABELED:
        raise DataError(
            f"sample {index}: got the label {label!r}, expected a class number, or -1 or None for unlabelled"
        )
    return int(values.item())


def _items(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, IterableDataset):
        yield from dataset
    else:
        # By index, because iterating a map-style dataset needs an IndexError at the end, which not all raise.
        yield from (dataset[index] for index in range(len(dataset)))


def _samples(datasets: Sequence[Any], progress: bool) -> Iterator[_Sample]:
    """The samples of all `datasets`; only labels of the first are used."""
    shape: tuple[int, ...] | None = None
    pairs = ((item, dataset is datasets[0]) for dataset in datasets for item in _items(dataset))
    with CountProgress(None, label="read", enabled=progress) as bar:
        for index, (item, is_labeled) in enumerate(pairs):
            parts = item if isinstance(item, tuple | list) else (item,)
            image = to_uint8(parts[0], index)
            shape = shape or image.shape
            if image.shape != shape:
                raise DataError(
                    f"mixed sizes: sample {index} is {image.shape}, expected {shape} like the first; "
                    "add a resize to the dataset's transform"
                )
            yield image, _to_label(parts[1], index) if is_labeled and len(parts) > 1 else UNLABELED
            bar.add(1)


def _read(datasets: Sequence[Any], progress: bool) -> Split:
    samples = list(_samples(datasets, progress))
    if not samples:
        raise DataError("got an empty dataset, expected at least one sample")
    images, labels = zip(*samples, strict=True)
    return Split(torch.from_numpy(np.stack(images)), torch.tensor(labels))


def _read_cached(datasets: Sequence[Any], key: str, cache_dir: str | Path | None, progress: bool) -> Split:
    def build(part: Path) -> dict[str, Any]:
        if any(isinstance(dataset, IterableDataset) for dataset in datasets):
            raise DataError("cache_key: got an iterable-style dataset, expected one with a length")
        first = next(_samples(datasets, progress=False), None)
        if first is None:
            raise DataError("got an empty dataset, expected at least one sample")
        labels: list[int] = []

        def rows() -> Iterator[UInt8[np.ndarray, "1 C H W"]]:
            for image, label in _samples(datasets, progress):
                labels.append(label)
                yield image[None]

        channels, height, width = first[0].shape
        shape = (sum(map(len, datasets)), channels, height, width)
        return write_rows(part, rows(), shape, progress=False) | {"labels": labels}

    sizes = [len(dataset) for dataset in datasets if not isinstance(dataset, IterableDataset)]
    entry = open_or_build(make_key("torch", key, sizes), cache_dir, build)
    return Split(entry.images, torch.tensor(entry.meta["labels"]))


def from_torch_dataset(
    dataset: TorchDataset[Any],
    *,
    unlabeled: TorchDataset[Any] | None = None,
    test: TorchDataset[Any] | None = None,
    class_names: Sequence[str] | None = None,
    name: str = "torch",
    cache_key: str | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> Dataset:
    """Read torch datasets of ``(image, label)`` samples.

    Args:
        dataset: training samples. A label of -1 or None, or a sample that is only an image, is unlabelled. Each sample is read
            once, so the transform must give images of one size, without random augmentation.
        unlabeled: more training samples; their labels are ignored.
        test: test samples.
        class_names: default: ``dataset.classes``, else the class numbers.
        name: name of the result.
        cache_key: keep the images in a memory-mapped cache under this name instead of in memory. Change the name when the
            content changes: torch datasets have no fingerprint.
        cache_dir: see `LoadOptions`.
        progress: show progress bars.

    Returns:
        The dataset; the samples of `unlabeled` follow those of `dataset`.

    Raises:
        DataError: if a sample is not an image, sizes are mixed, or there are fewer than two classes.
    """

    def read(datasets: Sequence[Any], part: str) -> Split:
        if cache_key is None:
            return _read(datasets, progress)
        return _read_cached(datasets, f"{cache_key}/{part}", cache_dir, progress)

    train = read([dataset] if unlabeled is None else [dataset, unlabeled], "train")
    names = class_names if class_names is not None else getattr(dataset, "classes", None)
    if names is None:
        names = [str(k) for k in range(int(train.labels.max()) + 1)]
        check_class_labels(name, tuple(names), train.labels)
    check_class_names(name, tuple(map(str, names)))
    return Dataset(name, tuple(map(str, names)), train, None if test is None else read([test], "test"))
