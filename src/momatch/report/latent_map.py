"""The map of the latent space: which images are shown, and their coordinates by PCA and t-SNE."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from momatch.data.rows import PixelRows
from momatch.report.predictions import Predictions, outlier_threshold
from momatch.report.run_report import MapPoints

#: With fewer points there are no neighbourhoods for t-SNE to preserve.
MIN_TSNE_POINTS = 8


@dataclass(frozen=True)
class Plane:
    """The plane of the first two principal components of some samples.

    Attributes:
        mean: mean of the samples.
        axes: unit vectors in columns; the second is 0 for D = 1.
        explained: share of the samples' variance in the plane.
    """

    mean: Float[Tensor, " D"]
    axes: Float[Tensor, "D 2"]
    explained: float

    @classmethod
    def fit(cls, z: Float[Tensor, "n D"]) -> "Plane":
        """The plane of samples `z`; their order does not matter."""
        z = z.double()
        mean = z.mean(0)
        values, vectors = torch.linalg.eigh((z - mean).T @ (z - mean))  # ascending
        axes = vectors[:, -2:].flip(1)  # (D, 2), or (D, 1) for D = 1
        # The sign of a principal component is arbitrary; fixed here, so that the same run gives the same map.
        largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
        axes = axes * torch.where(largest < 0, -1.0, 1.0)
        if axes.shape[1] == 1:
            axes = torch.cat([axes, torch.zeros_like(axes)], 1)
        values = values.clamp_min(0)
        total = float(values.sum())
        return cls(mean, axes, float(values[-2:].sum()) / total if total else 1.0)

    def project(self, z: Float[Tensor, "n D"]) -> Float[Tensor, "n 2"]:
        """Coordinates of samples in the plane."""
        return (z.double() - self.mean) @ self.axes


def tsne(z: Float[Tensor, "n D"], start: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """t-SNE coordinates, the same for the same samples; `start` if there are too few samples or all are equal.

    Args:
        z: the samples.
        start: their PCA coordinates, from which t-SNE starts.
    """
    from sklearn.manifold import TSNE

    if len(z) < MIN_TSNE_POINTS:
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


def stratified_sample(labels: Int64[Tensor, " n"], most: int) -> Int64[Tensor, " m"]:
    """Positions of at most `most` samples, ascending, with the same share of every class."""
    order = labels.argsort(stable=True)
    if len(order) > most:
        order = order[(torch.arange(most) * len(order)) // most]
    return order.sort().values


def images_per_origin(sizes: Sequence[int], most: int) -> list[int]:
    """Images to show of each origin: all outliers together at most as many as test images, so that they do not drown them.

    Args:
        sizes: of the origins, the test images first.
        most: total number of images.
    """
    others = sorted(range(1, len(sizes)), key=sizes.__getitem__)
    granted = [0] * len(sizes)
    granted[0] = min(sizes[0], max(most - sum(sizes[1:]), most - most // 2))
    left = min(granted[0], most - granted[0])
    # Smallest first: the others may use what it leaves.
    for place, i in enumerate(others):
        granted[i] = min(sizes[i], left // (len(others) - place))
        left -= granted[i]
    return granted


def _of_one_size(thumbnails: Sequence[UInt8[Tensor, "_ C _h _w"]]) -> UInt8[Tensor, "n C h w"]:
    """All thumbnails in the size of the first: those stored with features may be smaller than loaded images."""
    shape = tuple(thumbnails[0].shape[1:])
    rows = (PixelRows([some]).converted(shape) for some in thumbnails)
    return torch.cat([some.gather(torch.arange(len(some))) for some in rows])


def map_points(origins: Sequence[Predictions], most_points: int, log: Callable[[str], None]) -> MapPoints:
    """The map of images of all origins; images without finite outputs are left out.

    Args:
        origins: the test images first.
        most_points: number of images to show, at most.
        log: called with a message before the slow part.

    Raises:
        ValueError: if the outputs of no test image are finite.
    """
    threshold = outlier_threshold(origins[0].score)
    usable = [origin.where(origin.is_finite) for origin in origins]
    if len(usable[0]) == 0:
        raise ValueError("The embedding is not finite for any test image: the model has diverged, so there is no map")
    granted = images_per_origin([len(origin) for origin in usable], most_points)
    shown = [origin.select(stratified_sample(origin.labels, n)) for origin, n in zip(usable, granted, strict=True)]
    z = torch.cat([origin.outputs.z for origin in shown])
    head = shown[0].model.classifier.head
    centers = head.centers.detach().cpu() if head.has_centers else z[:0]
    # Fitted to the test images alone: the map is the same with and without outliers.
    plane = Plane.fit(shown[0].outputs.z)
    points = torch.cat([z, centers.to(z.dtype)])
    flat = plane.project(points)
    log(f"computing t-SNE of {len(points):,} points")
    maps = {"t-SNE": tsne(points, flat), "PCA": flat}
    distance = [origin.scores.get("nearest", torch.full((len(origin),), torch.nan)) for origin in shown]
    return MapPoints(
        maps={name: places[: len(z)] for name, places in maps.items()},
        centers={name: places[len(z) :] for name, places in maps.items()},
        origin_names=tuple(origin.name for origin in shown),
        origin=torch.cat([torch.full((len(origin),), number) for number, origin in enumerate(shown)]),
        labels=torch.cat([origin.labels for origin in shown]),
        predicted=torch.cat([origin.predicted for origin in shown]),
        confidence=torch.cat([origin.confidence for origin in shown]),
        log_density=torch.cat([-origin.scores["density"] for origin in shown]),
        distance=torch.cat(distance),
        flagged=torch.cat([origin.score > threshold for origin in shown]),
        images=_of_one_size([origin.thumbnails() for origin in shown]),
        explained=plane.explained,
        files=tuple(file for origin in shown for file in origin.files or [""] * len(origin)),
    )
