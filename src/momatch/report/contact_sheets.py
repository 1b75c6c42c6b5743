"""Contact sheets: the most confident mistakes, and what lies farthest from all clusters in the unlabelled pool."""

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from momatch.data.dataset import UNLABELED
from momatch.report.findings import Picture
from momatch.report.judged import Judged
from momatch.report.run_images import RunImages

#: Pictures on a sheet.
MOST_PICTURES = 40
#: Images of the pool that are looked at; more would take long and show the same.
MOST_OF_POOL = 20_000


def confident_mistakes(test: Judged) -> tuple[Picture, ...]:
    """Test images that were taken for another class, the most confident first.

    Raises:
        ValueError: if no test image has a label.
    """
    known = test.select(((test.labels != UNLABELED) & test.is_finite).nonzero().flatten())
    if len(known) == 0:
        raise ValueError("There are no labelled test images, so no mistake is known")
    wrong = known.select((known.predicted != known.labels).nonzero().flatten())
    names = test.model.facts.class_names
    return _pictures(wrong, wrong.doubt.argsort(stable=True), [names[k] for k in wrong.labels.tolist()])


def drawn_from_pool(size: int, seed: int) -> Int64[Tensor, " n"]:
    """Positions in a pool of `size` images, ascending: all, or `MOST_OF_POOL` drawn by `seed`."""
    if size <= MOST_OF_POOL:
        return torch.arange(size)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return order[:MOST_OF_POOL].sort().values


def most_outlying(pool: Judged, truths: list[str | None]) -> tuple[Picture, ...]:
    """Images of the pool, the most outlying first; those whose outputs are not finite are left out.

    Args:
        pool: images that were looked at.
        truths: what they show, where that is known.
    """
    order = pool.score.argsort(descending=True, stable=True)
    return _pictures(pool, order[pool.is_finite[order]], truths)


def truths_of_pool(images: RunImages, positions: Int64[Tensor, " n"]) -> list[str | None]:
    """What the images at `positions` of the pool show; None where it is not known."""
    truth, parts = images.split.truth, images.parts
    found: list[str | None] = []
    for label, is_outlier, row in zip(
        truth.labels[positions].tolist(),
        truth.is_outlier[positions].tolist(),
        truth.row[positions].tolist(),
        strict=True,
    ):
        if is_outlier:
            found.append(f"{parts.unknown_names[int(parts.unknown_train.labels[row])]} (held out)")
        else:
            found.append(None if label == UNLABELED else parts.class_names[label])
    return found


def _shown(judged: Judged) -> UInt8[Tensor, "n C H W"]:
    """The images, in full where they are at hand."""
    pictures = judged.images.pictures
    return judged.thumbnails() if pictures is None else pictures.gather(torch.arange(len(pictures)))


def _pictures(judged: Judged, order: Int64[Tensor, " n"], truths: list[str | None]) -> tuple[Picture, ...]:
    order = order[:MOST_PICTURES]
    shown, names = judged.select(order), judged.model.facts.class_names
    return tuple(
        Picture(image, truths[place], names[predicted], confidence, score)
        for image, place, predicted, confidence, score in zip(
            _shown(shown),
            order.tolist(),
            shown.predicted.tolist(),
            shown.confidence.tolist(),
            shown.score.tolist(),
            strict=True,
        )
    )
