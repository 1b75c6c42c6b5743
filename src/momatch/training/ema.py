"""The averaged model: an exponential moving average of the parameters, with the live model's buffers."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.classifier import Classifier


class AveragedModel:
    """ema <- decay * ema + (1 - decay) * live, all parameters in a few kernels.

    Args:
        live: the model that trains.
        decay: of the average.
    """

    def __init__(self, live: Classifier, decay: float) -> None:
        self.classifier = copy.deepcopy(live).requires_grad_(False).eval()
        self.decay = decay
        self._averages: list[Tensor] = list(self.classifier.parameters())
        self._values: list[Tensor] = list(live.parameters())
        self._buffers = list(self.classifier.buffers()), list(live.buffers())

    @torch.no_grad()
    def update(self, keep: Float[Tensor, ""]) -> None:
        """Move towards the live model by (1 - decay) * `keep`: 1, or 0 for a step that was skipped."""
        change = torch._foreach_sub(self._values, self._averages)
        torch._foreach_mul_(change, keep * (1.0 - self.decay))
        torch._foreach_add_(self._averages, change)
        if self._buffers[0]:
            torch._foreach_copy_(*self._buffers)
