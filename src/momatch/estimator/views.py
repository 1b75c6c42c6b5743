"""Weak and strong views of vectors: noise, masked features, steps towards a neighbour, all in units of the data's own spread.

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
        noise: standard deviation of Gaussian noise, in standard deviations of each feature.
        mask: largest share of features that are set to their mean; each sample's own share is drawn from 0 to this.
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
    """

    def __init__(
        self,
        table: Float32[Tensor, "N F"],
        deviation: Float32[Tensor, " F"],
        neighbors: Int64[Tensor, "N k"],
        generator: torch.Generator,
    ) -> None:
        self.table = table
        self.deviation = deviation
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
            x = x + view.noise * self.deviation * noise
        if view.mask:
            x = x * (self._uniform(*x.shape) >= view.mask * self._uniform(n, 1))
        return x

    def _uniform(self, *shape: int) -> Float[Tensor, "..."]:
        return torch.rand(shape, generator=self.generator)
