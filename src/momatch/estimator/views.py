"""Weak and strong augmentation of vectors: moves towards a neighbour, noise, masked features.

Strength is measured in distances between neighbours rather than standard deviations: half a standard deviation of noise is
harmless to a vector of 64 pixels, but takes a vector of two coordinates to the other side of the data.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from momatch.augment import View
from momatch.augment.draws import mix_key


@dataclass(frozen=True)
class Strength:
    """Strength of an augmentation.

    Attributes:
        move: maximum move towards a random nearest neighbour, as a fraction of the distance; drawn from U[0, move].
        noise: norm of the Gaussian noise, in distances between neighbours; each feature's noise is proportional to its spread.
        mask: maximum fraction of features set to their mean; each sample's fraction is drawn from U[0, mask]. Limited so that
            a sample moves no farther than neighbours are apart.
    """

    move: float = 0.0
    noise: float = 0.0
    mask: float = 0.0


@dataclass(frozen=True)
class Vectors:
    """A table of scaled features, with what augmentation needs.

    Attributes:
        table: (N, F) scaled features with mean 0.
        deviation: (F,) standard deviation of each feature; 0 means no noise.
        neighbors: (N, k) row numbers of the nearest neighbours of each row; k may be 0.
        reach: typical distance between neighbours, relative to the distance from the center of all data, 0 to 1.
    """

    table: Float32[Tensor, "N F"]
    deviation: Float32[Tensor, " F"]
    neighbors: Int64[Tensor, "N k"]
    reach: float


class VectorView(View):
    """Augments rows of a table. Takes row numbers, because a row's neighbours are other rows.

    Args:
        vectors: the table.
        strength: of the augmentation.
        default_view: see `View.default_view`: 0 for weak, 1 for strong.
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
        """Augment each row; random numbers depend only on (seed, step, view) and the position in the batch.

        Raises:
            ValueError: if the batch is part of a larger one: vectors train in one process.
        """
        if (offset, stride) != (0, 1):
            raise ValueError(
                f"offset and stride: got {offset} and {stride}, expected 0 and 1: vectors train in one process"
            )
        # One seed per view and a few large draws: several times faster than counter-based random numbers.
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
            # Masking a fraction r of the features moves a sample by sqrt(r) of its distance from the center.
            share = min(strength.mask, vectors.reach**2)
            x = x * (self._uniform(*x.shape) >= share * self._uniform(n, 1))
        return x

    def _uniform(self, *shape: int) -> Float[Tensor, "..."]:
        return torch.rand(shape, generator=self._generator)
