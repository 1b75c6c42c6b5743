"""The averaged model: an exponential moving average (EMA) of the parameters, with the live model's buffers."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.models.classifier import Classifier


class AveragedModel:
    """average <- d * average + (1 - d) * live, with d = min(decay, (1 + t) / (10 + t)) at step t.

    The decay grows, because with a constant one the average of a short run would keep part of the random initial weights.

    Args:
        live: the model being trained.
        decay: maximum decay.
    """

    def __init__(self, live: Classifier, decay: float) -> None:
        self.classifier = copy.deepcopy(live).requires_grad_(False).eval()
        self.decay = decay
        self._averages: list[Tensor] = list(self.classifier.parameters())
        self._values: list[Tensor] = list(live.parameters())
        self._buffers = list(self.classifier.buffers()), list(live.buffers())

    def decay_at(self, step: int) -> float:
        """The decay at step t: min(decay, (1 + t) / (10 + t)). It reaches 0.999 at step 8,990."""
        return min(self.decay, (1.0 + step) / (10.0 + step))

    @torch.no_grad()
    def update(self, step: int, keep: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Move towards the live model.

        Args:
            step: number of steps before this one.
            keep: 1, or 0 if the step was skipped.

        Returns:
            The share of the way that it moved.
        """
        share = keep * (1.0 - self.decay_at(step))
        change = torch._foreach_sub(self._values, self._averages)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(self._averages, change)
        if self._buffers[0]:
            torch._foreach_copy_(*self._buffers)
        return share
