"""Views of features: one of those that a backbone has seen and that are kept, drawn anew for every sample and step."""

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.augment.draws import below
from momatch.augment.views import View


class CachedView(View):
    """Draws one of `count` views that follow each other in features (n, V, F).

    Args:
        first: the first view to draw from.
        count: how many there are.
        default_view: as `View.default_view`: 0 where weak and 1 where strong.

    Raises:
        ValueError: if there is no view to draw from.
    """

    def __init__(self, first: int, count: int, *, default_view: int) -> None:
        if first < 0 or count < 1:
            raise ValueError(f"views: got {count} from number {first} on, expected at least one to draw from")
        self.first = first
        self.count = count
        self.default_view = default_view

    def __call__(
        self,
        images: Float[Tensor, "n V F"],
        *,
        seed: int,
        step: int,
        view: int | None = None,
        offset: int = 0,
        stride: int = 1,
    ) -> Float[Tensor, "n F"]:
        """One view of each sample, chosen by the numbers of (seed, step, view, offset + i * stride).

        Raises:
            ValueError: if there are fewer views than are to be drawn from.
        """
        if images.shape[1] < self.first + self.count:
            raise ValueError(f"images: got {images.shape[1]} views, expected at least {self.first + self.count}")
        draws = self._draws(images, 1, view, seed=seed, step=step, offset=offset, stride=stride)
        chosen = self.first + below(draws[:, 0], self.count)  # (n,)
        return images[torch.arange(len(images), device=images.device), chosen]
