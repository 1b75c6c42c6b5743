"""Weak and strong views of vectors: moves towards a neighbour, noise, masked features.

How far a view may go is measured by how far neighbours are from each other: half a standard deviation of noise leaves a vector
of 64 pixels among its kind, and takes one of two coordinates to the other side of the data.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from momatch.augment import View
from momatch.augment.draws import mix_key


@dataclass(frozen=True)
class Strength:
    """How far a view may go.

    Attributes:
        move: largest way to a random one of the nearest neighbours, as a share of the distance; drawn from 0 to this.
        noise: length of Gaussian noise, in distances between neighbours; features share it as they share the data's spread.
        mask: largest share of features that are set to their mean; each sample's own share is drawn from 0 to this, and less
            where masks would go farther than neighbours are.
    """

    move: float = 0.0
    noise: float = 0.0
    mask: float = 0.0


@dataclass(frozen=True)
class Vectors:
    """A table of scaled features, and what views need to know about it.

    Attributes:
        table: (N, F) scaled features, their means 0.
        deviation: (F,) standard deviation of each; a constant feature gets no noise.
        neighbors: (N, k) rows of the nearest neighbours of each row; k may be 0.
        reach: typical distance between neighbours, as a share of that from the center of all data, 0 to 1.
    """

    table: Float32[Tensor, "N F"]
    deviation: Float32[Tensor, " F"]
    neighbors: Int64[Tensor, "N k"]
    reach: float


class VectorView(View):
    """Makes views of rows of a table. A batch holds row numbers, because a row's neighbours are other rows.

    Args:
        vectors: the table.
        strength: how far views go.
        default_view: as `View.default_view`: 0 where weak and 1 where strong.
    """

    def __init__(self, vectors: Vectors, strength: Strength, *, default_view: int) -> None:
        self.vectors = vectors
        self.strength = strength
        self.default_view = default_view
        self._generator = torch.Generator()

    def __call__(
        self,
        rows: Int64[Tensor, " n"],
        *,
        seed: int,
        step: int,
        view: int | None = None,
        offset: int = 0,
        stride: int = 1,
    ) -> Float32[Tensor, "n F"]:
        """A view of each row, by the random numbers of (seed, step, view) and the place in the batch alone.

        Raises:
            ValueError: if the batch is a part of a larger one: vectors train in one process.
        """
        if (offset, stride) != (0, 1):
            raise ValueError(
                f"offset and stride: got {offset} and {stride}, expected 0 and 1: vectors train in one process"
            )
        # One seed a view and one large draw after the other: several times as fast as a counter for every number.
        self._generator.manual_seed(mix_key(seed, step, self.default_view if view is None else view))
        vectors, strength = self.vectors, self.strength
        x, n = vectors.table[rows], len(rows)
        if strength.move and vectors.neighbors.shape[1]:
            which = torch.randint(vectors.neighbors.shape[1], (n, 1), generator=self._generator)
            neighbor = vectors.table[vectors.neighbors[rows].gather(1, which).squeeze(1)]
            x = torch.lerp(x, neighbor, strength.move * self._uniform(n, 1))
        if strength.noise:
            noise = torch.randn(x.shape, generator=self._generator)
            x = torch.addcmul(x, noise, vectors.deviation, value=strength.noise * vectors.reach)
        if strength.mask:
            # Setting a share r of the features to their mean moves a sample by sqrt(r) of its distance from the center.
            share = min(strength.mask, vectors.reach**2)
            x = x * (self._uniform(*x.shape) >= share * self._uniform(n, 1))
        return x

    def _uniform(self, *shape: int) -> Float[Tensor, "..."]:
        return torch.rand(shape, generator=self._generator)
