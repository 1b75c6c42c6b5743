"""The latent space in two dimensions: which images are shown, and where they and the centers lie by PCA and by t-SNE."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from momatch.data.rows import PixelRows
from momatch.report.findings import Points
from momatch.report.judged import Judged, alarm_level

#: With fewer points than this there are no neighbourhoods for t-SNE to keep.
FEWEST_FOR_TSNE = 8


@dataclass(frozen=True)
class Plane:
    """The plane of the two principal directions of some samples.

    Attributes:
        mean: of the samples.
        axes: unit vectors in columns; the second is 0 where there is one dimension only.
        explained: share of the samples' variance that lies in the plane.
    """

    mean: Float[Tensor, " D"]
    axes: Float[Tensor, "D 2"]
    explained: float

    @classmethod
    def through(cls, z: Float[Tensor, "n D"]) -> "Plane":
        """The plane for samples `z`; their order does not matter."""
        z = z.double()
        mean = z.mean(0)
        values, vectors = torch.linalg.eigh((z - mean).T @ (z - mean))  # ascending
        axes = vectors[:, -2:].flip(1)  # (D, 2), or (D, 1) for D = 1
        # The sign of a principal direction is arbitrary: fixed here, so that the same run gives the same picture.
        largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
        axes = axes * torch.where(largest < 0, -1.0, 1.0)
        if axes.shape[1] == 1:
            axes = torch.cat([axes, torch.zeros_like(axes)], 1)
        values = values.clamp_min(0)
        total = float(values.sum())
        return cls(mean, axes, float(values[-2:].sum()) / total if total else 1.0)

    def places(self, z: Float[Tensor, "n D"]) -> Float[Tensor, "n 2"]:
        """Where samples lie in the plane."""
        return (z.double() - self.mean) @ self.axes


def tsne(z: Float[Tensor, "n D"], start: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """t-SNE of samples, the same for the same samples; `start` itself where there are too few of them or all are equal.

    Args:
        z: the samples.
        start: where they lie by PCA: the map begins with this arrangement.
    """
    from sklearn.manifold import TSNE

    if len(z) < FEWEST_FOR_TSNE:
        return start
    z = z.double()
    spread, width = float(z.var(0).sum().sqrt()), float(start[:, 0].std())
    if not spread or not width:
        return start
    # Scaled, because scikit-learn computes in float32; the map does not depend on it.
    scaled = ((z - z.mean(0)) / spread).float().numpy()
    init = (1e-4 * start / width).float().numpy()
    perplexity = min(30.0, (len(z) - 1) / 3)
    return torch.from_numpy(TSNE(perplexity=perplexity, init=init, random_state=0).fit_transform(scaled)).double()


def even_share(labels: Int64[Tensor, " n"], most: int) -> Int64[Tensor, " m"]:
    """Positions of at most `most` samples, ascending, each class with the same share of its samples."""
    order = labels.argsort(stable=True)
    if len(order) > most:
        order = order[(torch.arange(most) * len(order)) // most]
    return order.sort().values


def shares(sizes: Sequence[int], most: int) -> list[int]:
    """How many images each origin shows: the others together at most as many as the first, which they must not drown.

    Args:
        sizes: of the origins, the test images first.
        most: images in all.
    """
    others = sorted(range(1, len(sizes)), key=sizes.__getitem__)
    granted = [0] * len(sizes)
    granted[0] = min(sizes[0], max(most - sum(sizes[1:]), most - most // 2))
    left = min(granted[0], most - granted[0])
    # The smallest first: what it does not use, the others may.
    for place, i in enumerate(others):
        granted[i] = min(sizes[i], left // (len(others) - place))
        left -= granted[i]
    return granted


def _of_one_size(thumbnails: Sequence[UInt8[Tensor, "_ C _h _w"]]) -> UInt8[Tensor, "n C h w"]:
    """All thumbnails in the size of the first: what is kept beside features may be smaller than images that were loaded."""
    shape = tuple(thumbnails[0].shape[1:])
    rows = (PixelRows([some]).converted(shape) for some in thumbnails)
    return torch.cat([some.gather(torch.arange(len(some))) for some in rows])


def map_points(origins: Sequence[Judged], most_points: int, say: Callable[[str], None]) -> Points:
    """The map of images of all origins; those whose outputs are not finite are left out.

    Args:
        origins: the test images first.
        most_points: how many images to show.
        say: is told what takes long.

    Raises:
        ValueError: if the outputs of no test image are finite.
    """
    level = alarm_level(origins[0].score)
    usable = [origin.select(origin.is_finite.nonzero().flatten()) for origin in origins]
    if len(usable[0]) == 0:
        raise ValueError("No embedding of a test image is finite: the model has diverged, so there is no map")
    granted = shares([len(origin) for origin in usable], most_points)
    shown = [origin.select(even_share(origin.labels, number)) for origin, number in zip(usable, granted, strict=True)]
    z = torch.cat([origin.outputs.z for origin in shown])
    head = shown[0].model.classifier.head
    centers = head.centers.detach().cpu() if head.has_centers else z[:0]
    # The plane is that of what the run knows: the same picture with and without outliers.
    plane = Plane.through(shown[0].outputs.z)
    everything = torch.cat([z, centers.to(z.dtype)])
    flat = plane.places(everything)
    say(f"t-SNE of {len(everything):,} points")
    maps = {"t-SNE": tsne(everything, flat), "PCA": flat}
    distance = [origin.scores.get("nearest", torch.full((len(origin),), torch.nan)) for origin in shown]
    return Points(
        maps={name: places[: len(z)] for name, places in maps.items()},
        centers={name: places[len(z) :] for name, places in maps.items()},
        origin_names=tuple(origin.name for origin in shown),
        origin=torch.cat([torch.full((len(origin),), number) for number, origin in enumerate(shown)]),
        labels=torch.cat([origin.labels for origin in shown]),
        predicted=torch.cat([origin.predicted for origin in shown]),
        confidence=torch.cat([origin.confidence for origin in shown]),
        log_density=torch.cat([-origin.scores["density"] for origin in shown]),
        distance=torch.cat(distance),
        flagged=torch.cat([origin.score > level for origin in shown]),
        images=_of_one_size([origin.thumbnails() for origin in shown]),
        explained=plane.explained,
    )
