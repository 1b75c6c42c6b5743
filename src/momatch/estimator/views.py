"""Weak and strong views of vectors: moves towards a neighbour, noise, masked features.

How far a view may go is measured by how far neighbours are from each other: half a standard deviation of noise leaves a vector
of 64 pixels among its kind, and takes one of two coordinates to the other side of the data.

The random numbers of a view depend on the step and on the place in the batch alone, never on which sample stands there.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor


@dataclass(frozen=True)
class View:
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


class VectorViews:
    """Draws views of rows of a table of scaled features.

    Args:
        table: (N, F) scaled features, their means 0.
        deviation: (F,) standard deviation of each; a constant feature gets no noise.
        neighbors: (N, k) rows of the nearest neighbours of each row; k may be 0.
        generator: of all random numbers.
        reach: typical distance between neighbours, as a share of that from the center of all data, 0 to 1.
    """

    def __init__(
        self,
        table: Float32[Tensor, "N F"],
        deviation: Float32[Tensor, " F"],
        neighbors: Int64[Tensor, "N k"],
        generator: torch.Generator,
        *,
        reach: float,
    ) -> None:
        self.table = table
        self.deviation = deviation
        self.reach = reach
        self.neighbors = neighbors
        self.generator = generator

    def __call__(self, rows: Int64[Tensor, " n"], view: View) -> Float32[Tensor, "n F"]:
        """A view of each of these rows."""
        x = self.table[rows]
        n = len(rows)
        if view.move and self.neighbors.shape[1]:
            which = torch.randint(self.neighbors.shape[1], (n, 1), generator=self.generator)
            neighbor = self.table[self.neighbors[rows].gather(1, which).squeeze(1)]
            x = torch.lerp(x, neighbor, view.move * self._uniform(n, 1))
        if view.noise:
            noise = torch.randn(x.shape, generator=self.generator)
            x = x + view.noise * self.reach * self.deviation * noise
        if view.mask:
            # Setting a share r of the features to their mean moves a sample by sqrt(r) of its distance from the center.
            share = min(view.mask, self.reach**2)
            x = x * (self._uniform(*x.shape) >= share * self._uniform(n, 1))
        return x

    def _uniform(self, *shape: int) -> Float[Tensor, "..."]:
        return torch.rand(shape, generator=self.generator)
