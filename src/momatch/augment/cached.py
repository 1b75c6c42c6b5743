"""Views of saved features: one of the stored views, drawn for every sample and step."""

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.augment.draws import below
from momatch.augment.views import View


class CachedView(View):
    """Draws one of `count` consecutive views in features (n, V, F).

    Args:
        first: first view to draw from.
        count: number of views to draw from.
        default_view: see `View.default_view`: 0 for weak, 1 for strong.

    Raises:
        ValueError: if there is no view to draw from.
    """

    def __init__(self, first: int, count: int, *, default_view: int) -> None:
        if first < 0 or count < 1:
            raise ValueError(f"views: got {count} starting at {first}, expected at least one to draw from")
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
        """One view of each sample, drawn by (seed, step, view, offset + i * stride).

        Raises:
            ValueError: if `images` has too few views.
        """
        if images.shape[1] < self.first + self.count:
            raise ValueError(f"images: got {images.shape[1]} views, expected at least {self.first + self.count}")
        draws = self._draws(images, 1, view, seed=seed, step=step, offset=offset, stride=stride)
        chosen = self.first + below(draws[:, 0], self.count)  # (n,)
        return images[torch.arange(len(images), device=images.device), chosen]
